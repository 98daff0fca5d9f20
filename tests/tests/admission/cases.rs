//! The admission cases, and what must hold before the first of them is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use holdfast_crds::validate::{MAX_MESSAGE, Rule};
use holdfast_tests::admission_api::{namespace, perform, prepare};
use holdfast_tests::admission_cases::{Act, Case, Outcome, load};
use holdfast_tests::bed::Bed;
use holdfast_tests::suite::TestResult;
use holdfast_tests::{Error, Result};
use tokio::time::{Instant, sleep};

use crate::support::{self, Place};
use crate::verdict::verdict;

pub async fn the_installed_webhooks_answer_at_once_without_a_leader(bed: Arc<Bed>) -> TestResult {
    for node in ["infra-1", "infra-2"] {
        bed.add_node(node, &[("bed/role", "infra")]).await?;
    }
    support::keep_everybody_from_leading(&bed).await?;
    bed.install(&["nodeSelector.bed/role=infra"]).await?;
    // The first request after `helm --wait`, with no second try.
    let refused = bed.apply(&support::probe("default", "not-a-pair").to_string()).await;
    let refused = refused.expect_err("a malformed hold was accepted").to_string();
    assert!(refused.contains("denied the request: V1 ("), "{refused}");
    let mut plain = support::probe("default", "");
    plain["metadata"].as_object_mut().unwrap().remove("annotations");
    plain["apiVersion"] = "garage.rajsingh.info/v1beta1".into();
    plain["spec"] = serde_json::json!({"replicas": 0, "gateway": false, "zone": "rack-1"});
    bed.apply(&plain.to_string()).await?;
    let zone = ["get", "garageclusters.v1beta2.garage.rajsingh.info", "probe", "-o", "jsonpath={.spec.zone}"];
    assert_eq!(bed.kubectl(&zone).await?, "rack-1");
    bed.kubectl(&["delete", "garagecluster", "probe"]).await?;
    assert!(bed.leader().await.is_err(), "somebody leads");
    Ok(())
}

pub async fn every_case_gets_its_verdict_from_the_real_api_server(bed: Arc<Bed>) -> TestResult {
    let cases: Vec<Case> = load()?.into_iter().filter(|case| !case.is_offline_only()).collect();
    assert!(cases.len() >= 60, "{} cases", cases.len());
    support::without_admission(&bed, prepare_all(&bed, &cases)).await?;
    wait_for_the_caches(&bed, &cases).await?;

    let mut differences: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut coverage = Coverage::default();
    for case in &cases {
        let outcome = match perform(&bed.client, case).await {
            Ok(outcome) => outcome,
            Err(error) => {
                differences.entry(&case.name).or_default().push(error.to_string());
                continue;
            }
        };
        let found = differs(case, &outcome);
        if found.is_empty() {
            coverage.add(case);
        } else {
            differences.entry(&case.name).or_default().extend(found);
        }
    }
    let mut table = String::new();
    for (name, found) in &differences {
        for one in found {
            let _ = writeln!(table, "{name:<45} {one}");
        }
    }
    assert!(differences.is_empty(), "{} of {} cases differ:\n{table}", differences.len(), cases.len());
    coverage.check();
    Ok(())
}

async fn prepare_all(bed: &Bed, cases: &[Case]) -> Result<()> {
    futures::stream::iter(cases.to_vec())
        .map(|case| {
            let client = bed.client.clone();
            async move {
                let prepared = prepare(&client, &case).await;
                prepared.map_err(|error| Error::other(format!("preparing {}: {error}", case.name)))
            }
        })
        .buffer_unordered(8)
        .try_collect::<()>()
        .await
}

/// A hold on a pair whose GarageNode was made after all others: when it is accepted, the replica that answers has
/// read them all.
async fn wait_for_the_caches(bed: &Bed, cases: &[Case]) -> Result<()> {
    let mut canary = cases.iter().find(|case| case.name == "v1-hold-well-formed").unwrap().clone();
    "canary".clone_into(&mut canary.name);
    canary.operation = Act::DryRun;
    prepare(&bed.client, &canary).await?;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let outcome = perform(&bed.client, &canary).await?;
        if outcome.allowed {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::other(format!("the caches are not there: {outcome:?}")));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// What is not as the case expects, or not as the rules alone say.
fn differs(case: &Case, outcome: &Outcome) -> Vec<String> {
    let mut found = Vec::new();
    let outcome = Outcome {
        // The API server's own, on every request of the deprecated version.
        warnings: outcome.warnings.iter().filter(|text| !text.contains("deprecated")).cloned().collect(),
        ..outcome.clone()
    };
    found.extend(case.differs(&outcome));
    let alone = verdict(case, None, Some(&namespace(case)));
    if alone.allowed() != outcome.allowed {
        found.push(format!("the rules alone say {:?}", alone.message()));
    }
    if outcome.allowed {
        if alone.warnings != outcome.warnings {
            found.push(format!("warned {:?}, the rules alone {:?}", outcome.warnings, alone.warnings));
        }
        return found;
    }
    let said = outcome.message.split_once("denied the request: ").map_or("", |(_, said)| said);
    // The schema's defaults count where the API server has set them.
    let without_sizes = |text: &str| match alone.rule() {
        Some(Rule::V12) if text.contains("bytes of annotations") => {
            text.replace(|c: char| c.is_ascii_digit(), "")
        }
        _ => text.to_owned(),
    };
    if without_sizes(said) != without_sizes(alone.message()) {
        found.push(format!("said {said:?}, the rules alone {:?}", alone.message()));
    }
    // V13.
    if said.chars().count() > MAX_MESSAGE || said.contains('\n') {
        found.push(format!("too long or of several lines: {said:?}"));
    }
    found
}

/// What was really asked and answered as expected.
#[derive(Default)]
struct Coverage {
    asked: usize,
    accepted: BTreeSet<String>,
    refused: BTreeSet<String>,
    acts: BTreeMap<(String, String), usize>,
}

impl Coverage {
    fn add(&mut self, case: &Case) {
        self.asked += 1;
        *self.acts.entry((format!("{:?}", case.operation), case.version.clone())).or_default() += 1;
        let about = case.name.split('-').next().unwrap_or_default().to_uppercase();
        if case.expect.allowed {
            self.accepted.insert(about);
        } else {
            // V13 is about every refusal; what V3 does not excuse is refused by another rule.
            self.refused.insert("V13".to_owned());
            self.refused.extend((about == "V3").then_some(about));
            self.refused.extend(case.expect.rule.clone());
        }
    }

    fn check(&self) {
        println!("{} cases asked: {:?}", self.asked, self.acts);
        assert!(self.asked >= 60, "{} cases", self.asked);
        for number in 1..=13 {
            let rule = format!("V{number}");
            assert!(self.accepted.contains(&rule), "no case of {rule} was accepted");
            assert!(self.refused.contains(&rule), "no case of {rule} was refused");
        }
        let acts: BTreeSet<&str> = self.acts.keys().map(|(act, _)| act.as_str()).collect();
        for act in [
            Act::Create,
            Act::Update,
            Act::Ssa,
            Act::DryRun,
            Act::Scale,
            Act::Delete,
            Act::FinalizerRemoval,
            Act::Status,
        ] {
            assert!(acts.contains(format!("{act:?}").as_str()), "no case does {act:?}");
        }
        let versions: BTreeSet<&str> = self.acts.keys().map(|(_, version)| version.as_str()).collect();
        assert!(versions.contains("v1beta1") && versions.contains("v1beta2"), "{versions:?}");
    }
}

pub async fn the_printed_crds_applied_over_those_of_the_chart_leave_conversion_alone(
    bed: Arc<Bed>,
) -> TestResult {
    let conversion = ["get", Place::Crd.kind(), Place::Crd.name(), "-o", "jsonpath={.spec.conversion}"];
    let before = bed.kubectl(&conversion).await?;
    assert!(before.contains("caBundle"), "{before}");
    for print in [&["crds"][..], &["crds", "--conversion-service", "garage-holdfast/garage-holdfast"]] {
        let crds = bed.product(print).await?;
        let (said, warned) = bed.kubectl_said(&["apply", "--server-side", "-f", "-"], Some(&crds)).await?;
        assert_eq!(said.matches("serverside-applied").count(), 2, "{said}");
        assert_eq!(warned, "");
        assert_eq!(bed.kubectl(&conversion).await?, before, "{print:?}");
    }
    Ok(())
}
