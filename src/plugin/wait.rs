//! `wait`: looks until an outcome is there. The verdict is a pure function of the object; the loop looks every
//! two seconds, which is as often as a pass changes anything.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use holdfast_crds::conditions::ConditionType;
use holdfast_crds::explain::{Urgency, explain};
use holdfast_crds::names::annotation::cluster as key;
use holdfast_crds::requests::ReplaceRequest;
use holdfast_crds::status::{ServiceOperation, ServicePhase};
use holdfast_crds::v1beta2::GarageCluster;
use jiff::Timestamp;

use crate::cli::Goal;
use crate::cluster::{Cluster, Site};
use crate::report::{report, request_pending};
use crate::style::{Style, span};
use crate::table::node_table;
use crate::{Failure, code, print};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(2);
/// A bad end must stand this long: what is in status may still be about the request before.
const SURE: Duration = Duration::from_secs(8);
/// The API server may be away this long.
const AWAY: Duration = Duration::from_secs(120);

/// What a look says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is reached.
    Reached(String),
    /// Not yet.
    Waiting(String),
    /// A person must act.
    Act(String),
    /// Nobody asked for it.
    Nothing(String),
}

/// Waits; the exit code is the outcome.
pub async fn run(
    api: &Cluster,
    name: Option<&str>,
    goal: Goal,
    timeout: Option<Duration>,
    keep_waiting: bool,
) -> Result<(), Failure> {
    let name = match name {
        Some(name) => name.to_owned(),
        None => api.only().await?,
    };
    let started = Instant::now();
    let mut screen = Screen::new();
    let mut bad: Option<(Verdict, Instant)> = None;
    let mut seen = Instant::now();
    loop {
        let last = match api.site(&name).await {
            Ok(site) => {
                seen = Instant::now();
                let verdict = judge(&site.cluster, goal);
                screen.show(&site, goal, &verdict);
                match &verdict {
                    Verdict::Reached(message) => {
                        screen.clear();
                        return print(&format!("{}: {message}\n", site.name()));
                    }
                    Verdict::Waiting(_) => bad = None,
                    Verdict::Act(_) if keep_waiting => bad = None,
                    Verdict::Act(message) | Verdict::Nothing(message) => {
                        let since = bad
                            .as_ref()
                            .filter(|(v, _)| *v == verdict)
                            .map_or_else(Instant::now, |(_, at)| *at);
                        if since.elapsed() >= SURE {
                            screen.clear();
                            let code =
                                if matches!(verdict, Verdict::Act(_)) { code::ACT } else { code::NOTHING };
                            return Err(Failure::with(code, format!("{}: {message}", site.name())));
                        }
                        bad = Some((verdict.clone(), since));
                    }
                }
                verdict.message().to_owned()
            }
            // An object or a definition that is not there does not come by waiting; an API server does.
            Err(failure) if screen.looks == 0 || seen.elapsed() > AWAY => return Err(failure),
            Err(failure) => failure.what,
        };
        if timeout.is_some_and(|t| started.elapsed() >= t) {
            screen.clear();
            let waited = span(i64::try_from(started.elapsed().as_secs()).unwrap_or(i64::MAX));
            return Err(Failure::with(code::TIMEOUT, format!("{name}: not there after {waited}: {last}")));
        }
        let left = timeout.map_or(EVERY, |t| t.saturating_sub(started.elapsed()).min(EVERY));
        tokio::time::sleep(left).await;
    }
}

impl Verdict {
    fn message(&self) -> &str {
        match self {
            Self::Reached(m) | Self::Waiting(m) | Self::Act(m) | Self::Nothing(m) => m,
        }
    }
}

/// Judges one look.
pub fn judge(cluster: &GarageCluster, goal: Goal) -> Verdict {
    for bad in [ConditionType::AnotherController, ConditionType::StatusPruned] {
        if let Some(c) = condition(cluster, bad).filter(|c| c.status == "True") {
            return Verdict::Act(words(c));
        }
    }
    match goal {
        Goal::Redundancy => redundancy(cluster),
        Goal::Hold => hold(cluster),
        Goal::Release => release(cluster),
        Goal::Replacement => replacement(cluster),
    }
}

type Condition = k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

fn condition(cluster: &GarageCluster, kind: ConditionType) -> Option<&Condition> {
    cluster.status.as_ref()?.conditions.iter().find(|c| c.type_ == kind.as_str())
}

fn words(c: &Condition) -> String {
    if c.message.is_empty() { c.reason.clone() } else { format!("{}: {}", c.reason, c.message) }
}

/// A condition that is not True: a person's turn, or not yet.
fn not_yet(c: Option<&Condition>) -> Verdict {
    let Some(c) = c else {
        return Verdict::Waiting("the controller has not looked at it yet".to_owned());
    };
    match explain(&c.type_, &c.reason) {
        Some(e) if e.urgency == Urgency::Act => Verdict::Act(format!("{}; next: {}", words(c), e.next)),
        _ => Verdict::Waiting(words(c)),
    }
}

fn redundancy(cluster: &GarageCluster) -> Verdict {
    if request_pending(cluster) {
        return Verdict::Waiting("the controller has not seen the request yet".to_owned());
    }
    match condition(cluster, ConditionType::FullyReplicated) {
        Some(c) if c.status == "True" => Verdict::Reached(words(c)),
        Some(c) if c.reason == "NotVerified" => Verdict::Nothing(words(c)),
        c => not_yet(c),
    }
}

fn hold(cluster: &GarageCluster) -> Verdict {
    let Some(asked) = cluster.annotation(key::OUT_OF_SERVICE) else {
        return Verdict::Nothing("no hold is requested; `kubectl holdfast hold` does".to_owned());
    };
    let c = condition(cluster, ConditionType::NodeLocalOutOfService);
    let ours = cluster.status.as_ref().and_then(|s| s.node_local_service.as_ref()).is_some_and(|s| {
        s.operation == ServiceOperation::OutOfService && format!("{}/{}", s.pool, s.kubernetes_node) == asked
    });
    match c {
        Some(c) if c.status == "True" && ours => Verdict::Reached(words(c)),
        Some(c) if c.status == "True" => {
            Verdict::Waiting("the controller has not seen the request yet".to_owned())
        }
        c => not_yet(c),
    }
}

fn release(cluster: &GarageCluster) -> Verdict {
    if let Some(held) = cluster.annotation(key::OUT_OF_SERVICE) {
        return Verdict::Nothing(format!(
            "the hold of {held} still stands; `kubectl holdfast release` ends it"
        ));
    }
    let service = cluster.status.as_ref().and_then(|s| s.node_local_service.as_ref());
    let c = condition(cluster, ConditionType::NodeLocalOutOfService);
    match service.filter(|s| s.operation == ServiceOperation::OutOfService) {
        None => Verdict::Reached("no member is held out of service".to_owned()),
        Some(s) if s.phase == ServicePhase::InService => {
            Verdict::Reached(c.map_or_else(|| "the member is back in service".to_owned(), words))
        }
        Some(_) => match c {
            Some(c) if c.status == "True" => {
                Verdict::Waiting("the controller has not seen the release yet".to_owned())
            }
            c => not_yet(c),
        },
    }
}

fn replacement(cluster: &GarageCluster) -> Verdict {
    let service = cluster.status.as_ref().and_then(|s| s.node_local_service.as_ref());
    let service = service.filter(|s| s.operation == ServiceOperation::ReplaceIdentity);
    let c = condition(cluster, ConditionType::NodeLocalIdentityReplaced);
    let completed = |message: &str| Verdict::Reached(c.map_or_else(|| message.to_owned(), words));
    let Some(asked) = cluster.annotation(key::REPLACE_IDENTITY) else {
        return match service {
            Some(s) if s.phase == ServicePhase::Completed => completed("the identity is replaced"),
            Some(_) => not_yet(c),
            None => {
                Verdict::Nothing("no replacement is requested; `kubectl holdfast replace` does".to_owned())
            }
        };
    };
    let asked = match asked.parse::<ReplaceRequest>() {
        Ok(asked) => asked,
        Err(error) => return Verdict::Act(error.to_string()),
    };
    let same = |s: &&holdfast_crds::status::NodeLocalService| {
        s.replacement.as_ref().is_some_and(|r| r.old_node_id == asked.old_node_id)
    };
    match service.filter(same) {
        Some(s) if s.phase == ServicePhase::Completed => completed("the identity is replaced"),
        Some(_) => not_yet(c),
        None => match not_yet(c.filter(|c| c.status != "True")) {
            Verdict::Act(message) => Verdict::Act(message),
            _ => Verdict::Waiting("the controller has not taken up the request yet".to_owned()),
        },
    }
}

/// On a terminal a picture that is drawn over; elsewhere a line whenever something changes.
struct Screen {
    style: Style,
    live: bool,
    lines: usize,
    last: String,
    looks: usize,
}

impl Screen {
    fn new() -> Self {
        let live = std::io::stderr().is_terminal();
        let style = Style::of_stdout();
        let style = if live { style } else { Style::PLAIN };
        Self { style, live, lines: 0, last: String::new(), looks: 0 }
    }

    fn show(&mut self, site: &Site, goal: Goal, verdict: &Verdict) {
        self.looks += 1;
        let text = picture(site, goal, verdict, self.style, self.live, Timestamp::now());
        if self.live {
            self.clear();
            eprint!("{text}");
            self.lines = text.lines().count();
        } else if text != self.last {
            eprint!("{text}");
        }
        self.last = text;
        let _ = std::io::stderr().flush();
    }

    /// Takes the picture off the terminal.
    fn clear(&mut self) {
        if self.live && self.lines > 0 {
            eprint!("\x1b[{}A\x1b[J", self.lines);
            self.lines = 0;
        }
    }
}

/// What is shown while waiting.
fn picture(site: &Site, goal: Goal, verdict: &Verdict, style: Style, live: bool, now: Timestamp) -> String {
    let r = report(&site.cluster, &site.nodes);
    let mut text = format!("{}: {}\n", site.name(), verdict.message());
    if goal == Goal::Redundancy && live {
        if let Some(p) = &r.proof {
            let since = p.phase_started_at.map(|t| span(now.as_second() - t.as_second()));
            let _ = writeln!(text, "{:?}{}", p.phase, since.map(|s| format!(" for {s}")).unwrap_or_default());
        }
        text.push_str(&node_table(&r.nodes, style, now));
    } else if goal == Goal::Redundancy {
        // Counters change in every pass: for a log the share of each node is enough.
        let shares: Vec<String> = r
            .nodes
            .iter()
            .filter_map(|n| {
                let name = n.member.clone().or_else(|| n.node_id.map(|id| id.short()))?;
                Some(match n.percent {
                    Some(percent) => format!("{name} {} {percent}%", n.state.word()),
                    None => format!("{name} {}", n.state.word()),
                })
            })
            .collect();
        if !shares.is_empty() {
            let _ = writeln!(text, "  {}", shares.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::report::tests::{cluster, id, member, proving};

    fn with(annotations: &Value, kind: &str, status: &str, reason: &str, rest: Value) -> GarageCluster {
        let mut all = rest;
        all["conditions"] = json!([{"type": kind, "status": status, "reason": reason, "message": "m",
            "lastTransitionTime": "2026-01-02T03:00:00Z"}]);
        cluster(annotations, &all)
    }

    fn replicated(status: &str, reason: &str) -> Verdict {
        judge(&with(&json!({}), "FullyReplicated", status, reason, json!({})), Goal::Redundancy)
    }

    #[test]
    fn redundancy_is_reached_by_true_alone() {
        assert_eq!(replicated("True", "Verified"), Verdict::Reached("Verified: m".into()));
        assert_eq!(replicated("True", "VerifiedLocal"), Verdict::Reached("VerifiedLocal: m".into()));
        assert!(matches!(replicated("Unknown", "NotVerified"), Verdict::Nothing(_)));
        for reason in ["Verifying", "BlockErrors", "Partial", "Unheard"] {
            assert!(matches!(replicated("False", reason), Verdict::Waiting(_)), "{reason}");
        }
        assert!(matches!(replicated("Unknown", "NotObserved"), Verdict::Waiting(_)));
        assert!(matches!(replicated("False", "Stalled"), Verdict::Act(_)));
        assert!(matches!(replicated("Unknown", "SiteRoleUnset"), Verdict::Act(_)));
    }

    #[test]
    fn an_old_truth_is_not_the_answer_to_a_new_request() {
        let asked = json!({key::VERIFY_REDUNDANCY: "two"});
        let old = json!({"redundancy": {"verification": {"phase": "Verified", "requestToken": "one"}}});
        let seen = json!({"redundancy": {"verification": {"phase": "Verified", "requestToken": "two"}}});
        let judged =
            |rest| judge(&with(&asked, "FullyReplicated", "True", "Verified", rest), Goal::Redundancy);
        assert!(matches!(judged(old), Verdict::Waiting(_)));
        assert!(matches!(judged(seen), Verdict::Reached(_)));
    }

    #[test]
    fn another_controller_or_an_old_definition_ends_every_wait() {
        for (kind, reason) in [("AnotherController", "StatusContested"), ("StatusPruned", "FieldNotStored")] {
            for goal in [Goal::Redundancy, Goal::Hold, Goal::Release, Goal::Replacement] {
                let cluster = with(&json!({}), kind, "True", reason, json!({}));
                assert!(matches!(judge(&cluster, goal), Verdict::Act(_)), "{kind} {goal:?}");
            }
        }
    }

    #[test]
    fn a_hold_is_reached_only_for_the_pair_that_was_asked_for() {
        let service = |node: &str| json!({"nodeLocalService": {"pool": "fast", "kubernetesNode": node, "operation": "OutOfService", "phase": "OutOfService"}});
        let asked = json!({key::OUT_OF_SERVICE: "fast/kn-1"});
        let judged = |node, status, reason| {
            judge(&with(&asked, "NodeLocalOutOfService", status, reason, service(node)), Goal::Hold)
        };
        assert!(matches!(judged("kn-1", "True", "SafeToService"), Verdict::Reached(_)));
        assert!(matches!(judged("kn-2", "True", "SafeToService"), Verdict::Waiting(_)));
        assert!(matches!(judged("kn-1", "False", "WaitingForProof"), Verdict::Waiting(_)));
        assert!(matches!(judged("kn-1", "False", "Refused"), Verdict::Act(_)));
        assert!(matches!(judge(&cluster(&json!({}), &json!({})), Goal::Hold), Verdict::Nothing(_)));
    }

    #[test]
    fn a_release_is_reached_when_the_member_is_back() {
        let at = |phase: &str, status: &str, reason: &str| {
            let rest = json!({"nodeLocalService": {"pool": "fast", "kubernetesNode": "kn-1", "operation": "OutOfService", "phase": phase}});
            judge(&with(&json!({}), "NodeLocalOutOfService", status, reason, rest), Goal::Release)
        };
        assert!(matches!(at("OutOfService", "True", "SafeToService"), Verdict::Waiting(_)));
        assert!(matches!(at("Restoring", "False", "Restoring"), Verdict::Waiting(_)));
        assert!(matches!(at("Restoring", "False", "DifferentIdentity"), Verdict::Act(_)));
        assert!(matches!(at("InService", "False", "InService"), Verdict::Reached(_)));
        assert!(matches!(judge(&cluster(&json!({}), &json!({})), Goal::Release), Verdict::Reached(_)));
        let held = cluster(&json!({key::OUT_OF_SERVICE: "fast/kn-1"}), &json!({}));
        assert!(matches!(judge(&held, Goal::Release), Verdict::Nothing(_)));
    }

    #[test]
    fn a_replacement_is_reached_for_the_identity_that_was_named() {
        let asked = json!({key::REPLACE_IDENTITY: format!("fast/kn-1/{}", id(1))});
        let at = |old: u8, phase: &str, status: &str, reason: &str| {
            let rest = json!({"nodeLocalService": {"pool": "fast", "kubernetesNode": "kn-1", "operation": "ReplaceIdentity",
                "phase": phase, "replacement": {"oldNodeId": id(old)}}});
            judge(&with(&asked, "NodeLocalIdentityReplaced", status, reason, rest), Goal::Replacement)
        };
        assert!(matches!(at(1, "Completed", "True", "Replaced"), Verdict::Reached(_)));
        assert!(matches!(at(2, "Completed", "True", "Replaced"), Verdict::Waiting(_)));
        assert!(matches!(at(1, "Settling", "False", "Settling"), Verdict::Waiting(_)));
        assert!(matches!(at(1, "Settling", "False", "SettlingBlocked"), Verdict::Act(_)));
        assert!(matches!(judge(&cluster(&json!({}), &json!({})), Goal::Replacement), Verdict::Nothing(_)));
    }

    #[test]
    fn a_log_gets_lines_that_change_only_with_the_state() {
        let site = Site::new(cluster(&json!({}), &proving()), vec![member(1), member(2), member(3)]);
        let verdict = judge(&site.cluster, Goal::Redundancy);
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        let text = picture(&site, Goal::Redundancy, &verdict, Style::PLAIN, false, now);
        assert_eq!(
            text,
            "objects/site-a: Verifying: scanning blocks of node 0202020202020202\n  \
             fast/kn-1 done 100%, fast/kn-2 blocks 71%, fast/kn-3 deferred\n"
        );
        let later = "2026-01-02T04:00:00Z".parse().unwrap();
        assert_eq!(text, picture(&site, Goal::Redundancy, &verdict, Style::PLAIN, false, later));
        let live = picture(&site, Goal::Redundancy, &verdict, Style { colour: false, bars: true }, true, now);
        assert!(live.contains("ScanningBlocks for 2m5s") && live.contains('█'), "{live}");
    }
}
