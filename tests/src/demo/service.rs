//! The second half of the story: refused requests, a proof, and the service of one machine's disks.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::display::Display;
use super::sentence;
use crate::bed::{self, Bed};
use crate::error::{Error, Result};
use crate::load::{Load, Pace};
use crate::service::{HOLD, REPLACE, VERIFY, answered};
use crate::site::{Member, Site, condition};

/// The machine whose disks are serviced.
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
        answered(object, token)
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

/// How long a step of a hold or of a refill may take.
const STEP: Duration = Duration::from_secs(300);

/// Takes a machine out of service, swaps its disks and refills it under its new identity, under load.
pub async fn service(bed: &Bed, site: &Site, show: &mut Display, load: &mut Load) -> Result<()> {
    let pool = site.pools.first().ok_or_else(|| Error::other("the site has no pool"))?;
    let pair = format!("{}/{SERVICED}", pool.name);
    let old = site.identity(bed, SERVICED).await?;

    show.step(&format!("{SERVICED} is taken out of service, while objects are written and read"));
    let members = site.members(bed).await?;
    let others: Vec<_> = members.iter().filter(|one| one.node != SERVICED).map(Member::s3).collect();
    load.store().set_endpoints(&others);
    load.run(Pace::default());
    show.command(&annotate(site, HOLD, Some(&pair)));
    site.annotate(bed, HOLD, Some(&pair)).await?;
    wait_for(bed, site, show, "NodeLocalOutOfService", "SafeToService").await?;
    show.done("now, and not before, the disk may be touched");

    show.step(&format!("The disks of {SERVICED} are swapped"));
    site.swap_disks(bed, SERVICED)?;
    for path in [pool.metadata(), pool.data()] {
        show.command(&format!(
            "mount /dev/new-disk {path} && touch {path}/{}   # on {SERVICED}",
            bed::disks::MARKER
        ));
    }
    show.command(&annotate(site, HOLD, None));
    site.annotate(bed, HOLD, None).await?;
    wait_for(bed, site, show, "NodeLocalOutOfService", "DifferentIdentity").await?;
    show.done("the machine is back with empty disks and another identity; nothing is inferred from that");

    show.step("Its identity is replaced: one layout version, nothing else");
    let request = format!("{pair}/{old}");
    show.command(&annotate(site, REPLACE, Some(&request)));
    site.annotate(bed, REPLACE, Some(&request)).await?;
    wait_for(bed, site, show, "NodeLocalIdentityReplaced", "Replaced").await?;
    show.command(&annotate(site, REPLACE, None));
    site.annotate(bed, REPLACE, None).await?;
    let report = load.stop().await;
    if report.wrong + report.failed_puts + report.failed_gets > 0 {
        return Err(Error::other(format!("the load saw failures: {report:?}")));
    }
    show.done(&format!("meanwhile {} objects were written and read, none failed", report.written));
    let members = site.members(bed).await?;
    load.store().set_endpoints(&members.iter().map(Member::s3).collect::<Vec<_>>());
    Ok(())
}

/// Waits for the reason of a condition, and shows what it says until then.
async fn wait_for(bed: &Bed, site: &Site, show: &mut Display, kind: &str, reason: &str) -> Result<()> {
    site.wait(bed, &format!("{kind}/{reason}"), STEP, |object| {
        let condition = condition(object, kind);
        show.progress(&sentence(condition));
        if condition["reason"] == reason { Ok(()) } else { Err(condition.to_string()) }
    })
    .await
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
