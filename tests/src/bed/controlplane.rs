//! A real Kubernetes control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.
//!
//! Ports are fixed: each bed has a network namespace of its own.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::bed::assets;
use crate::bed::certificates::Certificates;
use crate::bed::daemon::Daemon;
use crate::error::{Doing as _, Error, Result};

/// The API server's port, on every address of the bed.
pub const API_PORT: u16 = 6443;
/// The first address of the Service range: what `kubernetes.default.svc` is called. Nothing routes to it;
/// Pods get the advertised address instead.
const SERVICE_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
/// How long a component that ended by itself stays down.
const REVIVED_AFTER: Duration = Duration::from_millis(500);
const READY_WITHIN: Duration = Duration::from_secs(120);

/// One of the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// etcd
    Etcd,
    /// kube-apiserver
    ApiServer,
    /// kube-controller-manager
    ControllerManager,
    /// kube-scheduler
    Scheduler,
}

/// The running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    /// The authority and the files made for it.
    pub certificates: Certificates,
    /// Kubeconfig of the administrator (group `system:masters`); reaches the API server at the advertised
    /// address, so it works in every Pod's network namespace too.
    pub kubeconfig: PathBuf,
    /// The address that the `kubernetes` Service's endpoints have.
    pub address: IpAddr,
    /// The API server's audit log, one JSON object a line.
    pub audit_log: PathBuf,
    version: String,
    daemons: Arc<[Mutex<Daemon>; 4]>,
}

impl ControlPlane {
    /// Starts everything and waits until `/readyz` answers (about 3 s on 2 idle cores).
    ///
    /// `root` is the bed's folder, `logs` where the logs go, `address` the bed's own address on the bridge
    /// that Pods reach, `version` a Kubernetes version whose assets are there.
    pub async fn start(root: &Path, logs: &Path, address: IpAddr, version: &str) -> Result<Self> {
        let folder = root.join("control-plane");
        let make = |path: &Path| std::fs::create_dir_all(path).doing(|| format!("making {}", path.display()));
        make(&folder)?;
        make(logs)?;
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let certificates =
            Certificates::make(&folder.join("certificates"), &[localhost, address, SERVICE_IP])?;

        let write = |name: &str, text: String| -> Result<PathBuf> {
            let path = folder.join(name);
            std::fs::write(&path, text).doing(|| format!("writing {}", path.display()))?;
            Ok(path)
        };
        // Fixed tokens: nothing outside of the bed reaches its API server.
        let users = ["bed-administrator", "kube-controller-manager", "kube-scheduler"];
        let tokens = users.map(|user| format!("token-of-{user},{user},{user},system:masters\n")).concat();
        let tokens = write("tokens.csv", tokens)?;
        let kubeconfig_of = |user: &str| {
            write(
                &format!("{user}.kubeconfig"),
                kubeconfig(&format!("https://{address}:{API_PORT}"), &certificates.ca, user),
            )
        };
        let kubeconfig = kubeconfig_of(users[0])?;
        let audit_policy = write("audit-policy.yaml", AUDIT_POLICY.to_owned())?;
        let audit_log = logs.join("audit.jsonl");

        let daemon = |name: &str, from: &str, args: Vec<String>| -> Result<Mutex<Daemon>> {
            Ok(Mutex::new(Daemon::new(name, assets::control_plane(name, from)?, args, logs)))
        };
        let daemons = [
            daemon("etcd", assets::KUBERNETES, etcd_args(&folder.join("etcd")))?,
            daemon(
                "kube-apiserver",
                version,
                api_server_args(address, &certificates, &tokens, &audit_policy, &audit_log),
            )?,
            daemon(
                "kube-controller-manager",
                version,
                controller_manager_args(&kubeconfig_of(users[1])?, &certificates),
            )?,
            daemon("kube-scheduler", version, scheduler_args(&kubeconfig_of(users[2])?))?,
        ];
        let control_plane = Self {
            certificates,
            kubeconfig,
            address,
            audit_log,
            version: version.to_owned(),
            daemons: Arc::new(daemons),
        };
        for component in
            [Component::Etcd, Component::ApiServer, Component::ControllerManager, Component::Scheduler]
        {
            control_plane.start_component(component).await?;
            if component == Component::ApiServer {
                control_plane.wait_ready().await?;
            }
        }
        let daemons = control_plane.daemons.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(REVIVED_AFTER).await;
                for daemon in daemons.iter() {
                    daemon.lock().await.revive();
                }
            }
        });
        Ok(control_plane)
    }

    /// Kubernetes' version, such as `1.37.2`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Starts a component again; returns at once.
    pub async fn start_component(&self, component: Component) -> Result<()> {
        self.daemon(component).lock().await.start()
    }

    /// SIGKILL, and waits for the end.
    pub async fn kill(&self, component: Component) -> Result<()> {
        self.daemon(component).lock().await.kill().await
    }

    /// SIGTERM, and waits for the end.
    pub async fn terminate(&self, component: Component) -> Result<()> {
        self.daemon(component).lock().await.terminate().await
    }

    /// SIGSTOP: it hangs, its connections stay open.
    pub async fn pause(&self, component: Component) -> Result<()> {
        self.daemon(component).lock().await.signal(Signal::SIGSTOP)
    }

    /// SIGCONT.
    pub async fn resume(&self, component: Component) -> Result<()> {
        self.daemon(component).lock().await.signal(Signal::SIGCONT)
    }

    /// Waits until the API server says that it is ready.
    pub async fn wait_ready(&self) -> Result<()> {
        let client = self.client().await?;
        let deadline = Instant::now() + READY_WITHIN;
        let mut last = String::from("no answer");
        while Instant::now() < deadline {
            if !self.daemon(Component::ApiServer).lock().await.is_running() {
                return Err(Error::other(format!(
                    "kube-apiserver ended:\n{}",
                    self.tail(Component::ApiServer).await
                )));
            }
            let request = http::Request::get("/readyz")
                .body(Vec::new())
                .map_err(|error| Error::other(error.to_string()))?;
            match tokio::time::timeout(Duration::from_secs(5), client.request_text(request)).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => "no answer in 5 s".clone_into(&mut last),
            }
            // There is nothing to watch before the API server answers.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(Error::Timeout {
            waited_for: "kube-apiserver's /readyz".to_owned(),
            seconds: READY_WITHIN.as_secs(),
            state: format!("{last}\n{}", self.tail(Component::ApiServer).await),
        })
    }

    /// A new client of the administrator.
    pub async fn client(&self) -> Result<kube::Client> {
        let failed =
            |error: &dyn std::fmt::Display| Error::other(format!("reading the bed's kubeconfig: {error}"));
        let file = kube::config::Kubeconfig::read_from(&self.kubeconfig).map_err(|error| failed(&error))?;
        let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default())
            .await
            .map_err(|error| failed(&error))?;
        kube::Client::try_from(config).doing(|| "making a client of the bed's API server")
    }

    async fn tail(&self, component: Component) -> String {
        crate::bed::tail(self.daemon(component).lock().await.log(), 20)
    }

    fn daemon(&self, component: Component) -> &Mutex<Daemon> {
        &self.daemons[component as usize]
    }
}

fn etcd_args(data: &Path) -> Vec<String> {
    vec![
        format!("--data-dir={}", data.display()),
        "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
        "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
        "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--initial-advertise-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--initial-cluster=default=http://127.0.0.1:2380".to_owned(),
        // The bed's disk is memory, and no bed outlives its power.
        "--unsafe-no-fsync".to_owned(),
    ]
}

fn api_server_args(
    address: IpAddr,
    certificates: &Certificates,
    tokens: &Path,
    audit_policy: &Path,
    audit_log: &Path,
) -> Vec<String> {
    vec![
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        format!("--advertise-address={address}"),
        format!("--secure-port={API_PORT}"),
        format!("--tls-cert-file={}", certificates.server.display()),
        format!("--tls-private-key-file={}", certificates.server_key.display()),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-signing-key-file={}", certificates.service_account_key.display()),
        format!("--service-account-key-file={}", certificates.service_account_public_key.display()),
        format!("--token-auth-file={}", tokens.display()),
        "--authorization-mode=Node,RBAC".to_owned(),
        // A webhook's Service resolves to the addresses of its EndpointSlice: no kube-proxy is needed.
        "--enable-aggregator-routing=true".to_owned(),
        // No kubelet stands behind the bed's Nodes.
        "--endpoint-reconciler-type=lease".to_owned(),
        format!("--audit-policy-file={}", audit_policy.display()),
        format!("--audit-log-path={}", audit_log.display()),
    ]
}

fn controller_manager_args(kubeconfig: &Path, certificates: &Certificates) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--authentication-kubeconfig={}", kubeconfig.display()),
        format!("--authorization-kubeconfig={}", kubeconfig.display()),
        "--leader-elect=false".to_owned(),
        "--controllers=*".to_owned(),
        "--use-service-account-credentials=true".to_owned(),
        format!("--service-account-private-key-file={}", certificates.service_account_key.display()),
        format!("--root-ca-file={}", certificates.ca.display()),
    ]
}

fn scheduler_args(kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--authentication-kubeconfig={}", kubeconfig.display()),
        format!("--authorization-kubeconfig={}", kubeconfig.display()),
        "--leader-elect=false".to_owned(),
    ]
}

fn kubeconfig(server: &str, ca: &Path, user: &str) -> String {
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         current-context: bed\n\
         contexts: [{{name: bed, context: {{cluster: bed, user: {user}}}}}]\n\
         clusters: [{{name: bed, cluster: {{server: \"{server}\", certificate-authority: \"{}\"}}}}]\n\
         users: [{{name: {user}, user: {{token: token-of-{user}}}}}]\n",
        ca.display()
    )
}

/// Every write with what was written, so that a suite can count and read them; of reads only those of the product,
/// for the roles that they need.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: [\"system:serviceaccount:garage-holdfast:garage-holdfast\"]
  verbs: [get, list, watch]
- level: Metadata
  users: [\"system:serviceaccount:garage-holdfast:garage-holdfast\"]
  resources: [{group: coordination.k8s.io, resources: [leases]}, {group: events.k8s.io, resources: [events]}]
- level: None
  resources: [{group: coordination.k8s.io, resources: [leases]}, {group: \"\", resources: [events]}]
- level: Request
  resources: [{group: garage.rajsingh.info}]
  verbs: [create, update, patch, delete, deletecollection]
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
";
