//! `status`: a table for people, JSON or YAML for programs.

use std::fmt::Write as _;

use holdfast_crds::conditions::ConditionType;
use holdfast_crds::explain::Urgency;
use holdfast_crds::status::{Phase, ServicePhase};
use jiff::Timestamp;

use crate::Failure;
use crate::cli::Output;
use crate::cluster::Site;
use crate::report::{Condition, Node, Report, report};
use crate::style::{Cell, Style, columns, span};

/// The text of `status`. One site is shown whole, several in a line each.
pub fn show(
    sites: &[Site],
    output: Option<Output>,
    named: bool,
    style: Style,
    now: Timestamp,
) -> Result<String, Failure> {
    let reports: Vec<Report> = sites.iter().map(|s| report(&s.cluster, &s.nodes)).collect();
    match output {
        Some(Output::Json) => serde_json::to_string_pretty(&reports)
            .map(|text| text + "\n")
            .map_err(|error| Failure::error(format!("the status could not be written as JSON: {error}"))),
        Some(Output::Yaml) => serde_norway::to_string(&reports)
            .map_err(|error| Failure::error(format!("the status could not be written as YAML: {error}"))),
        None => Ok(match reports.as_slice() {
            [one] => whole(one, style, now),
            many if named => many.iter().map(|r| whole(r, style, now)).collect(),
            many => summary(many, style),
        }),
    }
}

/// One line a site.
pub fn summary(reports: &[Report], style: Style) -> String {
    let mut rows = vec![
        ["NAMESPACE", "NAME", "PHASE", "REPLICATED", "REASON", "VERIFIED", "SERVICE"]
            .map(Cell::from)
            .to_vec(),
    ];
    rows.extend(reports.iter().map(|r| {
        let replicated = r.conditions.iter().find(|c| c.kind == ConditionType::FullyReplicated.as_str());
        let counts = r.proof.as_ref().and_then(|p| p.storage_nodes);
        vec![
            r.namespace.as_str().into(),
            r.name.as_str().into(),
            or_dash(r.phase.as_deref()),
            or_dash(replicated.map(|c| c.status.as_str())),
            replicated.map_or_else(|| Cell::from("-"), |c| Cell(c.reason.clone(), c.weight)),
            counts.map_or_else(|| Cell::from("-"), |n| format!("{}/{}", n.verified, n.local).into()),
            r.service.as_ref().map_or_else(
                || Cell::from("-"),
                |s| format!("{:?} {}/{}", s.phase, s.pool, s.kubernetes_node).into(),
            ),
        ]
    }));
    columns(&rows, "", style)
}

/// Everything about one site.
pub fn whole(r: &Report, style: Style, now: Timestamp) -> String {
    let ago = |t: holdfast_crds::status::Time| span(now.as_second() - t.as_second());
    let mut out = String::new();
    let mut head = style.heading(&format!("{}/{}", r.namespace, r.name));
    for part in [
        r.phase.clone(),
        r.layout_version.map(|v| format!("layout {v}")),
        r.garage_version.as_ref().map(|v| format!("Garage {v}")),
    ]
    .into_iter()
    .flatten()
    {
        let _ = write!(head, "  {part}");
    }
    let _ = writeln!(out, "{head}");
    if let Some(p) = &r.proof {
        let mut line = format!("proof    {:?}", p.phase);
        if let Some(n) = p.storage_nodes {
            let _ = write!(line, "  {}/{} nodes", n.verified, n.local);
            if n.remote > 0 {
                let _ = write!(line, " (and {} of other sites)", n.remote);
            }
        }
        if let (Some(t), true) = (p.phase_started_at, !matches!(p.phase, Phase::Idle | Phase::Verified)) {
            let _ = write!(line, "  for {}", ago(t));
        }
        if let Some(t) = p.verified_at {
            let _ = write!(line, "  last verified {} ago ({t})", ago(t));
        }
        let _ = writeln!(out, "{line}");
        if p.request_pending {
            let _ = writeln!(out, "         a new proof is requested; the controller has not seen it yet");
        }
    }
    if let Some(s) = &r.service {
        let mut line =
            format!("service  {:?} of {}/{}: {:?}", s.operation, s.pool, s.kubernetes_node, s.phase);
        if let Some(t) = s.phase_started_at {
            let _ = write!(line, "  for {}", ago(t));
        }
        if let (ServicePhase::OutOfService, Some(t)) = (s.phase, s.safe_since) {
            let _ =
                write!(line, "  {}", style.paint(Some(Urgency::Good), &format!("safe to service since {t}")));
        }
        let _ = writeln!(out, "{line}");
        if let Some(x) = &s.replacement {
            let new = x.new_node_id.map_or_else(|| "not known yet".to_owned(), |id| id.short());
            let _ = writeln!(out, "         old identity {}  new identity {new}", x.old_node_id.short());
        }
    }
    if !r.nodes.is_empty() {
        out.push('\n');
        out.push_str(&node_table(&r.nodes, style, now));
    }
    let shown: Vec<&Condition> = r.conditions.iter().collect();
    if !shown.is_empty() {
        out.push('\n');
        out.push_str(&condition_table(&shown, style, now));
    }
    out
}

/// One line a node.
pub fn node_table(nodes: &[Node], style: Style, now: Timestamp) -> String {
    let number = |n: Option<i64>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let mut rows = vec![
        ["NODE", "IDENTITY", "STATE", "PROOF", "RESYNC", "META", "ERRORS", "NOTE"].map(Cell::from).to_vec(),
    ];
    rows.extend(nodes.iter().map(|n| {
        let errors = n.block_errors.filter(|e| *e > 0).map(|_| Urgency::Act);
        vec![
            or_dash(n.member.as_deref()),
            n.node_id.map_or_else(|| Cell::from("-"), |id| id.short().into()),
            Cell(n.state.word().to_owned(), n.state.urgency()),
            n.percent.map_or_else(|| Cell::from("-"), |p| style.progress(p).into()),
            number(n.resync_queue_length).into(),
            number(n.metadata_queue_length).into(),
            Cell(number(n.block_errors.map(i64::from)), errors),
            note(n, now).into(),
        ]
    }));
    columns(&rows, "", style)
}

fn note(n: &Node, now: Timestamp) -> String {
    let mut notes = Vec::new();
    if let Some(reason) = n.deferred {
        notes.push(match n.retry_after {
            None => format!("{reason:?}: only a new token retries it"),
            Some(at) if at.as_second() > now.as_second() => {
                format!("{reason:?}, retried in {} or later", span(at.as_second() - now.as_second()))
            }
            Some(_) => format!("{reason:?}, retried once it is up"),
        });
    }
    if n.observed == Some(false) && n.deferred.is_none() {
        notes.push("did not answer".to_owned());
    }
    if n.connected == Some(false) {
        notes.push("not connected".to_owned());
    }
    if let Some(repair) = &n.repair {
        notes.push(format!("repair {repair}"));
    }
    notes.join(", ")
}

/// Each condition with its message and the next step, what needs a person first.
fn condition_table(conditions: &[&Condition], style: Style, now: Timestamp) -> String {
    let mut sorted = conditions.to_vec();
    sorted.sort_by_key(|c| std::cmp::Reverse(c.weight));
    let mut out = String::new();
    for c in sorted {
        let age = span(now.as_second() - c.since.as_second());
        let _ = writeln!(out, "{}={} {} ({age})", c.kind, c.status, style.paint(c.weight, &c.reason));
        if !c.message.is_empty() {
            let _ = writeln!(out, "  {}", c.message);
        }
        if let (Some(next), true) = (c.next, c.weight != Some(Urgency::Good)) {
            let _ = writeln!(out, "  next: {next}");
        }
    }
    out
}

fn or_dash(text: Option<&str>) -> Cell {
    text.filter(|t| !t.is_empty()).unwrap_or("-").into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::report::tests::{cluster, id, member, proving};

    fn now() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    fn site(annotations: &Value, status: &Value) -> Site {
        Site::new(cluster(annotations, status), vec![member(1), member(2), member(3)])
    }

    #[test]
    fn one_site_is_shown_whole_without_colour_when_nobody_looks() {
        let text = show(&[site(&json!({}), &proving())], None, false, Style::PLAIN, now()).unwrap();
        let expected = "\
objects/site-a  Running  layout 4  Garage v2.5.0
proof    ScanningBlocks  1/3 nodes  for 2m5s

NODE       IDENTITY          STATE     PROOF  RESYNC  META  ERRORS  NOTE
fast/kn-1  0101010101010101  done      100%   0       0     0
fast/kn-2  0202020202020202  blocks    71%    1200    ?     2       repair 43.21%
fast/kn-3  0303030303030303  deferred  -      ?       ?     ?       Down, retried in 6m55s or later

FullyReplicated=False Verifying (4m5s)
  scanning blocks of node 0202020202020202
  next: Wait: `kubectl holdfast wait`. Do not service another node meanwhile.
Foreign=True Whatever (4m5s)
";
        assert_eq!(text, expected);
    }

    #[test]
    fn several_sites_are_a_line_each() {
        let sites = vec![site(&json!({}), &proving()), site(&json!({}), &json!({}))];
        let text = show(&sites, None, false, Style::PLAIN, now()).unwrap();
        assert_eq!(
            text,
            "NAMESPACE  NAME    PHASE    REPLICATED  REASON     VERIFIED  SERVICE\n\
             objects    site-a  Running  False       Verifying  1/3       -\n\
             objects    site-a  -        -           -          -         -\n"
        );
    }

    #[test]
    fn a_hold_says_since_when_the_disk_is_safe_and_a_refill_names_both_identities() {
        let mut status = proving();
        status["nodeLocalService"] = json!({"pool": "fast", "kubernetesNode": "kn-3", "operation": "OutOfService",
            "phase": "OutOfService", "safeSince": "2026-01-02T03:03:00Z"});
        let text = show(&[site(&json!({}), &status)], None, false, Style::PLAIN, now()).unwrap();
        assert!(
            text.contains(
                "service  OutOfService of fast/kn-3: OutOfService  safe to service since 2026-01-02T03:03:00Z"
            ),
            "{text}"
        );
        status["nodeLocalService"] = json!({"pool": "fast", "kubernetesNode": "kn-3", "operation": "ReplaceIdentity",
            "phase": "Settling", "replacement": {"oldNodeId": id(3), "newNodeId": id(9)}});
        let text = show(&[site(&json!({}), &status)], None, false, Style::PLAIN, now()).unwrap();
        assert!(text.contains("old identity 0303030303030303  new identity 0909090909090909"), "{text}");
    }

    #[test]
    fn json_and_yaml_are_the_same_data() {
        let sites = [site(&json!({"garage.rajsingh.info/verify-redundancy": "two"}), &proving())];
        let json: Value =
            serde_json::from_str(&show(&sites, Some(Output::Json), false, Style::PLAIN, now()).unwrap())
                .unwrap();
        let yaml: Value =
            serde_norway::from_str(&show(&sites, Some(Output::Yaml), false, Style::PLAIN, now()).unwrap())
                .unwrap();
        assert_eq!(json, yaml);
        assert_eq!(json[0]["proof"]["requestPending"], true);
        assert_eq!(json[0]["nodes"][1]["resyncQueueLength"], 1200);
        assert_eq!(json[0]["nodes"][2].get("resyncQueueLength"), None, "never observed is absent");
    }

    #[test]
    fn a_terminal_gets_bars_and_colours() {
        let style = Style { colour: true, bars: true };
        let text = show(&[site(&json!({}), &proving())], None, false, style, now()).unwrap();
        assert!(text.contains("████████░░░░  71%") && text.contains("\x1b[32mdone"), "{text}");
    }
}
