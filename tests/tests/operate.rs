//! What an administrator does with the product itself: installs it by the real helm, asks it by the plugin, swaps a
//! disk with nothing but the plugin's commands, upgrades, rolls back, uninstalls and installs again; and what the
//! product asks the API server for meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use holdfast_tests::Error;
use holdfast_tests::bed::{self, Bed, assets};
use holdfast_tests::product::NAMESPACE;
use holdfast_tests::prometheus::{Prometheus, Target};
use holdfast_tests::queries::{Query, of_dashboard, of_documentation};
use holdfast_tests::roles::Permission;
use holdfast_tests::site::{Site, condition};
use holdfast_tests::suite::{self, TestResult};
use holdfast_tests::test;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use tokio::time::Instant;

const STEP: Duration = Duration::from_secs(300);
const CRD: &str = "garageclusters.garage.rajsingh.info";
const NODE: &str = "kn-3";

fn main() -> ExitCode {
    suite::run(
        "operate",
        &bed::Options::default(),
        vec![
            test!(the_chart_installs_with_its_defaults_and_its_own_test_passes),
            test!(the_plugin_shows_and_proves_a_site),
            test!(a_disk_is_swapped_with_nothing_but_the_plugin),
            test!(the_dashboard_and_the_documentation_find_what_they_look_for_on_the_site),
            test!(an_upgrade_and_a_rollback_start_no_repair_and_void_nothing),
            test!(every_permission_is_used_and_nothing_else_is_needed),
            // Last: its roles are taken away while it still runs.
            test!(after_an_uninstall_garage_runs_on_and_a_new_installation_takes_up_the_site),
        ],
    )
}

fn site() -> Site {
    let mut site = Site::new(assets::GARAGE);
    site.spec = json!({
        "network": {"rpcPingTimeout": "2s", "rpcTimeout": "10s"},
        "storage": {"podDisruptionBudget": {"enabled": true}},
    });
    site
}

async fn the_chart_installs_with_its_defaults_and_its_own_test_passes(bed: Arc<Bed>) -> TestResult {
    for node in ["infra-1", "infra-2"] {
        bed.add_node(node, &[]).await?;
    }
    bed.install(&[]).await?;
    assert_eq!(bed.replicas().await?.len(), 2);
    let said = bed.helm(&["test", NAMESPACE, "--namespace", NAMESPACE, "--timeout", "3m"]).await?;
    // Its Pod ends well only when the API server got a verdict from the webhooks.
    says(&said, &["garage-holdfast-test", "Succeeded"]);
    assert!(!said.contains("Failed"), "{said}");
    Ok(())
}

/// Runs the plugin, which must end with a code, and returns what it said.
async fn plugin(bed: &Bed, args: &str, code: i32) -> Result<String, Error> {
    let words: Vec<&str> = args.split(' ').collect();
    let said = bed.plugin(&words).await?;
    if said.code == Some(code) {
        return Ok(format!("{}{}", said.out, said.err));
    }
    Err(Error::other(format!("kubectl holdfast {args} ended with {:?}, not {code}: {said:?}", said.code)))
}

/// Asserts that a text has all of these words.
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in:\n{text}");
    }
}

async fn annotations(bed: &Bed, site: &Site) -> Result<Value, Error> {
    let object = site.get(&bed.client).await?;
    Ok(json!(object.metadata.annotations.unwrap_or_default()))
}

async fn the_plugin_shows_and_proves_a_site(bed: Arc<Bed>) -> TestResult {
    let site = site();
    site.bring_up(&bed).await?;
    let table = plugin(&bed, "status -n objects", 0).await?;
    says(&table, &["site-a", "NotVerified"]);
    let one = plugin(&bed, "status -n objects site-a", 0).await?;
    says(&one, &["fast/kn-1", "fast/kn-2", "fast/kn-3"]);
    assert!(!one.contains('\u{1b}'), "colours without a terminal: {one}");
    let sites: Value = serde_json::from_str(&plugin(&bed, "status -A -o json", 0).await?)?;
    assert_eq!(sites.as_array().map(Vec::len), Some(1), "{sites}");
    let yaml: Value = serde_norway::from_str(&plugin(&bed, "status -n objects site-a -o yaml", 0).await?)?;
    assert_eq!(yaml[0]["name"], sites[0]["name"]);
    says(&plugin(&bed, "status -n objects site-b", 1).await?, &["site-b"]);
    says(&plugin(&bed, "status -n objects --context nobody", 1).await?, &["nobody"]);
    says(&plugin(&bed, "status -n objects --kubeconfig /nowhere", 1).await?, &["/nowhere"]);
    says(&plugin(&bed, "hold site-a", 2).await?, &["<MEMBER>"]);

    // Nobody asked for anything yet.
    for goal in ["redundancy", "hold", "replacement"] {
        plugin(&bed, &format!("wait -n objects --for {goal}"), 5).await?;
    }
    plugin(&bed, "release -n objects site-a", 5).await?;

    plugin(&bed, "verify -n objects site-a --dry-run", 0).await?;
    assert_eq!(annotations(&bed, &site).await?.get("garage.rajsingh.info/verify-redundancy"), None);
    says(&plugin(&bed, "verify -n objects site-a", 0).await?, &["kubectl holdfast wait -n objects site-a"]);
    says(&plugin(&bed, "wait -n objects site-a --timeout 1s", 4).await?, &["objects/site-a"]);
    let seen = bed.plugin_on_a_terminal("wait -n objects site-a --timeout 15m", "").await?;
    assert_eq!(seen.code, Some(0), "{seen:?}");
    says(&seen.out, &["Scanning", "fast/kn-1", "█", "\u{1b}[", "Verified"]);
    let kept = bed::beside_the_program("terminal-wait.txt");
    std::fs::write(&kept, &seen.out)?;
    let object = site.get(&bed.client).await?.data;
    assert_eq!(condition(&object, "FullyReplicated")["status"], "True");
    Ok(())
}

async fn a_disk_is_swapped_with_nothing_but_the_plugin(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let old = site.identity(&bed, NODE).await?;
    says(&plugin(&bed, "hold -n objects site-a kn-9", 1).await?, &["kn-9", "fast/kn-3"]);
    says(&plugin(&bed, "hold -n objects site-a kn-3 --dry-run", 0).await?, &["fast/kn-3"]);
    assert_eq!(annotations(&bed, &site).await?.get("garage.rajsingh.info/node-local-out-of-service"), None);
    says(&plugin(&bed, "hold -n objects site-a kn-3", 0).await?, &["--for hold", "do not touch the disk"]);
    says(&plugin(&bed, "wait -n objects site-a --for hold --timeout 5m", 0).await?, &["SafeToService"]);
    says(&plugin(&bed, "status -n objects site-a", 0).await?, &["SafeToService", "fast/kn-3"]);
    assert!(site.members(&bed).await?.iter().all(|member| member.node != NODE));
    // A second one is refused, by the plugin already.
    plugin(&bed, "hold -n objects site-a kn-2", 3).await?;

    site.swap_disks(&bed, NODE)?;
    plugin(&bed, "release -n objects site-a", 0).await?;
    let said = plugin(&bed, "wait -n objects site-a --for release --timeout 5m", 3).await?;
    says(&said, &["DifferentIdentity", &old]);
    says(&plugin(&bed, "replace -n objects site-a kn-3 --dry-run", 0).await?, &[&old]);
    says(&plugin(&bed, "replace -n objects site-a kn-3", 3).await?, &["--yes"]);
    let no = bed.plugin_on_a_terminal("replace -n objects site-a kn-3", "n\n").await?;
    assert_eq!(no.code, Some(3), "{no:?}");
    says(&no.out, &[&old, "[y/N]", "nothing was changed"]);
    let yes = bed.plugin_on_a_terminal("replace -n objects site-a kn-3", "y\n").await?;
    assert_eq!(yes.code, Some(0), "{yes:?}");
    says(&plugin(&bed, "wait -n objects site-a --for replacement --timeout 5m", 0).await?, &["Replaced"]);
    assert_ne!(site.identity(&bed, NODE).await?, old);

    plugin(&bed, "verify -n objects site-a", 0).await?;
    says(&plugin(&bed, "wait -n objects site-a --timeout 15m", 0).await?, &["Verified"]);
    Ok(())
}

async fn the_dashboard_and_the_documentation_find_what_they_look_for_on_the_site(
    bed: Arc<Bed>,
) -> TestResult {
    let site = site();
    let pods: Api<Pod> = Api::namespaced(bed.client.clone(), NAMESPACE);
    let ours = ListParams::default().labels("app.kubernetes.io/name=garage-holdfast");
    let addresses = pods.list(&ours).await?.into_iter().filter_map(|pod| pod.status?.pod_ip?.parse().ok());
    let mut targets: Vec<Target> =
        addresses.map(|ip| Target::new("garage-holdfast", SocketAddr::new(ip, 8080))).collect();
    assert_eq!(targets.len(), 2);
    for member in site.members(&bed).await? {
        targets.push(Target { token: Some(site.token.clone()), ..Target::new("garage", member.admin()) });
    }
    let prometheus = Prometheus::start(&targets, None).await?.unwrap();
    let deadline = Instant::now() + STEP;
    loop {
        let there = prometheus.names().await?;
        let (mut asked, mut empty) = (0, Vec::new());
        for Query { place, expression, finds } in of_dashboard().into_iter().chain(of_documentation()) {
            let found = prometheus.query(&expression).await.map_err(|error| format!("{place}: {error}"))?;
            // What counts something that never happened here has no series yet.
            if finds && prometheus.selected(&expression).await?.is_subset(&there) {
                asked += 1;
                if found.is_empty() {
                    empty.push(place);
                }
            }
        }
        // Whose metrics they are leads, and has looked at the site.
        if asked > 10 && empty.is_empty() {
            return Ok(());
        }
        assert!(
            Instant::now() < deadline,
            "{asked} queries have all of their metrics, and {empty:?} find nothing: {there:?}"
        );
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// What must be as it was after something was done to the product alone.
#[derive(Debug, PartialEq, Eq)]
struct Standing {
    launches: (usize, usize),
    replicated: Value,
    pods: BTreeSet<String>,
    layout: Value,
}

async fn standing(bed: &Bed, site: &Site) -> Result<Standing, Error> {
    let object = site.get(&bed.client).await?.data;
    let members = site.members(bed).await?;
    let launches = site.launches(bed)?;
    Ok(Standing {
        launches: (launches.tables, launches.blocks),
        replicated: condition(&object, "FullyReplicated").clone(),
        pods: members.iter().map(|member| member.uid.clone()).collect(),
        layout: site.ask(&members[0], "GetClusterLayout").await?["version"].clone(),
    })
}

/// Changes a label of the site and gives the product that runs now the time for two passes.
async fn seen_by_the_product(bed: &Bed, site: &Site, value: &str) -> TestResult {
    let label = format!("bed/touched={value}");
    bed.kubectl(&["-n", &site.namespace, "label", "--overwrite", "garagecluster", &site.name, &label])
        .await?;
    tokio::time::sleep(Duration::from_secs(45)).await;
    Ok(())
}

async fn an_upgrade_and_a_rollback_start_no_repair_and_void_nothing(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let before = standing(&bed, &site).await?;
    assert_eq!(before.replicated["status"], "True");
    let pods: BTreeSet<String> = bed.replicas().await?.into_iter().map(|replica| replica.pod).collect();
    bed.install(&["log.level=debug"]).await?;
    let upgraded: BTreeSet<String> = bed.replicas().await?.into_iter().map(|replica| replica.pod).collect();
    assert!(pods.is_disjoint(&upgraded), "the upgrade changed no Pod: {pods:?}");
    seen_by_the_product(&bed, &site, "upgraded").await?;
    assert_eq!(standing(&bed, &site).await?, before);

    bed.helm(&["rollback", NAMESPACE, "1", "--namespace", NAMESPACE, "--wait", "--timeout", "3m"]).await?;
    let again: BTreeSet<String> = bed.replicas().await?.into_iter().map(|replica| replica.pod).collect();
    assert!(upgraded.is_disjoint(&again), "the rollback changed no Pod: {upgraded:?}");
    seen_by_the_product(&bed, &site, "rolled-back").await?;
    assert_eq!(standing(&bed, &site).await?, before);
    // Both webhooks answer with the authority that they had.
    let old = bed
        .kubectl(&[
            "-n",
            "objects",
            "get",
            "garageclusters.v1beta1.garage.rajsingh.info",
            "site-a",
            "-o",
            "name",
        ])
        .await?;
    says(&old, &["site-a"]);
    let refused =
        site.annotate(&bed, "garage.rajsingh.info/node-local-out-of-service", Some("fast/kn-9")).await;
    says(&refused.unwrap_err().to_string(), &["denied the request", "kn-9"]);
    Ok(())
}

async fn after_an_uninstall_garage_runs_on_and_a_new_installation_takes_up_the_site(
    bed: Arc<Bed>,
) -> TestResult {
    let site = site();
    let before = standing(&bed, &site).await?;
    bed.helm(&["uninstall", NAMESPACE, "--namespace", NAMESPACE, "--wait", "--timeout", "3m"]).await?;
    let left = bed.kubectl(&["get", "crd", CRD, "-o", "name"]).await?;
    says(&left, &[CRD]);
    assert_eq!(standing(&bed, &site).await?, before, "Garage, its Pods and the object are as they were");
    // Without its webhook the other version cannot be read (upgrade.md says how to leave for good).
    let old =
        bed.kubectl(&["-n", "objects", "get", "garageclusters.v1beta1.garage.rajsingh.info", "site-a"]).await;
    says(&old.unwrap_err().to_string(), &["conversion webhook"]);

    bed.install(&[]).await?;
    seen_by_the_product(&bed, &site, "reinstalled").await?;
    assert_eq!(standing(&bed, &site).await?, before);
    bed.kubectl(&["-n", "objects", "get", "garageclusters.v1beta1.garage.rajsingh.info", "site-a"]).await?;
    Ok(())
}

/// Granted, and no request of the story above: each with the reason why it is needed all the same.
const NOT_SEEN: [(&str, &str, &str); 3] = [
    // The API server asks for it where the plugin OwnerReferencesPermissionEnforcement is on, which is no request.
    ("garage.rajsingh.info", "garageclusters/finalizers", "update"),
    // The authority is renewed after years; the suite `admission` makes it happen.
    ("", "secrets", "update"),
    // A Pod that was made from an older template, or came while a held member's label was back, and never ran.
    ("", "pods", "delete"),
];

async fn every_permission_is_used_and_nothing_else_is_needed(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let patch = async |kind: &str, name: &str, change: Value| {
        let change = change.to_string();
        bed.kubectl(&["-n", &site.namespace, "patch", kind, name, "--type=merge", "-p", &change]).await
    };
    // What the pools write when a spec changes or somebody else changes what is theirs.
    let services = bed.kubectl(&["-n", &site.namespace, "get", "services", "-o", "name"]).await?;
    for service in services.lines().filter_map(|line| line.strip_prefix("service/")) {
        patch("service", service, json!({"spec": {"selector": {"bed/astray": "yes"}}})).await?;
    }
    for change in [
        json!({"storage": {"podDisruptionBudget": {"enabled": true, "minAvailable": 1}}}),
        json!({"storage": {"podDisruptionBudget": {"enabled": false}}}),
        json!({"storage": {"podDisruptionBudget": {"enabled": true}}}),
        json!({"network": {"rpcTimeout": "11s"}}),
    ] {
        patch("garagecluster", &site.name, json!({"spec": change})).await?;
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    // The old configuration goes when nobody mounts it any more, and Pods are replaced when they are deleted.
    let pods = "garage.rajsingh.info/cluster=site-a";
    bed.kubectl(&["-n", &site.namespace, "delete", "pods", "-l", pods, "--wait=false"]).await?;
    let excused: BTreeSet<Permission> =
        NOT_SEEN.iter().map(|(group, resource, verb)| Permission::new(group, resource, verb)).collect();
    let granted = bed.granted().await?;
    let deadline = Instant::now() + STEP;
    loop {
        let asked = bed.asked_since(0)?;
        assert_eq!(asked.forbidden, BTreeSet::new(), "the roles lack something");
        let unused: Vec<String> = granted
            .difference(&asked.used)
            .filter(|permission| !excused.contains(permission))
            .map(ToString::to_string)
            .collect();
        if unused.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "granted, and never asked for: {unused:#?}");
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let mistaken: Vec<_> = excused.difference(&granted).collect();
    assert!(mistaken.is_empty(), "excused, but not granted: {mistaken:?}");
    site.wait_up_within(&bed, STEP).await?;
    Ok(())
}
