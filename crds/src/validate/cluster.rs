//! V1 to V9 and the warnings: the annotations of a GarageCluster.

use std::borrow::Cow;

use super::view::{ClusterView, Service};
use super::{Change, Fact, Lookup, Member, Refusal, Rule, Verdict, transport};
use crate::convert::Version;
use crate::ids::{Pair, Quoted};
use crate::names::annotation::cluster as key;
use crate::requests::{HoldRequest, InvalidRequest, ReplaceRequest, RequestToken};

/// An annotation before and after. V3: only a difference is judged.
#[derive(Clone, Copy)]
struct Edit<'v> {
    key: &'static str,
    old: Option<&'v str>,
    new: Option<&'v str>,
}

impl<'v> Edit<'v> {
    /// The new value where it is not the old one.
    fn set(self) -> Option<&'v str> {
        self.new.filter(|_| self.changed())
    }

    fn changed(self) -> bool {
        self.old != self.new
    }
}

struct Edits<'v> {
    hold: Edit<'v>,
    replace: Edit<'v>,
    verify: Edit<'v>,
}

fn edits<'v>(change: &'v Change<ClusterView<'_>>) -> Edits<'v> {
    let old = change.old.as_ref().map(|c| &c.annotations);
    let new = change.new.as_ref().map(|c| &c.annotations);
    let hold = Edit {
        key: key::OUT_OF_SERVICE,
        old: old.and_then(|a| a.hold.as_deref()),
        new: new.and_then(|a| a.hold.as_deref()),
    };
    let replace = Edit {
        key: key::REPLACE_IDENTITY,
        old: old.and_then(|a| a.replace.as_deref()),
        new: new.and_then(|a| a.replace.as_deref()),
    };
    let verify = Edit {
        key: key::VERIFY_REDUNDANCY,
        old: old.and_then(|a| a.verify.as_deref()),
        new: new.and_then(|a| a.verify.as_deref()),
    };
    Edits { hold, replace, verify }
}

/// The cluster whose members V4 and V5 need: only where a hold or replacement is newly set on an update.
pub(super) fn needs_members<'r>(change: &'r Change<ClusterView<'_>>) -> Option<(&'r str, &'r str)> {
    let new = change.new.as_ref()?;
    change.old.as_ref()?;
    let edits = edits(change);
    (edits.hold.set().is_some() || edits.replace.set().is_some()).then_some((&*new.namespace, &*new.name))
}

pub(super) fn validate(addressed: Version, change: &Change<ClusterView<'_>>, lookup: &Lookup) -> Verdict {
    let Some(new) = &change.new else { return Verdict::default() };
    let edits = edits(change);
    if let Err(refusal) = rules(addressed, change.old.as_ref(), new, &edits, lookup) {
        return Verdict { refusal: Some(refusal), warnings: Vec::new() };
    }
    Verdict { refusal: None, warnings: warnings(new, &edits) }
}

fn rules(
    addressed: Version,
    old: Option<&ClusterView<'_>>,
    new: &ClusterView<'_>,
    edits: &Edits<'_>,
    lookup: &Lookup,
) -> Result<(), Refusal> {
    syntax_of_token(edits.verify)?;
    let hold = edits.hold.set().map(|v| parse::<HoldRequest>(edits.hold, v).map(|r| r.0)).transpose()?;
    let replace = edits.replace.set().map(|v| parse::<ReplaceRequest>(edits.replace, v)).transpose()?;

    let service = old.and_then(|o| o.service.as_ref());
    if restores_own(service, edits) {
        return transport::validate(addressed, old, new);
    }
    not_mid_way(service, edits)?;
    never_both(edits)?;
    if let Some(pair) = &hold {
        one_hold(service, edits.hold, pair)?;
    }
    let requested = match (&hold, &replace) {
        (Some(pair), _) => Some((edits.hold, pair)),
        (None, Some(request)) => Some((edits.replace, &request.pair)),
        (None, None) => None,
    };
    if let Some((edit, pair)) = requested {
        who_may(new, edit)?;
        if hold.is_some() {
            quorum(new, edit)?;
        }
        let member = known_pair(old, new, edit, pair, lookup)?;
        if let Some(request) = &replace {
            not_done_already(service, request, edit)?;
            exact_identity(request, member, edit)?;
        }
    }
    transport::validate(addressed, old, new)
}

fn parse<T: std::str::FromStr<Err = InvalidRequest>>(edit: Edit<'_>, value: &str) -> Result<T, Refusal> {
    value.parse().map_err(|e| malformed(edit, &e))
}

fn malformed(edit: Edit<'_>, error: &InvalidRequest) -> Refusal {
    Refusal::new(Rule::V1, format_args!("{}: {error}", edit.key))
}

/// V1 for the token: an empty one is ignored, any other has at most 253 characters.
fn syntax_of_token(edit: Edit<'_>) -> Result<(), Refusal> {
    edit.set().map_or(Ok(()), |token| RequestToken::parse(token).map(drop).map_err(|e| malformed(edit, &e)))
}

/// A replacement's own request, set again after it was removed by force (the webhook was down): without it V10
/// refuses the pins that it still has to move. The identity on record may be the new one in part by then.
fn restores_own(service: Option<&Service>, edits: &Edits<'_>) -> bool {
    let Some(service) = service.filter(|service| service.is_mid_way()) else { return false };
    let own = |value: &str| {
        value.parse::<ReplaceRequest>().is_ok_and(|request| {
            let old = request.old_node_id.to_string();
            request.pair.to_string() == service.pair()
                && service.old_node_id.as_deref().is_some_and(|id| id.eq_ignore_ascii_case(&old))
        })
    };
    edits.replace.old.is_none() && edits.hold.new.is_none() && edits.replace.new.is_some_and(own)
}

/// V7.
fn not_mid_way(service: Option<&Service>, edits: &Edits<'_>) -> Result<(), Refusal> {
    let Some(service) = service.filter(|s| s.is_mid_way()) else { return Ok(()) };
    let what = if edits.replace.changed() {
        match edits.replace.new {
            Some(value) => format!("{} cannot become {}", edits.replace.key, Quoted(value)),
            None => format!("{} cannot be removed", edits.replace.key),
        }
    } else if let Some(value) = edits.hold.set() {
        format!("{} cannot be set to {}", edits.hold.key, Quoted(value))
    } else {
        return Ok(());
    };
    let keep = match edits.replace.old {
        Some(value) if edits.replace.changed() => format!("keep {} and ", Quoted(value)),
        _ => String::new(),
    };
    Err(Refusal::new(
        Rule::V7,
        format_args!(
            "{what} while the replacement of {} is in phase {}; {keep}wait until status.nodeLocalService.phase is Completed",
            Quoted(&service.pair()),
            Quoted(&service.phase),
        ),
    ))
}

/// V2: judged when either is changed to something.
fn never_both(edits: &Edits<'_>) -> Result<(), Refusal> {
    match (edits.hold.new, edits.replace.new) {
        (Some(hold), Some(replace)) if edits.hold.changed() || edits.replace.changed() => Err(Refusal::new(
            Rule::V2,
            format_args!(
                "{} is {} and {} is {}; remove the one that is not meant",
                edits.hold.key,
                Quoted(hold),
                edits.replace.key,
                Quoted(replace)
            ),
        )),
        _ => Ok(()),
    }
}

/// V6.
fn one_hold(service: Option<&Service>, edit: Edit<'_>, pair: &Pair) -> Result<(), Refusal> {
    if let Some(held) =
        edit.old.and_then(|old| old.parse::<HoldRequest>().ok()).filter(|held| held.0 != *pair)
    {
        return Err(Refusal::new(
            Rule::V6,
            format_args!(
                "{} cannot go directly from {} to {}; remove it, wait until status.nodeLocalService.phase is InService, then set the new one",
                edit.key,
                Quoted(&held.0.to_string()),
                Quoted(&pair.to_string()),
            ),
        ));
    }
    let other = |s: &&Service| s.pool != pair.pool.as_str() || s.kubernetes_node != pair.node.as_str();
    let Some(busy) = service.filter(|s| !s.is_finished()).filter(other) else { return Ok(()) };
    let (what, end) = if busy.operation == "ReplaceIdentity" {
        ("the replacement", "Completed")
    } else {
        ("the hold", "InService")
    };
    Err(Refusal::new(
        Rule::V6,
        format_args!(
            "{} cannot be set to {} while {what} of {} is in phase {}; wait until status.nodeLocalService.phase is {end}",
            edit.key,
            Quoted(&pair.to_string()),
            Quoted(&busy.pair()),
            Quoted(&busy.phase),
        ),
    ))
}

/// V8.
fn who_may(cluster: &ClusterView<'_>, edit: Edit<'_>) -> Result<(), Refusal> {
    let fact = if cluster.connect_to {
        "spec.connectTo is set, so the storage belongs to another GarageCluster; set the annotation there"
    } else if !cluster.storage {
        "there is no storage tier; set the annotation on the GarageCluster that has the pool"
    } else if cluster.follower {
        "spec.layoutManagement.siteRole is Follower, and only a single site can be serviced in this way; \
         use the site's own runbook for a federation"
    } else if cluster.remote_clusters {
        "spec.remoteClusters is not empty: the site is federated; use the runbook for a federation"
    } else if cluster.other_sites {
        "status.redundancy.coordination shows storage roles of other sites: the site is federated; \
         use the runbook for a federation"
    } else {
        return Ok(());
    };
    Err(Refusal::new(
        Rule::V8,
        format_args!("{} cannot be set to {}: {fact}", edit.key, Quoted(edit.new.unwrap_or_default())),
    ))
}

/// V9. From factor 3 on one node less keeps the write quorum in every mode.
fn quorum(cluster: &ClusterView<'_>, edit: Edit<'_>) -> Result<(), Refusal> {
    let why = match (cluster.factor, &*cluster.consistency_mode) {
        (2, "dangerous") | (3.., _) => return Ok(()),
        (2, _) => "needs both nodes for a write",
        _ => "has the only copy of each object on one node",
    };
    Err(Refusal::new(
        Rule::V9,
        format_args!(
            "{} cannot be set to {}: spec.replication.factor {} with consistencyMode {} {why}; \
             stop the writers and service the node with Garage stopped, or raise the factor first",
            edit.key,
            Quoted(edit.new.unwrap_or_default()),
            cluster.factor,
            Quoted(&cluster.consistency_mode),
        ),
    ))
}

/// V4.
fn known_pair<'l>(
    old: Option<&ClusterView<'_>>,
    new: &ClusterView<'_>,
    edit: Edit<'_>,
    pair: &Pair,
    lookup: &'l Lookup,
) -> Result<&'l Member, Refusal> {
    let shown = Quoted(edit.new.unwrap_or_default());
    if old.is_none() {
        return Err(Refusal::new(
            Rule::V4,
            format_args!(
                "{} cannot be {shown} on a GarageCluster that is being created: it has no members yet; \
                 create it without the annotation",
                edit.key
            ),
        ));
    }
    if !new.pools.iter().any(|p| p == pair.pool.as_str()) {
        return Err(Refusal::new(
            Rule::V4,
            format_args!(
                "{}: {shown} names pool {}, which spec.storage.nodeLocalPools does not declare; {}",
                edit.key,
                Quoted(pair.pool.as_str()),
                declared(
                    new.pools.iter().map(|p| &**p),
                    "write one of the declared pools:",
                    "no pool is declared, so declare it first"
                ),
            ),
        ));
    }
    let members = match &lookup.members {
        Fact::Known(members) => members,
        Fact::Unknown(why) => return Err(Refusal::undecided(Rule::V4, why)),
    };
    let in_pool = || members.iter().filter(|m| m.pool == pair.pool.as_str());
    in_pool().find(|m| m.kubernetes_node == pair.node.as_str()).ok_or_else(|| {
        Refusal::new(
            Rule::V4,
            format_args!(
                "{}: {shown} names Kubernetes Node {}, which has no GarageNode in pool {}; {}",
                edit.key,
                Quoted(pair.node.as_str()),
                Quoted(pair.pool.as_str()),
                declared(
                    in_pool().map(|m| &*m.kubernetes_node),
                    "write one of its Nodes:",
                    "the pool has no members yet, so wait for them"
                ),
            ),
        )
    })
}

/// "WHAT a, b, c" with at most four names, or `none`.
fn declared<'n>(names: impl Iterator<Item = &'n str>, what: &str, none: &'static str) -> Cow<'static, str> {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    if names.is_empty() {
        return Cow::Borrowed(none);
    }
    let more = if names.len() > 4 { ", …" } else { "" };
    let shown: Vec<String> = names.iter().take(4).map(|n| n.chars().take(40).collect()).collect();
    Cow::Owned(format!("{what} {}{more}", shown.join(", ")))
}

/// V5, R5: the replacement that was completed last, asked for again; what it names is nobody's identity any more.
fn not_done_already(
    service: Option<&Service>,
    request: &ReplaceRequest,
    edit: Edit<'_>,
) -> Result<(), Refusal> {
    let asked = request.old_node_id.to_string();
    let done = service.is_some_and(|service| {
        service.operation == "ReplaceIdentity"
            && service.phase == "Completed"
            && service.pair() == request.pair.to_string()
            && service.old_node_id.as_deref().is_some_and(|id| id.eq_ignore_ascii_case(&asked))
    });
    if !done {
        return Ok(());
    }
    Err(Refusal::new(
        Rule::V5,
        format_args!(
            "{} asks again for the replacement of identity {} of {}, which is completed: remove the annotation, also from \
             the manifest in Git that has it",
            edit.key,
            request.old_node_id.short(),
            Quoted(&request.pair.to_string())
        ),
    ))
}

/// V5: `status.nodeId`, and the pin where set.
fn exact_identity(request: &ReplaceRequest, member: &Member, edit: Edit<'_>) -> Result<(), Refusal> {
    let asked = request.old_node_id;
    let short =
        |id: &str| id.parse::<crate::ids::NodeId>().map_or_else(|_| Quoted(id).to_string(), |id| id.short());
    let is_asked = |id: &str| id.eq_ignore_ascii_case(&asked.to_string());
    let refuse = |fact: std::fmt::Arguments<'_>| {
        Err(Refusal::new(
            Rule::V5,
            format_args!(
                "{} names identity {} for {}, but {fact}",
                edit.key,
                asked.short(),
                Quoted(&request.pair.to_string())
            ),
        ))
    };
    match (member.node_id.as_deref(), member.pin.as_deref()) {
        (Some(id), None) if is_asked(id) => Ok(()),
        (Some(id), Some(pin)) if is_asked(id) && is_asked(pin) => Ok(()),
        (None, pin) => refuse(format_args!(
            "its GarageNode's status.nodeId is empty{}; wait until it is known",
            pin.map_or_else(String::new, |p| format!(" (its recovery pin is {})", short(p))),
        )),
        (Some(id), Some(pin)) if !id.eq_ignore_ascii_case(pin) => refuse(format_args!(
            "its GarageNode's status.nodeId is {} and its recovery pin {}; wait until they agree",
            short(id),
            short(pin),
        )),
        (Some(id), _) => refuse(format_args!(
            "the current identity is {}; if that disk was wiped, write \"{}/{}\"",
            short(id),
            request.pair,
            if id.len() == 64 { id } else { "ID" },
        )),
    }
}

/// What is allowed but deserves notice (V13).
fn warnings(cluster: &ClusterView<'_>, edits: &Edits<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    if edits.verify.set().is_some_and(|t| !t.is_empty()) && cluster.resync_tranquility == Some(0) {
        warnings.push(format!(
            "{}: spec.workers.resyncTranquility is 0, so the proof's repairs run without a pause and slow down clients; \
             raise it first on busy disks",
            edits.verify.key
        ));
    }
    if edits.hold.set().is_some() && !cluster.disruption_budget {
        warnings.push(format!(
            "{}: podDisruptionBudget is off, so nothing keeps a drain of another Node from taking a second member down \
             during the hold",
            edits.hold.key
        ));
    }
    warnings
}
