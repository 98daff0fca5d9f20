//! The second half of the story: refused requests and a proof.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::display::Display;
use super::sentence;
use crate::bed::Bed;
use crate::error::{Error, Result};
use crate::load::Load;
use crate::site::{Site, condition};

const VERIFY: &str = "garage.rajsingh.info/verify-redundancy";
const HOLD: &str = "garage.rajsingh.info/node-local-out-of-service";
const REPLACE: &str = "garage.rajsingh.info/node-local-replace-identity";
/// The machine that the requests name.
const SERVICED: &str = "kn-3";

/// Requests that would be unsafe, stale or nonsense: all refused when they are applied.
pub async fn refusals(bed: &Bed, site: &Site, show: &mut Display) -> Result<()> {
    show.step("Three requests that must not act, refused when they are applied");
    let nobody = "ff".repeat(32);
    for (annotation, value) in [
        (HOLD, "fast/kn-9".to_owned()),
        (HOLD, "fast".to_owned()),
        (REPLACE, format!("fast/{SERVICED}/{nobody}")),
    ] {
        show.command(&annotate(site, annotation, Some(&value)));
        match site.annotate(bed, annotation, Some(&value)).await {
            Err(Error::Command { stderr, .. }) => show.text(&stderr),
            Err(error) => return Err(error),
            Ok(_) => return Err(Error::other(format!("{annotation}={value} was accepted"))),
        }
    }
    show.done("nothing was changed");
    Ok(())
}

/// One full proof, with its progress.
pub async fn verify(bed: &Bed, site: &Site, show: &mut Display, token: &str, within: Duration) -> Result<()> {
    show.step("Is every object on every node that should hold it?");
    show.command(&annotate(site, VERIFY, Some(token)));
    site.annotate(bed, VERIFY, Some(token)).await?;
    site.wait(bed, "FullyReplicated=True", within, |object| {
        show.progress(&proof(object));
        let answered = object["status"]["redundancy"]["verification"]["requestToken"] == token;
        let replicated = condition(object, "FullyReplicated");
        if answered && replicated["status"] == "True" { Ok(()) } else { Err(replicated.to_string()) }
    })
    .await?;
    let words = format!(
        "kubectl -n {} wait garagecluster {} --for=condition=FullyReplicated",
        site.namespace, site.name
    );
    show.command(&words);
    show.text(&sentence(condition(&site.get(&bed.client).await?.data, "FullyReplicated")));
    show.done("proven, not assumed");
    Ok(())
}

/// Every object, read back whole.
pub async fn read_back(show: &mut Display, load: &Load) -> Result<()> {
    show.step("Every object is read back");
    let begun = Instant::now();
    let objects = load.verify().await?;
    show.done(&format!(
        "{objects} objects are as they were written, in {:.1} s",
        begun.elapsed().as_secs_f32()
    ));
    Ok(())
}

/// A proof's state on one line.
fn proof(object: &Value) -> String {
    let verification = &object["status"]["redundancy"]["verification"];
    let phase = verification["phase"].as_str().unwrap_or("no proof yet");
    let done = verification["completedNodeIds"].as_array().map_or(0, Vec::len);
    format!("{phase}, {done} nodes finished; {}", sentence(condition(object, "FullyReplicated")))
}

fn annotate(site: &Site, annotation: &str, value: Option<&str>) -> String {
    let change = value.map_or_else(|| format!("{annotation}-"), |value| format!("{annotation}={value}"));
    format!("kubectl -n {} annotate --overwrite garagecluster {} {change}", site.namespace, site.name)
}
