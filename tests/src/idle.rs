//! An idle site: nothing of it is written.

use std::time::Duration;

use serde_json::Value;

use crate::bed::Bed;
use crate::error::{Error, Result};
use crate::site::Site;

/// Waits for so long and fails if the product wrote anything of the site meanwhile. Garage compares its tables every ten
/// minutes, and a pass that falls into that has something to write: then once more, at most three times.
pub async fn stays_idle(bed: &Bed, site: &Site, window: Duration) -> Result<()> {
    for _ in 0..3 {
        let before = site.get(&bed.client).await?.data;
        let mark = bed.audit_mark()?;
        tokio::time::sleep(window).await;
        let writes: Vec<_> = bed
            .product_writes_since(mark)?
            .into_iter()
            .filter(|(write, _)| {
                write.ends_with(&format!(" {}", site.name)) || write.contains(&format!(" {}-", site.name))
            })
            .collect();
        if writes.is_empty() {
            return Ok(());
        }
        if let Some(strange) =
            writes.iter().find(|(_, body)| !only_table_syncs(&before["status"], &body["status"]))
        {
            return Err(Error::other(format!("an idle site was written: {strange:?} of {writes:?}")));
        }
    }
    Err(Error::other(format!("no {} s without a write of {}", window.as_secs(), site.name)))
}

/// Whether a status write has nothing else than how many table partitions a node has yet to compare.
fn only_table_syncs(before: &Value, written: &Value) -> bool {
    let settled = |redundancy: &Value, field: &str| {
        let mut value = redundancy[field].clone();
        for node in value.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            node.retain(|field, _| !field.starts_with("metadata"));
        }
        value
    };
    let Some(fields) = written.as_object() else { return false };
    fields.iter().all(|(field, redundancy)| {
        field == "redundancy"
            && redundancy.as_object().is_some_and(|redundancy_fields| {
                redundancy_fields.keys().all(|field| {
                    field == "progressObservedAt"
                        || field == "lastProgressAt"
                        || settled(redundancy, field) == settled(&before["redundancy"], field)
                })
            })
    })
}
