//! The demo: the product's story on one terminal, each step with the command that an administrator would
//! type. A step that did not happen ends it with an error.

mod display;
mod service;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::bed::{self, Bed, tools};
use crate::error::{Doing as _, Error, Result};
use crate::load::{Load, Store};
use crate::site::{Site, condition};
use display::Display;

/// How the demo is played.
#[derive(Debug, Clone)]
pub struct Options {
    /// Leave the bed running at the end.
    pub keep: bool,
    /// The product's own waiting times instead of short ones.
    pub real_times: bool,
    /// Garage's version.
    pub garage: String,
}

const OBJECTS: u64 = 200;
const OBJECT_SIZE: usize = 64 << 10;

/// Tells the whole story in the bed's folder `root`. When it fails, the bed's state is part of the error.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    let mut show = Display::new(13);
    if !options.real_times {
        println!(
            "Waiting times are shortened: a proof takes minutes here, with the product's own 18 and more (REAL_TIMES=1)."
        );
    }
    show.step("A bed: a real Kubernetes control plane, a network and disks that can fail");
    let bed_options = bed::Options { real_times: options.real_times, ..bed::Options::default() };
    let bed = Arc::new(Bed::start(root, &bed_options).await?);
    show.done(&format!("Kubernetes {} is ready", bed.control_plane.version()));
    match story(&bed, options, &mut show).await {
        Ok(()) => {}
        Err(error) => {
            let logs = bed::beside_the_program("bed-logs").join("demo");
            let kept = match bed::keep_logs(&bed.logs, &logs) {
                Ok(()) => format!("the bed's logs: {}", logs.display()),
                Err(error) => format!("the bed's logs could not be kept: {error}"),
            };
            return Err(Error::other(format!(
                "{error}\n\nThe bed at that moment:\n{}\n{kept}",
                bed.state().await
            )));
        }
    }
    show.end("The story is told.");
    if options.keep { keep(&bed).await } else { Ok(()) }
}

async fn story(bed: &Bed, options: &Options, show: &mut Display) -> Result<()> {
    let mut site = Site::new(&options.garage);
    if !options.real_times {
        // Garage checks a new block reference twice this time after it arrived; its default is 300 s.
        site.spec = serde_json::json!({"network": {"rpcPingTimeout": "2s", "rpcTimeout": "10s"}});
    }

    show.step("Three machines with a mounted disk for metadata and one for data");
    for pool in &site.pools {
        for path in [pool.metadata(), pool.data()] {
            show.command(&format!(
                "touch {path}/{}   # once, on each of {}",
                bed::disks::MARKER,
                pool.nodes.join(", ")
            ));
        }
        show.command(&format!("kubectl label node {} {}=", pool.nodes.join(" "), pool.label()));
    }
    site.prepare(bed).await?;
    show.text(&bed.kubectl(&["get", "nodes"]).await?);
    show.done("the machines are ready");

    show.step("The product, installed by its chart");
    show.command("helm install garage-holdfast charts/garage-holdfast -n garage-holdfast --create-namespace");
    bed.install(&[]).await?;
    show.text(&bed.kubectl(&["-n", "garage-holdfast", "get", "pods", "-o", "wide"]).await?);
    show.done("two replicas run");

    show.step(&format!("One manifest brings up a Garage {} site", options.garage));
    show.text(&site.manifest()?);
    show.command("kubectl apply -f site-a.yaml");
    show.text(&bed.apply(&site.manifest()?).await?);
    site.wait(bed, "the site", Duration::from_secs(300), |object| {
        show.progress(&progress(object));
        let ready = condition(object, "NodeLocalPoolsReady");
        if ready["status"] == "True" { Ok(()) } else { Err(ready.to_string()) }
    })
    .await?;
    site.wait_up(bed).await?;
    show.command(&format!("kubectl -n {} get garagecluster,garagenode,pods", site.namespace));
    show.text(&bed.kubectl(&["-n", &site.namespace, "get", "garagecluster,garagenode,pods"]).await?);
    show.done("the site is up: Garage itself says healthy on every node");

    show.step(&format!("{OBJECTS} objects, written and read back"));
    let members = site.members(bed).await?;
    let first = members.first().ok_or_else(|| Error::other("the site has no Pods"))?;
    let endpoints: Vec<_> = members.iter().map(crate::site::Member::s3).collect();
    let store = Store::create(first.admin(), &site.token, "demo", &endpoints).await?;
    let mut load = Load::new(Arc::new(store));
    load.write(OBJECTS, OBJECT_SIZE).await?;
    let read = load.verify().await?;
    show.done(&format!("{read} objects are there as written"));

    show.step("What the product says of the site");
    show.command(&format!("kubectl -n {} get garagecluster {}", site.namespace, site.name));
    show.text(&bed.kubectl(&["-n", &site.namespace, "get", "garagecluster", &site.name]).await?);
    let object = site.get(&bed.client).await?.data;
    for kind in ["NodeLocalPoolsReady", "FullyReplicated"] {
        let condition = condition(&object, kind);
        if condition.is_null() {
            return Err(Error::other(format!("the GarageCluster has no condition {kind}")));
        }
        show.text(&sentence(condition));
    }
    show.done("its progress is in the status");

    service::refusals(bed, &site, show).await?;
    service::verify(bed, &site, show, "after-the-first-objects", proof_limit(options)).await?;
    service::service(bed, &site, show, &mut load).await?;
    service::verify(bed, &site, show, "after-the-service", proof_limit(options)).await?;
    service::read_back(show, &load).await
}

/// How long a proof may take: minutes with short waiting times, hours with the product's own.
fn proof_limit(options: &Options) -> Duration {
    Duration::from_secs(if options.real_times { 4 * 3600 } else { 900 })
}

/// The state of a site that comes up, on one line.
fn progress(object: &Value) -> String {
    let nodes = object["status"]["redundancy"]["storageNodes"]["total"].as_u64();
    let ready = condition(object, "NodeLocalPoolsReady");
    if ready.is_null() {
        return "waiting for the first look at it".to_owned();
    }
    let nodes = nodes.map(|nodes| format!("{nodes} storage nodes; ")).unwrap_or_default();
    format!("{nodes}{}", sentence(ready))
}

fn sentence(condition: &Value) -> String {
    if condition.is_null() {
        return "not looked at yet".to_owned();
    }
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    format!("{}={}/{}: {}", text("type"), text("status"), text("reason"), text("message"))
}

/// Prints how to reach the bed from outside, and waits for Ctrl-C.
pub async fn keep(bed: &Bed) -> Result<()> {
    let script = bed::beside_the_program("bed-kubectl");
    let text = tools::wrapper(bed)?;
    std::fs::write(&script, text).doing(|| format!("writing {}", script.display()))?;
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, executable)
        .doing(|| format!("making {} executable", script.display()))?;
    println!(
        "\nThe bed goes on until Ctrl-C. From another terminal:\n  {kubectl} get pods -A\n  \
         {kubectl} holdfast status -n objects\n  {kubectl} --shell   # a shell in the bed; logs are in {}\n\
         docs/src/demo.md says how to write objects and swap a disk in it.",
        bed.logs.display(),
        kubectl = script.display(),
    );
    std::future::pending().await
}
