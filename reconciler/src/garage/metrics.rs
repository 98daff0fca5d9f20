//! The one thing read from a node's metrics page: its failed table-sync calls (D2).

/// Families that count a call which did not succeed: not delivered, answered with an error, not answered
/// in time. A dead peer raises the first (FACTS 7). A frozen one raises the last alone, as long as it is not
/// noticed: seen on 2.5.0 and kept as a recorded page, so D2's counter by itself would miss it.
const FAILURES: [&str; 3] = ["rpc_netapp_error_counter", "rpc_garage_error_counter", "rpc_timeout_counter"];
/// The RPC endpoint of table sync; the table's name follows.
const TABLE_SYNC: &str = "garage_table/sync.rs/Rpc:";

/// The sum of this node's failed table-sync calls since it started.
///
/// A counter has no line before its first failure, so a page of Garage without one means 0. `None`: the page
/// is not Garage's, or a line of these counters cannot be read.
pub fn failed_table_syncs(page: &str) -> Option<u64> {
    let mut sum = 0u64;
    let mut garage = false;
    for line in page.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        garage |= ["garage_", "cluster_", "table_", "rpc_"].iter().any(|p| name.starts_with(p));
        if FAILURES.contains(&name) {
            let (endpoint, value) = sample(&line[name.len()..])?;
            if endpoint.is_some_and(|e| e.starts_with(TABLE_SYNC)) {
                sum = sum.checked_add(value)?;
            }
        }
    }
    garage.then_some(sum)
}

/// Reads `{label="value",…} count` into the label `rpc_endpoint` and the count.
fn sample(rest: &str) -> Option<(Option<String>, u64)> {
    let mut endpoint = None;
    let mut chars = rest.char_indices().peekable();
    let mut after = 0;
    if chars.next_if(|&(_, c)| c == '{').is_some() {
        loop {
            while chars.next_if(|&(_, c)| c == ',' || c == ' ').is_some() {}
            if let Some((end, _)) = chars.next_if(|&(_, c)| c == '}') {
                after = end + 1;
                break;
            }
            let mut label = String::new();
            loop {
                match chars.next()? {
                    (_, '=') => break,
                    (_, c) => label.push(c),
                }
            }
            chars.next_if(|&(_, c)| c == '"')?;
            let mut value = String::new();
            loop {
                match chars.next()? {
                    (_, '"') => break,
                    (_, '\\') => value.push(chars.next()?.1),
                    (_, c) => value.push(c),
                }
            }
            if label.trim() == "rpc_endpoint" {
                endpoint = Some(value);
            }
        }
    }
    // A time stamp may follow the value.
    let value: f64 = rest[after..].split_whitespace().next()?.parse().ok()?;
    // 2^53: above it a float no longer counts single calls.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (value.is_finite() && (0.0..9.0e15).contains(&value)).then_some((endpoint, value as u64))
}
