//! GarageCluster: requests and reserved transport.

use std::borrow::Cow;

use serde_json::Value;

use super::{Severity, Subject};
use crate::convert::{Problem, Version, convert_value};
use crate::names::annotation::cluster as key;
use crate::requests::{HoldRequest, ReplaceRequest};
use crate::validate::{
    Change, ClusterView, Fact, Kind, Lookup, Member, Operation, Request, Rule, Subject as Judged, Verdict,
    standing, validate,
};

/// The annotations that a person sets.
pub(super) const REQUESTS: [&str; 3] = [key::VERIFY_REDUNDANCY, key::OUT_OF_SERVICE, key::REPLACE_IDENTITY];
const RESERVED: [&str; 4] =
    [key::V1BETA2_NODE_LOCAL_POOLS, key::V1BETA2_GATEWAY_TIER, key::HOLDFAST_CARRIED, key::V1BETA2_ONLY];

pub(super) fn judge(subject: &mut Subject<'_>) {
    let value = subject.object.to_value();
    let json = value.to_string();
    let view = match ClusterView::from_json("object", &json) {
        Ok(view) => view,
        Err(error) => {
            subject.misshapen(&error);
            return;
        }
    };
    let convertible = converts(subject, &value, view.version);
    match subject.live.cluster(subject.namespace(), subject.name()) {
        Fact::Known(old) => live(subject, &json, old.as_deref(), &view),
        Fact::Unknown(_) => offline(subject, &view, convertible),
    }
}

/// C5: an object without a view in the other version breaks every list of its kind.
fn converts(subject: &mut Subject<'_>, value: &Value, version: Version) -> bool {
    let other = match version {
        Version::V1beta1 => Version::V1beta2,
        Version::V1beta2 => Version::V1beta1,
    };
    let Err(error) = convert_value(value, other) else { return true };
    let at = match &error.problem {
        Problem::DamagedAnnotation(annotation, _) => subject.annotation_at(annotation),
        Problem::PoolsWithoutStorage => subject.annotation_at(key::V1BETA2_NODE_LOCAL_POOLS),
        Problem::GatewayWithoutTier => subject.annotation_at(key::V1BETA2_GATEWAY_TIER),
        _ => subject.object.at,
    };
    subject.error(at, "conversion", format!("no {other} view: {}", error.problem));
    false
}

fn report(subject: &mut Subject<'_>, verdict: Verdict, fallback: &'static str) {
    if let Some(refusal) = verdict.refusal {
        let named = REQUESTS.into_iter().chain(RESERVED).find(|k| refusal.message.contains(k));
        let at = subject.annotation_at(named.unwrap_or(fallback));
        if refusal.undecided {
            subject.unchecked(at, refusal.rule.id(), refusal.message);
        } else {
            subject.error(at, refusal.rule.id(), refusal.message);
        }
    }
    for warning in verdict.warnings {
        let named = REQUESTS.into_iter().find(|k| warning.contains(k)).unwrap_or(fallback);
        subject.add(subject.annotation_at(named), Severity::Warning, "V13", warning);
    }
}

/// With the stored object at hand the verdict is exactly the webhook's.
fn live(subject: &mut Subject<'_>, json: &str, old: Option<&str>, view: &ClusterView<'_>) {
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    match Request::from_json(Kind::GarageCluster, operation, view.version, "", old, Some(json)) {
        Ok(request) => {
            let members = subject.live.members(subject.namespace(), subject.name());
            report(
                subject,
                validate(&request, &Lookup { members, ..Lookup::default() }),
                key::OUT_OF_SERVICE,
            );
        }
        Err(error) => subject.misshapen(&error),
    }
}

fn offline(subject: &mut Subject<'_>, view: &ClusterView<'_>, convertible: bool) {
    // What holds for a new object too: the token and the reserved transport.
    let mut plain = view.clone();
    plain.annotations.hold = None;
    plain.annotations.replace = None;
    if !convertible {
        // Said already, and the size of a view that does not exist cannot be judged.
        plain.raw = None;
    }
    let create = Request {
        operation: Operation::Create,
        addressed: view.version,
        subject: Judged::Cluster(Box::new(Change { old: None, new: Some(plain) })),
    };
    report(subject, validate(&create, &Lookup::default()), key::VERIFY_REDUNDANCY);
    if let (Some(hold), Some(replace)) = (&view.annotations.hold, &view.annotations.replace)
        && hold.parse::<HoldRequest>().is_ok()
        && replace.parse::<ReplaceRequest>().is_ok()
    {
        report(subject, as_if_known(view), key::REPLACE_IDENTITY);
    }
    for annotation in [key::OUT_OF_SERVICE, key::REPLACE_IDENTITY] {
        let mut one = view.clone();
        let other = if annotation == key::OUT_OF_SERVICE {
            &mut one.annotations.replace
        } else {
            &mut one.annotations.hold
        };
        *other = None;
        if !subject.has_annotation(annotation) {
            continue;
        }
        let verdict = as_if_known(&one);
        let malformed = verdict.rule() == Some(Rule::V1);
        report(subject, verdict, annotation);
        if !malformed {
            let (rules, what) = if annotation == key::OUT_OF_SERVICE {
                (
                    "V4, V6, V7",
                    "whether the pair has a GarageNode, and whether another hold or a replacement is under way",
                )
            } else {
                (
                    "V4, V5, V6, V7",
                    "whether the pair has a GarageNode with this identity, and whether another hold or replacement is under way",
                )
            };
            subject.unchecked(subject.annotation_at(annotation), rules, what);
        }
    }
}

/// Judges the standing requests as if their member were there with the identity that they name.
fn as_if_known(view: &ClusterView<'_>) -> Verdict {
    let request = view.annotations.replace.as_deref().and_then(|v| v.parse::<ReplaceRequest>().ok());
    let hold = view.annotations.hold.as_deref().and_then(|v| v.parse::<HoldRequest>().ok());
    let member = |pair: &crate::ids::Pair, id: Option<String>| Member {
        pool: pair.pool.to_string(),
        kubernetes_node: pair.node.to_string(),
        node_id: id,
        pin: None,
    };
    let members = request
        .iter()
        .map(|r| member(&r.pair, Some(r.old_node_id.to_string())))
        .chain(hold.iter().map(|h| member(&h.0, None)))
        .collect();
    let mut standing = standing(view);
    // Reserved transport and its size are judged apart.
    if let Judged::Cluster(change) = &mut standing.subject {
        for side in [&mut change.old, &mut change.new].into_iter().flatten() {
            side.raw = None;
        }
        if let (Some(old), Some(new)) = (&mut change.old, &change.new) {
            let verify: Option<Cow<'_, str>> = new.annotations.verify.clone();
            old.annotations.verify = verify;
        }
    }
    validate(&standing, &Lookup { members: Fact::Known(members), ..Lookup::default() })
}
