//! `hold`, `release`, `replace`, `verify`: each becomes one annotation, judged here by the rules of admission
//! before the API server judges it again.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use holdfast_crds::names::annotation::cluster as key;
use holdfast_crds::node::GarageNode;
use holdfast_crds::status::NodeLocalService;
use holdfast_crds::validate::{self, Fact, Kind, Lookup, Operation, Version};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::Site;
use crate::{Failure, code};

/// One annotation to set or remove.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its key.
    pub key: &'static str,
    /// Its value; `None` removes it.
    pub value: Option<String>,
    /// What it means, in a sentence.
    pub means: String,
    /// What to do next, in a sentence.
    pub then: String,
    /// What is allowed but deserves notice.
    pub warnings: Vec<String>,
}

/// Takes a member out of service.
pub fn hold(site: &Site, member: &str) -> Result<Plan, Failure> {
    let pair = pair_of(find(site, member)?);
    plan(
        site,
        key::OUT_OF_SERVICE,
        Some(pair.clone()),
        format!("{pair} is to be taken out of service"),
        format!(
            "wait with `kubectl holdfast wait{} --for hold`; do not touch the disk before it says that it is safe",
            site.arguments()
        ),
    )
}

/// Ends a hold.
pub fn release(site: &Site) -> Result<Plan, Failure> {
    let Some(held) = site.cluster.annotation(key::OUT_OF_SERVICE) else {
        return Err(Failure::with(code::NOTHING, format!("{} holds no member out of service", site.name())));
    };
    plan(
        site,
        key::OUT_OF_SERVICE,
        None,
        format!("the hold of {held} ends"),
        format!("wait with `kubectl holdfast wait{} --for release`", site.arguments()),
    )
}

/// Replaces a member's identity by the one that its new disk has.
pub fn replace(site: &Site, member: &str) -> Result<Plan, Failure> {
    let node = find(site, member)?;
    let pair = pair_of(node);
    let Some(old) = node.status.as_ref().and_then(|s| s.node_id) else {
        return Err(Failure::with(
            code::ACT,
            format!(
                "the GarageNode of {pair} records no identity (status.nodeId), so there is nothing to replace"
            ),
        ));
    };
    let mut plan = plan(
        site,
        key::REPLACE_IDENTITY,
        Some(format!("{pair}/{old}")),
        format!("the identity of {pair} is replaced; the old one is {old}"),
        format!(
            "wait with `kubectl holdfast wait{} --for replacement`, then request a proof",
            site.arguments()
        ),
    )?;
    if node.status.as_ref().is_some_and(|s| s.connected) {
        plan.warnings.push(format!(
            "Garage last saw {} up: if its disk is alive, nothing needs replacing, and the replacement will wait",
            old.short()
        ));
    }
    Ok(plan)
}

/// Requests a proof by a token that was never used.
pub fn verify(site: &Site, now: Timestamp) -> Result<Plan, Failure> {
    let token = format!("kubectl-{}", now.as_millisecond());
    plan(
        site,
        key::VERIFY_REDUNDANCY,
        Some(token),
        "a full proof is requested".to_owned(),
        format!("wait with `kubectl holdfast wait{}`", site.arguments()),
    )
}

/// Asks on a terminal; without one the answer is no.
pub fn confirm(plan: &Plan) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::with(
            code::ACT,
            "nobody to ask: standard input is no terminal; run it again with --yes, or look first with --dry-run",
        ));
    }
    for warning in &plan.warnings {
        eprintln!("warning: {warning}");
    }
    eprint!(
        "{}.\nIts data on that disk is given up and copied anew from the other nodes. Go on? [y/N] ",
        plan.means
    );
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && is_yes(&answer) {
        Ok(())
    } else {
        Err(Failure::with(code::ACT, "nothing was changed"))
    }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

/// The patch of a plan. The resource version makes it fail if somebody changed the object since it was judged.
pub fn patch(site: &Site, plan: &Plan) -> Value {
    json!({"metadata": {
        "resourceVersion": site.cluster.metadata.resource_version,
        "annotations": {plan.key: plan.value},
    }})
}

/// The pool's member that is meant: `pool/node`, or a Kubernetes Node's name where that is enough.
fn find<'s>(site: &'s Site, word: &str) -> Result<&'s GarageNode, Failure> {
    let members: Vec<&GarageNode> = site.members().filter(|m| m.pair().is_some()).collect();
    let found: Vec<&&GarageNode> = members
        .iter()
        .filter(|m| {
            m.pair().is_some_and(|p| {
                if word.contains('/') { p.to_string() == word } else { p.node.as_str() == word }
            })
        })
        .collect();
    match found.as_slice() {
        [one] => Ok(one),
        [] => {
            let known: Vec<String> = members.iter().map(|m| pair_of(m)).collect();
            let known = if known.is_empty() {
                "it has no members".to_owned()
            } else {
                format!("its members are {}", known.join(", "))
            };
            let word: String = word.chars().take(128).collect();
            Err(Failure::error(format!("{} has no member {word:?}; {known}", site.name())))
        }
        many => {
            let which: Vec<String> = many.iter().map(|m| pair_of(m)).collect();
            Err(Failure::error(format!(
                "{word:?} is in more than one pool; name one of {}",
                which.join(", ")
            )))
        }
    }
}

fn pair_of(node: &GarageNode) -> String {
    node.pair().map(|p| p.to_string()).unwrap_or_default()
}

/// Judges the change by the rules of admission: what the webhook would refuse is not even sent.
fn plan(
    site: &Site,
    key: &'static str,
    value: Option<String>,
    means: String,
    then: String,
) -> Result<Plan, Failure> {
    let unreadable = |error: String| Failure::error(format!("{} cannot be judged: {error}", site.name()));
    let old = serde_json::to_value(&site.cluster).map_err(|e| unreadable(e.to_string()))?;
    let mut new = old.clone();
    let annotations = &mut new["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    match (&value, annotations.as_object_mut()) {
        (Some(value), Some(map)) => drop(map.insert(key.to_owned(), json!(value))),
        (None, Some(map)) => drop(map.remove(key)),
        (_, None) => {}
    }
    let (old, new) = (old.to_string(), new.to_string());
    let request = validate::Request::from_json(
        Kind::GarageCluster,
        Operation::Update,
        Version::V1beta2,
        "",
        Some(&old),
        Some(&new),
    )
    .map_err(|e| unreadable(e.to_string()))?;
    let (namespace, name) = (site.namespace(), site.cluster.metadata.name.as_deref().unwrap_or_default());
    let members = site.nodes.iter().filter_map(|n| holdfast_webhook::member(n, namespace, name)).collect();
    let verdict =
        validate::validate(&request, &Lookup { members: Fact::Known(members), ..Lookup::default() });
    if let Some(refusal) = verdict.refusal {
        let standing = standing(site.cluster.status.as_ref().and_then(|s| s.node_local_service.as_ref()));
        return Err(Failure::with(code::ACT, format!("refused by {}{standing}", refusal.message)));
    }
    Ok(Plan { key, value, means, then, warnings: verdict.warnings })
}

/// What is under way, after a refusal.
fn standing(service: Option<&NodeLocalService>) -> String {
    service.map_or_else(String::new, |s| {
        format!(" (status: {:?} of {}/{} is in phase {:?})", s.operation, s.pool, s.kubernetes_node, s.phase)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::report::tests::{cluster, id, member};

    fn site(annotations: &Value, status: &Value) -> Site {
        Site::new(cluster(annotations, status), vec![member(1), member(2), member(3)])
    }

    fn plain() -> Site {
        site(&json!({}), &json!({}))
    }

    #[test]
    fn a_hold_names_the_pair_also_when_only_the_node_was_said() {
        for word in ["fast/kn-2", "kn-2"] {
            let plan = hold(&plain(), word).unwrap();
            assert_eq!((plan.key, plan.value.as_deref()), (key::OUT_OF_SERVICE, Some("fast/kn-2")));
            assert!(plan.then.contains("-n objects site-a --for hold"), "{}", plan.then);
        }
    }

    #[test]
    fn an_unknown_member_is_refused_with_those_that_there_are() {
        let failure = hold(&plain(), "kn-9").unwrap_err();
        assert!(failure.what.contains("fast/kn-1, fast/kn-2, fast/kn-3"), "{}", failure.what);
        assert_eq!(failure.code, code::ERROR);
    }

    #[test]
    fn a_node_of_two_pools_must_be_named_with_its_pool() {
        let mut other = member(2);
        other.spec.node_local_pool_name = Some("slow".to_owned());
        let site = Site::new(cluster(&json!({}), &json!({})), vec![member(2), other]);
        assert!(hold(&site, "kn-2").unwrap_err().what.contains("fast/kn-2, slow/kn-2"));
        assert!(hold(&site, "fast/kn-2").is_ok());
    }

    #[test]
    fn a_replacement_finds_the_old_identity_itself() {
        let plan = replace(&plain(), "kn-3").unwrap();
        assert_eq!(plan.value, Some(format!("fast/kn-3/{}", id(3))));
        assert!(plan.means.contains(&id(3)));
        assert!(plan.warnings[0].contains("last saw 0303030303030303 up"), "{:?}", plan.warnings);
    }

    #[test]
    fn what_admission_would_refuse_is_not_sent() {
        let held = site(&json!({key::OUT_OF_SERVICE: "fast/kn-1"}), &json!({}));
        let failure = replace(&held, "kn-3").unwrap_err();
        assert!(failure.what.starts_with("refused by V2"), "{}", failure.what);
        assert_eq!(failure.code, code::ACT);
        assert!(hold(&held, "kn-2").unwrap_err().what.starts_with("refused by V6"));
    }

    #[test]
    fn a_release_removes_the_annotation_and_needs_one() {
        let held = site(&json!({key::OUT_OF_SERVICE: "fast/kn-1", "other": "stays"}), &json!({}));
        let plan = release(&held).unwrap();
        assert_eq!(
            patch(&held, &plan),
            json!({"metadata": {"resourceVersion": "7", "annotations": {key::OUT_OF_SERVICE: null}}})
        );
        assert_eq!(release(&plain()).unwrap_err().code, code::NOTHING);
    }

    #[test]
    fn every_proof_gets_a_token_of_its_own() {
        let at = |text: &str| verify(&plain(), text.parse().unwrap()).unwrap().value.unwrap();
        assert_ne!(at("2026-01-02T03:04:05.001Z"), at("2026-01-02T03:04:05.002Z"));
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        assert!(is_yes("y\n") && is_yes(" YES \n"));
        assert!(!is_yes("") && !is_yes("\n") && !is_yes("yup") && !is_yes("n"));
    }
}
