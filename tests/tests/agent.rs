//! The node agent against a real control plane: what a Pod sees, what the API server is told, and in which
//! order. The end-to-end suites lean on it, so it is compared here with what a kubelet does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_tests::agent::{Agent, AgentConfig, Image, ImageTable, PodInfo};
use holdfast_tests::bed::{self, Bed, assets, wait};
use holdfast_tests::network::connect_in;
use holdfast_tests::suite::{self, TestResult};
use holdfast_tests::test;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, ContainerStatus, Event, Namespace, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const SOON: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::run(
        "agent",
        &bed::Options::default(),
        vec![
            test!(a_node_is_registered_and_turns_ready),
            test!(a_pod_sees_its_environment_its_files_and_its_own_address),
            test!(a_garage_runs_with_its_configuration_at_its_true_path),
            test!(a_missing_marker_keeps_the_pod_from_starting_until_it_is_there),
            test!(an_unknown_image_is_named_and_the_pod_waits),
            test!(what_the_agent_does_not_do_is_refused_aloud),
            test!(a_crashing_container_is_started_again_with_back_off_and_counted),
            test!(a_killed_process_is_started_again_with_its_exit_code_kept),
            test!(a_deleted_pod_ends_gently_and_its_object_goes_last),
            test!(a_process_that_ignores_sigterm_is_killed_after_its_grace_period),
            test!(a_pod_whose_object_was_removed_by_force_still_ends),
            test!(rights_are_applied_or_said_not_to_be),
            test!(a_node_that_is_cut_off_still_starts_its_containers_again),
            test!(init_containers_run_one_after_the_other_before_the_rest),
            test!(a_pod_that_may_end_ends_with_its_phase),
            test!(a_probe_makes_a_container_ready_and_unready_and_restarts_it),
            test!(an_idle_pod_is_not_written_again),
            test!(a_changed_config_map_reaches_its_volume),
            test!(a_pulled_cable_is_silent_and_two_pods_can_be_kept_apart),
            test!(a_node_without_power_falls_silent_and_comes_back_with_new_addresses),
        ],
    )
}

/// Two Nodes for all tests.
struct Site {
    agents: [Agent; 2],
}

static SITE: OnceCell<Site> = OnceCell::const_new();

async fn site(bed: &Bed) -> &'static Site {
    SITE.get_or_init(|| async {
        let shell = Image { entrypoint: vec!["/bin/sh".to_owned(), "-c".to_owned()], ..Image::default() };
        let images = Arc::new(
            ImageTable::default()
                .with("bed/shell:1", shell)
                .with("dxflrs/garage:v2.5.0", Image::garage(assets::garage("2.5.0").unwrap())),
        );
        let agent = |name: &'static str| {
            let config = AgentConfig::new(
                name,
                bed.client.clone(),
                bed.network.clone(),
                images.clone(),
                bed.disks.host_root(name),
                &bed.root,
            );
            async move { Agent::start(config).await.unwrap() }
        };
        Site { agents: [agent("kn-1").await, agent("kn-2").await] }
    })
    .await
}

/// A Pod of one shell container on a Node; `change` may change anything of it.
fn shell_pod(name: &str, node: &str, script: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"who": name}},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 10,
            "containers": [{"name": "main", "image": "bed/shell:1", "args": [script]}],
        },
    });
    change(&mut pod);
    pod
}

struct Test<'a> {
    bed: &'a Bed,
    site: &'static Site,
    namespace: String,
    pods: Api<Pod>,
}

/// A namespace of its own for a test, with the service account that admission asks for.
async fn begin<'a>(bed: &'a Bed, namespace: &str) -> Test<'a> {
    let site = site(bed).await;
    let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
    Api::<Namespace>::all(bed.client.clone()).create(&PostParams::default(), &object).await.unwrap();
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(bed.client.clone(), namespace);
    wait::until(accounts, "the default service account", SOON, |seen| {
        seen.get("default").map(drop).ok_or_else(|| "not there".to_owned())
    })
    .await
    .unwrap();
    Test { bed, site, namespace: namespace.to_owned(), pods: Api::namespaced(bed.client.clone(), namespace) }
}

impl Test<'_> {
    async fn create(&self, pod: Value) -> Pod {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods.create(&PostParams::default(), &pod).await.unwrap()
    }

    /// Waits until the Pod's status is as wanted.
    async fn until(&self, name: &str, what: &str, judge: impl Fn(&Pod) -> bool) -> Pod {
        wait::until(self.pods.clone(), what, SOON, |seen| {
            let pod = seen.get(name).ok_or_else(|| format!("{name} is not there"))?;
            if judge(pod) { Ok(pod.clone()) } else { Err(serde_json::to_string(&pod.status).unwrap()) }
        })
        .await
        .unwrap()
    }

    async fn until_gone(&self, name: &str) {
        wait::until(self.pods.clone(), "the pod's object to go", SOON, |seen| {
            if seen.get(name).is_none() { Ok(()) } else { Err(format!("{name} is still there")) }
        })
        .await
        .unwrap();
    }

    async fn until_event(&self, reason: &str, part: &str) -> Event {
        let events: Api<Event> = Api::namespaced(self.bed.client.clone(), &self.namespace);
        wait::until(events, reason, SOON, |seen| {
            let fits = |event: &&Event| {
                event.reason.as_deref() == Some(reason)
                    && event.message.as_deref().unwrap_or_default().contains(part)
            };
            seen.iter().find(fits).cloned().ok_or_else(|| {
                seen.iter()
                    .map(|event| event.message.clone().unwrap_or_default())
                    .collect::<Vec<_>>()
                    .join("; ")
            })
        })
        .await
        .unwrap()
    }

    fn info(&self, name: &str) -> PodInfo {
        self.site.agents.iter().find_map(|agent| agent.pod(&self.namespace, name)).unwrap()
    }

    fn log(&self, name: &str, restart: i32) -> String {
        let file = format!("{}_{name}_main.{restart}.log", self.namespace);
        std::fs::read_to_string(self.bed.logs.join("pods").join(file)).unwrap_or_default()
    }

    fn host(&self, path: &str) -> PathBuf {
        let path = self.bed.disks.path("kn-1", path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    async fn delete(&self, name: &str) {
        self.pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

fn main_status(pod: &Pod) -> ContainerStatus {
    let status = pod.status.clone().unwrap_or_default();
    status.container_statuses.unwrap_or_default().into_iter().next().unwrap_or_default()
}

fn condition(pod: &Pod, type_: &str) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_).map(|condition| condition.status.clone())
}

fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").as_deref() == Some("True")
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn ip(pod: &Pod) -> IpAddr {
    pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).unwrap().parse().unwrap()
}

async fn eventually(what: &str, mut judge: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !judge() {
        assert!(Instant::now() < end, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn a_node_is_registered_and_turns_ready(bed: Arc<Bed>) -> TestResult {
    let site = site(&bed).await;
    let nodes: Api<Node> = Api::all(bed.client.clone());
    let node = wait::until(nodes.clone(), "the node to be usable", SOON, |seen| {
        let node = seen.get("kn-1").ok_or("no node")?;
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        if taints.is_empty() { Ok(node.clone()) } else { Err(format!("{taints:?}")) }
    })
    .await?;
    let status = node.status.unwrap();
    let ready =
        status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready").cloned().unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("True", Some("KubeletReady")));
    assert_eq!(status.addresses.unwrap()[0].address, site.agents[0].ip().to_string());
    assert_eq!(node.metadata.labels.unwrap()["kubernetes.io/hostname"], "kn-1");

    let leases: Api<Lease> = Api::namespaced(bed.client.clone(), "kube-node-lease");
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    let first = wait::until(leases.clone(), "a lease", SOON, |seen| {
        seen.get("kn-1").and_then(renewed).ok_or("none".into())
    })
    .await?;
    wait::until(leases, "a renewed lease", SOON, |seen| {
        if seen.get("kn-1").and_then(renewed) > Some(first.clone()) { Ok(()) } else { Err("not yet".into()) }
    })
    .await?;
    Ok(())
}

async fn a_pod_sees_its_environment_its_files_and_its_own_address(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "sees").await;
    bed.kubectl(&["-n", "sees", "create", "secret", "generic", "s", "--from-literal=k=secret-value"]).await?;
    bed.kubectl(&[
        "-n",
        "sees",
        "create",
        "configmap",
        "m",
        "--from-literal=a.txt=content",
        "--from-literal=B=b",
    ])
    .await?;
    let script = "echo IP=$IP REF=$REF FROM=$B ARG=$0; echo K=$K HOST=$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT; \
        cat /m/renamed; echo; stat -Lc %a /s/k; cat /d/labels; echo; hostname; pwd; ls /data; \
        (touch /m/x || echo map-ro); (touch /ro/x || echo mount-ro); (touch /x || echo root-ro); touch /data/x && echo data-rw; \
        df -k /e | tail -1; cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo; \
        echo TOKEN=$(cat /var/run/secrets/kubernetes.io/serviceaccount/token); \
        test -s /var/run/secrets/kubernetes.io/serviceaccount/ca.crt && echo has-ca; echo pid $$$$; grep -c . /proc/mounts; \
        echo end; sleep 1000";
    test.create(shell_pod("p", "kn-1", script, |pod| {
        pod["spec"]["volumes"] = json!([
            {"name": "m", "configMap": {"name": "m", "items": [{"key": "a.txt", "path": "renamed"}]}},
            {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}},
            {"name": "d", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"name": "data", "hostPath": {"path": "/srv/sees", "type": "DirectoryOrCreate"}},
            {"name": "e", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
        ]);
        let container = &mut pod["spec"]["containers"][0];
        container["args"] = json!([script, "$(IP)"]);
        container["workingDir"] = json!("/work");
        container["securityContext"] = json!({"readOnlyRootFilesystem": true});
        container["envFrom"] = json!([{"configMapRef": {"name": "m"}}]);
        container["env"] = json!([
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "REF", "value": "$(K)-$(NOBODY)"},
        ]);
        container["volumeMounts"] = json!([
            {"name": "m", "mountPath": "/m"}, {"name": "s", "mountPath": "/s"}, {"name": "d", "mountPath": "/d"},
            {"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/ro", "readOnly": true},
            {"name": "e", "mountPath": "/e"},
        ]);
    }))
    .await;
    let pod = test.until("p", "a ready pod", is_ready).await;
    eventually("the end of the output", || test.log("p", 0).contains("\nend\n")).await;
    let log = test.log("p", 0);
    let ip = ip(&pod);
    for part in [
        format!("IP={ip} REF=secret-value-$(NOBODY) FROM=b ARG={ip}\n"),
        "K=secret-value HOST=10.77.0.1:6443\ncontent\n400\n".to_owned(),
        "who=\"p\"\np\n/work\n".to_owned(),
        "map-ro\n".to_owned(),
        "mount-ro\n".to_owned(),
        "root-ro\n".to_owned(),
        "data-rw\n".to_owned(),
        " 8192 ".to_owned(),
        "\nsees\n".to_owned(),
        "has-ca\npid 1\n".to_owned(),
    ] {
        assert!(log.contains(&part), "{part:?} is not in:\n{log}");
    }
    assert!(bed.disks.path("kn-1", "/srv/sees/x").exists(), "a HostPath is the Node's own");

    // The token is of this Pod's service account, and the API server knows it.
    let token = log.split("TOKEN=").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    let said = bed.kubectl(&["--token", token, "auth", "whoami", "-o", "json"]).await?;
    assert!(said.contains("system:serviceaccount:sees:default"), "{said}");

    let status = pod.status.clone().unwrap();
    assert_eq!(status.host_ip, Some(test.site.agents[0].ip().to_string()));
    assert!(status.start_time.is_some() && status.pod_ips.unwrap()[0].ip == ip.to_string());
    for type_ in ["PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"] {
        assert!(condition(&pod, type_).is_none_or(|status| status == "True"), "{type_}");
    }
    let main = main_status(&pod);
    assert!(
        main.ready && main.started == Some(true) && main.restart_count == 0 && main.container_id.is_some()
    );
    Ok(())
}

async fn a_garage_runs_with_its_configuration_at_its_true_path(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "garage").await;
    for disk in ["/srv/g/meta", "/srv/g/data"] {
        bed.disks.mount_marked("kn-1", disk, 64 << 20)?;
    }
    let toml = "metadata_dir = \"/data/metadata\"\ndata_dir = \"/data/data\"\nreplication_factor = 3\n\
        rpc_bind_addr = \"[::]:3901\"\n[s3_api]\ns3_region = \"garage\"\napi_bind_addr = \"[::]:3900\"\n\
        [admin]\napi_bind_addr = \"[::]:3903\"\n";
    let map: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "c"}, "data": {"garage.toml": toml}}))?;
    Api::<ConfigMap>::namespaced(bed.client.clone(), "garage").create(&PostParams::default(), &map).await?;
    let rpc_secret = format!("--from-literal=rpc-secret={}", "ab".repeat(32));
    bed.kubectl(&["-n", "garage", "create", "secret", "generic", "rpc", &rpc_secret]).await?;
    test.create(shell_pod("g", "kn-1", "", |pod| {
        let marker = |disk: &str| json!({"path": format!("/srv/g/{disk}/.garage-volume-id"), "type": "File"});
        pod["spec"]["volumes"] = json!([
            {"name": "config", "configMap": {"name": "c"}},
            {"name": "rpc", "secret": {"secretName": "rpc", "defaultMode": 0o600}},
            {"name": "metadata", "hostPath": {"path": "/srv/g/meta", "type": "Directory"}},
            {"name": "data", "hostPath": {"path": "/srv/g/data", "type": "Directory"}},
            {"name": "verify-data", "hostPath": marker("data")},
        ]);
        pod["spec"]["containers"] = json!([{
            "name": "main", "image": "dxflrs/garage:v2.5.0", "command": ["/garage", "server"],
            "env": [
                {"name": "GARAGE_CONFIG_FILE", "value": "/etc/garage/garage.toml"},
                {"name": "GARAGE_RPC_SECRET_FILE", "value": "/secrets/rpc/rpc-secret"},
                {"name": "GARAGE_ADMIN_TOKEN", "value": "admin-token"},
            ],
            "volumeMounts": [
                {"name": "config", "mountPath": "/etc/garage", "readOnly": true},
                {"name": "rpc", "mountPath": "/secrets/rpc", "readOnly": true},
                {"name": "metadata", "mountPath": "/data/metadata"},
                {"name": "data", "mountPath": "/data/data"},
                {"name": "verify-data", "mountPath": "/var/run/garage-volume-markers/data", "readOnly": true},
            ],
            "startupProbe": {"tcpSocket": {"port": "admin"}, "periodSeconds": 1},
            "readinessProbe": {"httpGet": {"port": 3903, "path": "/metrics"}, "periodSeconds": 1},
            "ports": [{"name": "admin", "containerPort": 3903}],
        }]);
    }))
    .await;
    let pod = test.until("g", "a ready Garage", is_ready).await;
    // Asked from the bed's own address, as the product's reconciler asks from its Pod.
    let url = format!("http://{}:3903/v2/GetNodeInfo?node=self", ip(&pod));
    let answer = reqwest::Client::new().get(url).header("Authorization", "Bearer admin-token").send().await?;
    let answer: Value = answer.json().await?;
    assert!(answer.to_string().contains("v2.5.0") || answer.to_string().contains("2.5.0"), "{answer}");
    let info = test.info("g");
    let pid = info.containers[0].pid.unwrap();
    // The main process is Garage itself, seen from the bed.
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
    assert!(command.starts_with("/garage\0server"), "{command}");
    assert!(bed.disks.path("kn-1", "/srv/g/meta/node_key").exists());
    test.delete("g").await;
    test.until_gone("g").await;
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "an object that is gone has no process");
    Ok(())
}

async fn a_missing_marker_keeps_the_pod_from_starting_until_it_is_there(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "marker").await;
    let folder = test.host("/srv/marker");
    test.create(shell_pod("p", "kn-1", "sleep 1000", |pod| {
        pod["spec"]["volumes"] =
            json!([{"name": "verify-data", "hostPath": {"path": "/srv/marker/.garage-volume-id", "type": "File"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "verify-data", "mountPath": "/marker", "readOnly": true}]);
    }))
    .await;
    let event = test.until_event("FailedMount", "/srv/marker/.garage-volume-id is not a file").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.involved_object.name.as_deref(), Some("p"));
    // The event comes before the status.
    let pod = test
        .until("p", "a container that waits", |pod| {
            let waiting = main_status(pod).state.and_then(|state| state.waiting);
            waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("ContainerCreating"))
        })
        .await;
    assert_eq!(phase(&pod), "Pending");
    assert_eq!(condition(&pod, "PodReadyToStartContainers").as_deref(), Some("False"));
    std::fs::write(folder.join(".garage-volume-id"), "")?;
    test.until("p", "a ready pod", is_ready).await;
    Ok(())
}

async fn an_unknown_image_is_named_and_the_pod_waits(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "image").await;
    test.create(shell_pod("p", "kn-1", "", |pod| {
        pod["spec"]["containers"][0]["image"] = json!("nobody/none:1");
    }))
    .await;
    let pod = test
        .until("p", "a failed pull", |pod| {
            main_status(pod).state.and_then(|state| state.waiting).is_some_and(|w| w.message.is_some())
        })
        .await;
    let waiting = main_status(&pod).state.unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("ImagePullBackOff"));
    assert!(waiting.message.unwrap().contains("nobody/none:1"));
    // A Pod that never started goes at once.
    test.delete("p").await;
    test.until_gone("p").await;
    Ok(())
}

async fn what_the_agent_does_not_do_is_refused_aloud(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "refused").await;
    test.create(shell_pod("p", "kn-1", "sleep 1000", |pod| {
        pod["spec"]["volumes"] = json!([{"name": "far", "nfs": {"server": "s", "path": "/"}}]);
    }))
    .await;
    test.until_event("Failed", "volume far: nfs is not supported").await;
    let pod = test
        .until("p", "a refusal", |pod| {
            main_status(pod).state.and_then(|state| state.waiting).is_some_and(|w| w.message.is_some())
        })
        .await;
    assert_eq!(
        main_status(&pod).state.unwrap().waiting.unwrap().reason.as_deref(),
        Some("CreateContainerConfigError")
    );
    Ok(())
}

async fn a_crashing_container_is_started_again_with_back_off_and_counted(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "crash").await;
    test.create(shell_pod("p", "kn-1", "echo last words >/dev/termination-log; exit 3", |_| {})).await;
    let pod = test
        .until("p", "a second restart in back-off", |pod| {
            let main = main_status(pod);
            main.restart_count >= 1 && main.state.and_then(|state| state.waiting).is_some()
        })
        .await;
    let main = main_status(&pod);
    assert_eq!(main.state.unwrap().waiting.unwrap().reason.as_deref(), Some("CrashLoopBackOff"));
    let last = main.last_state.unwrap().terminated.unwrap();
    assert_eq!(
        (last.exit_code, last.reason.as_deref(), last.message.as_deref()),
        (3, Some("Error"), Some("last words"))
    );
    assert_eq!(phase(&pod), "Running");
    assert!(!is_ready(&pod));
    Ok(())
}

async fn a_killed_process_is_started_again_with_its_exit_code_kept(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "killed").await;
    test.create(shell_pod("p", "kn-1", "echo up; sleep 1000", |_| {})).await;
    let before = test.until("p", "a ready pod", is_ready).await;
    let pid = test.site.agents[0].pid_of("killed", "p").unwrap();
    test.site.agents[0].signal("killed", "p", Signal::SIGKILL)?;
    let pod = test.until("p", "a restart", |pod| is_ready(pod) && main_status(pod).restart_count == 1).await;
    let last = main_status(&pod).last_state.unwrap().terminated.unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("Error")));
    assert_ne!(main_status(&pod).container_id, main_status(&before).container_id);
    assert_ne!(test.site.agents[0].pid_of("killed", "p"), Some(pid));
    assert_eq!(ip(&pod), ip(&before), "a restarted container keeps the Pod's address");
    assert_eq!(test.log("p", 1), "up\n");
    Ok(())
}

async fn a_deleted_pod_ends_gently_and_its_object_goes_last(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "gentle").await;
    let folder = test.host("/srv/gentle");
    let script = "trap 'echo term >>/data/order; sleep 2; echo end >>/data/order; exit 0' TERM; \
        while :; do sleep 0.1; done";
    test.create(shell_pod("p", "kn-1", script, |pod| {
        pod["spec"]["volumes"] = json!([{"name": "d", "hostPath": {"path": "/srv/gentle"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "d", "mountPath": "/data"}]);
        pod["spec"]["containers"][0]["lifecycle"] =
            json!({"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >>/data/order"]}}});
    }))
    .await;
    test.until("p", "a ready pod", is_ready).await;
    let info = test.info("p");
    test.delete("p").await;
    let order = || std::fs::read_to_string(folder.join("order")).unwrap_or_default();
    eventually("SIGTERM", || order().contains("term")).await;
    let pod = test.pods.get("p").await?;
    assert!(pod.metadata.deletion_timestamp.is_some(), "the object stays while the process ends");
    assert!(is_ready(&pod), "a process that still runs is still ready");
    test.until_gone("p").await;
    assert_eq!(order(), "hook\nterm\nend\n");
    assert!(bed.network.pod(&info.uid).is_none());
    Ok(())
}

async fn a_process_that_ignores_sigterm_is_killed_after_its_grace_period(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "stubborn").await;
    let script = "trap '' TERM; echo up; while :; do sleep 0.1; done";
    test.create(shell_pod("p", "kn-1", script, |pod| {
        pod["spec"]["terminationGracePeriodSeconds"] = json!(3);
    }))
    .await;
    test.until("p", "a ready pod", is_ready).await;
    eventually("the trap", || test.log("p", 0).contains("up")).await;
    let begin = Instant::now();
    test.delete("p").await;
    test.until_gone("p").await;
    let took = begin.elapsed();
    assert!(took > Duration::from_millis(2500) && took < Duration::from_secs(10), "{took:?}");
    Ok(())
}

async fn a_pod_whose_object_was_removed_by_force_still_ends(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "forced").await;
    test.create(shell_pod("p", "kn-1", "trap 'exit 0' TERM; while :; do sleep 0.1; done", |_| {})).await;
    test.until("p", "a ready pod", is_ready).await;
    let info = test.info("p");
    test.pods.delete("p", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
    test.until_gone("p").await;
    let process = format!("/proc/{}", info.containers[0].pid.unwrap());
    eventually("the end of the process", || !std::path::Path::new(&process).exists()).await;
    eventually("the end of its network", || bed.network.pod(&info.uid).is_none()).await;
    Ok(())
}

async fn rights_are_applied_or_said_not_to_be(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "rights").await;
    let script = "echo $(id -u):$(id -g) $(grep CapEff /proc/self/status) $(grep NoNewPrivs /proc/self/status); \
        echo written >/e/x && stat -c %g /e/x; echo end; sleep 1000";
    test.create(shell_pod("p", "kn-1", script, |pod| {
        pod["spec"]["securityContext"] = json!({"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 3000,
            "seccompProfile": {"type": "RuntimeDefault"}});
        pod["spec"]["volumes"] = json!([{"name": "e", "emptyDir": {}}]);
        let container = &mut pod["spec"]["containers"][0];
        container["volumeMounts"] = json!([{"name": "e", "mountPath": "/e"}]);
        container["securityContext"] = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    }))
    .await;
    test.until("p", "a ready pod", is_ready).await;
    eventually("the end of the output", || test.log("p", 0).contains("end\n")).await;
    let log = test.log("p", 0);
    assert!(log.contains("CapEff: 0000000000000000 NoNewPrivs: 1"), "{log}");
    let notes = test.info("p").notes;
    assert!(notes.iter().any(|note| note.contains("seccompProfile")), "{notes:?}");
    // A bed of root has every user, one of an unprivileged user has that one alone.
    let alone = std::fs::read_to_string("/proc/self/uid_map")?.split_whitespace().nth(2) == Some("1");
    assert_eq!(notes.iter().any(|note| note.contains("runAsUser")), alone, "{notes:?}");
    assert!(log.starts_with(if alone { "0:0 " } else { "65532:65532 " }), "{log}");
    test.create(shell_pod("root", "kn-1", "sleep 1000", |pod| {
        pod["spec"]["securityContext"] = json!({"runAsNonRoot": true});
    }))
    .await;
    test.until_event("Failed", "container has runAsNonRoot and image will run as root").await;
    Ok(())
}

async fn a_node_that_is_cut_off_still_starts_its_containers_again(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "cutoff").await;
    bed.kubectl(&["-n", "cutoff", "create", "secret", "generic", "s", "--from-literal=k=v"]).await?;
    test.create(shell_pod("p", "kn-2", "echo K=$K; sleep 1000", |pod| {
        pod["spec"]["containers"][0]["env"] =
            json!([{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
    }))
    .await;
    test.until("p", "a ready pod", is_ready).await;
    bed.network.set_node_link("kn-2", false)?;
    test.site.agents[1].signal("cutoff", "p", Signal::SIGKILL)?;
    eventually("the restart", || test.log("p", 1).contains("K=v")).await;
    assert_eq!(
        main_status(&test.pods.get("p").await?).restart_count,
        0,
        "the API server does not hear of it"
    );
    bed.network.set_node_link("kn-2", true)?;
    test.until("p", "the restart to be told", |pod| main_status(pod).restart_count == 1).await;
    Ok(())
}

async fn init_containers_run_one_after_the_other_before_the_rest(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "init").await;
    let folder = test.host("/srv/init");
    let mount = json!([{"name": "d", "mountPath": "/data"}]);
    let init = |name: &str, script: &str| json!({"name": name, "image": "bed/shell:1", "args": [script], "volumeMounts": mount});
    test.create(shell_pod("p", "kn-1", "echo main >>/data/order; sleep 1000", |pod| {
        pod["spec"]["volumes"] = json!([{"name": "d", "hostPath": {"path": "/srv/init"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = mount.clone();
        pod["spec"]["initContainers"] = json!([
            init("one", "echo one >>/data/order; test -e /data/tried || { touch /data/tried; exit 1; }"),
            init("two", "echo two >>/data/order"),
        ]);
    }))
    .await;
    let pod = test.until("p", "a ready pod", is_ready).await;
    eventually("the main container", || {
        folder.join("order").exists()
            && std::fs::read_to_string(folder.join("order")).unwrap().contains("main")
    })
    .await;
    assert_eq!(std::fs::read_to_string(folder.join("order"))?, "one\none\ntwo\nmain\n");
    let inits = pod.status.unwrap().init_container_statuses.unwrap();
    assert_eq!(inits[0].restart_count, 1);
    assert!(
        inits.iter().all(|status| status.ready
            && status.state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code == 0)
    );
    Ok(())
}

async fn a_pod_that_may_end_ends_with_its_phase(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "ends").await;
    for (name, script, expected) in [("good", "exit 0", "Succeeded"), ("bad", "exit 1", "Failed")] {
        test.create(shell_pod(name, "kn-1", script, |pod| pod["spec"]["restartPolicy"] = json!("Never")))
            .await;
        let pod = test.until(name, expected, |pod| phase(pod) == expected).await;
        assert_eq!(main_status(&pod).restart_count, 0);
        test.delete(name).await;
        test.until_gone(name).await;
    }
    Ok(())
}

async fn a_probe_makes_a_container_ready_and_unready_and_restarts_it(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "probes").await;
    let folder = test.host("/srv/probes");
    std::fs::write(folder.join("alive"), "")?;
    let check = |file: &str| json!({"exec": {"command": ["test", "-e", format!("/data/{file}")]}, "periodSeconds": 1, "failureThreshold": 1});
    test.create(shell_pod("p", "kn-1", "sleep 1000", |pod| {
        pod["spec"]["volumes"] = json!([{"name": "d", "hostPath": {"path": "/srv/probes"}}]);
        let container = &mut pod["spec"]["containers"][0];
        container["volumeMounts"] = json!([{"name": "d", "mountPath": "/data"}]);
        container["readinessProbe"] = check("ready");
        container["livenessProbe"] = check("alive");
        container["livenessProbe"]["terminationGracePeriodSeconds"] = json!(1);
    }))
    .await;
    let pod = test.until("p", "a running pod", |pod| phase(pod) == "Running").await;
    assert!(!is_ready(&pod), "not ready before the probe says so");
    std::fs::write(folder.join("ready"), "")?;
    let pod = test.until("p", "a ready pod", is_ready).await;
    assert_eq!(main_status(&pod).restart_count, 0);
    std::fs::remove_file(folder.join("ready"))?;
    test.until("p", "an unready pod", |pod| !is_ready(pod)).await;
    test.until_event("Unhealthy", "Readiness probe failed").await;
    std::fs::remove_file(folder.join("alive"))?;
    let pod = test.until("p", "a restart", |pod| main_status(pod).restart_count > 0).await;
    assert_eq!(main_status(&pod).last_state.unwrap().terminated.unwrap().exit_code, 137);
    test.until_event("Killing", "failed liveness probe").await;
    Ok(())
}

async fn an_idle_pod_is_not_written_again(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "idle").await;
    test.create(shell_pod("p", "kn-1", "sleep 1000", |_| {})).await;
    let pod = test.until("p", "a ready pod", is_ready).await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(test.pods.get("p").await?.resource_version(), pod.resource_version());
    Ok(())
}

async fn a_changed_config_map_reaches_its_volume(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "refresh").await;
    bed.kubectl(&["-n", "refresh", "create", "configmap", "m", "--from-literal=a=old"]).await?;
    test.create(shell_pod("p", "kn-1", "while :; do cat /m/a; echo; sleep 0.2; done", |pod| {
        pod["spec"]["volumes"] = json!([{"name": "m", "configMap": {"name": "m"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "m", "mountPath": "/m"}]);
    }))
    .await;
    test.until("p", "a ready pod", is_ready).await;
    eventually("the old content", || test.log("p", 0).contains("old")).await;
    let maps: Api<ConfigMap> = Api::namespaced(bed.client.clone(), "refresh");
    maps.patch("m", &PatchParams::default(), &Patch::Merge(json!({"data": {"a": "new"}}))).await?;
    eventually("the new content", || test.log("p", 0).contains("new")).await;
    Ok(())
}

async fn a_pulled_cable_is_silent_and_two_pods_can_be_kept_apart(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "cables").await;
    let mut pods = BTreeMap::new();
    for (name, node) in [("a", "kn-1"), ("b", "kn-2"), ("c", "kn-2")] {
        test.create(shell_pod(name, node, "sleep 1000", |_| {})).await;
        let pod = test.until(name, "a ready pod", is_ready).await;
        pods.insert(name, (pod.uid().unwrap(), ip(&pod)));
    }
    let limit = Duration::from_secs(2);
    let reaches = |from: &str, to: &str| {
        let netns = bed.network.pod(&pods[from].0).unwrap().netns;
        // Nobody listens: a refusal is an answer, silence or no route is none.
        let error = connect_in(&netns, SocketAddr::new(pods[to].1, 9), limit).unwrap_err();
        error.kind() == std::io::ErrorKind::ConnectionRefused
    };
    assert!(reaches("a", "b") && reaches("b", "a") && reaches("b", "c"));

    bed.network.isolate(&pods["a"].0, &pods["b"].0, true)?;
    assert!(!reaches("a", "b") && !reaches("b", "a"));
    assert!(reaches("a", "c") && reaches("c", "a") && reaches("b", "c"));
    bed.network.isolate(&pods["a"].0, &pods["b"].0, false)?;
    assert!(reaches("a", "b"));

    bed.network.set_pod_link(&pods["c"].0, false)?;
    assert!(!reaches("c", "b") && reaches("a", "b"));
    bed.network.set_pod_link(&pods["c"].0, true)?;
    assert!(reaches("c", "b"));

    // A Node's cable: its Pods reach each other, and the agent falls silent.
    bed.network.set_node_link("kn-2", false)?;
    assert!(!reaches("a", "b") && reaches("b", "c"));
    test.delete("c").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(test.pods.get("c").await.is_ok(), "a Node that is cut off does not hear of a deletion");
    assert!(test.site.agents[1].pid_of("cables", "c").is_some());
    bed.network.set_node_link("kn-2", true)?;
    test.until_gone("c").await;
    assert!(reaches("a", "b"));
    Ok(())
}

async fn a_node_without_power_falls_silent_and_comes_back_with_new_addresses(bed: Arc<Bed>) -> TestResult {
    let test = begin(&bed, "power").await;
    test.create(shell_pod("p", "kn-2", "sleep 1000", |_| {})).await;
    let before = test.until("p", "a ready pod", is_ready).await;
    let agent = &test.site.agents[1];
    let pid = agent.pid_of("power", "p").unwrap();
    agent.power_off().await;
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert!(agent.pods().is_empty() && !agent.is_online());
    let leases: Api<Lease> = Api::namespaced(bed.client.clone(), "kube-node-lease");
    let renewed = leases.get("kn-2").await?.spec.unwrap().renew_time;
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(leases.get("kn-2").await?.spec.unwrap().renew_time, renewed);
    assert_eq!(
        test.pods.get("p").await?.resource_version(),
        before.resource_version(),
        "nobody told its end"
    );

    agent.power_on();
    let after =
        test.until("p", "a restarted pod", |pod| is_ready(pod) && main_status(pod).restart_count == 1).await;
    assert_eq!(after.uid(), before.uid());
    assert_ne!(ip(&after), ip(&before));
    assert_eq!(main_status(&after).last_state.unwrap().terminated.unwrap().exit_code, 255);
    let nodes: Api<Node> = Api::all(bed.client.clone());
    assert!(nodes.list(&ListParams::default()).await?.items.len() >= 2);
    Ok(())
}
