//! V10 and V11: the recovery pin and the identity of a GarageNode.

use super::view::NodeView;
use super::{Change, Fact, Lookup, Parent, Refusal, Rule};
use crate::ids::{NodeId, Quoted};
use crate::names::annotation::{cluster as key, node as node_key};
use crate::requests::ReplaceRequest;

/// Whether two texts name the same identity; letter case is no difference.
fn same_id(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b)
}

/// The pin when it is set; an empty one pins nothing.
fn pin_of<'v>(node: Option<&'v NodeView<'_>>) -> Option<&'v str> {
    node.and_then(|n| n.pin.as_deref()).filter(|pin| !pin.is_empty())
}

/// A set pin that is changed or removed. A change of letter case counts: nothing needs one.
fn pin_moves(change: &Change<NodeView<'_>>) -> bool {
    pin_of(change.old.as_ref()).is_some_and(|old| pin_of(change.new.as_ref()) != Some(old))
}

/// A pinned pool member's identity in status that is changed or removed.
fn identity_moves(change: &Change<NodeView<'_>>) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return false };
    let pinned = pin_of(Some(old)).or(pin_of(Some(new))).is_some();
    let Some(was) = old.node_id.as_deref() else { return false };
    pinned
        && (old.pool_backed || new.pool_backed)
        && !new.node_id.as_deref().is_some_and(|is| same_id(was, is))
}

/// The parent that V10 and V11 need live.
pub(super) fn needs_parent<'r>(change: &'r Change<NodeView<'_>>) -> Option<(&'r str, &'r str)> {
    let old = change.old.as_ref()?;
    (pin_moves(change) || identity_moves(change)).then_some((&*old.namespace, &*old.cluster))
}

pub(super) fn validate(change: &Change<NodeView<'_>>, lookup: &Lookup) -> Result<(), Refusal> {
    let Some(new) = &change.new else { return Ok(()) };
    let old_pin = pin_of(change.old.as_ref());
    let new_pin = pin_of(Some(new));
    match (old_pin, new_pin) {
        (None, Some(pin)) => pin_is_set(new, pin)?,
        (Some(_), _) if pin_moves(change) => pin_is_moved(change, lookup)?,
        _ => {}
    }
    if identity_moves(change) { identity_is_moved(change, lookup) } else { Ok(()) }
}

fn pin_is_set(new: &NodeView<'_>, pin: &str) -> Result<(), Refusal> {
    if !new.pool_backed {
        return Err(Refusal::new(
            Rule::V10,
            format_args!(
                "GarageNode {} cannot be pinned to {}: its spec.backing is not NodeLocalPool; remove the annotation {}",
                Quoted(&new.name),
                Quoted(pin),
                node_key::RECOVERY_PIN,
            ),
        ));
    }
    pin.parse::<NodeId>().map(drop).map_err(|e| {
        Refusal::new(
            Rule::V10,
            format_args!("{e}; write the identity that status.nodeId shows into {}", node_key::RECOVERY_PIN),
        )
    })
}

fn pin_is_moved(change: &Change<NodeView<'_>>, lookup: &Lookup) -> Result<(), Refusal> {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return Ok(()) };
    let was = pin_of(Some(old)).unwrap_or_default();
    let Some(is) = pin_of(Some(new)) else {
        return Err(Refusal::new(
            Rule::V10,
            format_args!(
                "the pin {} of GarageNode {} cannot be removed, also not during deletion; keep the annotation {}",
                short(was),
                Quoted(&old.name),
                node_key::RECOVERY_PIN,
            ),
        ));
    };
    authorized(Rule::V10, old, new, was, is, lookup)
}

fn identity_is_moved(change: &Change<NodeView<'_>>, lookup: &Lookup) -> Result<(), Refusal> {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return Ok(()) };
    let was = old.node_id.as_deref().unwrap_or_default();
    let Some(is) = new.node_id.as_deref() else {
        return Err(Refusal::new(
            Rule::V11,
            format_args!(
                "status.nodeId {} of GarageNode {} cannot be emptied; write it as it was",
                short(was),
                Quoted(&old.name)
            ),
        ));
    };
    authorized(Rule::V11, old, new, was, is, lookup)?;
    // Pins move in an order (R4): the annotation first. Where it names a third identity, something else is wrong.
    let pin = pin_of(Some(new)).unwrap_or_default();
    if same_id(pin, was) || same_id(pin, is) {
        return Ok(());
    }
    Err(Refusal::new(
        Rule::V11,
        format_args!(
            "status.nodeId of GarageNode {} cannot become {}: its recovery pin names {}; repair the pin first",
            Quoted(&old.name),
            short(is),
            short(pin),
        ),
    ))
}

/// The first 16 characters of an identity; anything else quoted.
fn short(id: &str) -> String {
    id.parse::<NodeId>().map_or_else(|_| Quoted(id).to_string(), |id| id.short())
}

/// Whether the live parent authorizes the change of this member's identity from `was` to `is`.
fn authorized(
    rule: Rule,
    old: &NodeView<'_>,
    new: &NodeView<'_>,
    was: &str,
    is: &str,
    lookup: &Lookup,
) -> Result<(), Refusal> {
    let refuse_so = |fact: std::fmt::Arguments<'_>, next: std::fmt::Arguments<'_>| {
        Err(Refusal::new(
            rule,
            format_args!(
                "GarageNode {} cannot go from {} to {}: {fact}; {next}",
                Quoted(&old.name),
                short(was),
                short(is),
            ),
        ))
    };
    // The request that would authorize it, ready to be copied.
    let refuse = |fact: std::fmt::Arguments<'_>| {
        refuse_so(
            fact,
            format_args!(
                "to replace the identity, set on GarageCluster {} {}: \"{}/{}/{was}\"",
                Quoted(&old.cluster),
                key::REPLACE_IDENTITY,
                old.pool,
                old.kubernetes_node,
            ),
        )
    };
    let keep = format_args!("write it as it was");
    if is.parse::<NodeId>().is_err() {
        return refuse_so(format_args!("the new value is not 64 hexadecimal characters"), keep);
    }
    if same_id(was, is) {
        return refuse_so(format_args!("only the letter case differs"), keep);
    }
    if !old.pool_backed || !new.pool_backed {
        return refuse_so(format_args!("its spec.backing is not NodeLocalPool"), keep);
    }
    if old.foreign_namespace || new.foreign_namespace {
        return refuse_so(format_args!("its spec.clusterRef names another namespace"), keep);
    }
    if (&old.cluster, &old.pool, &old.kubernetes_node) != (&new.cluster, &new.pool, &new.kubernetes_node) {
        return refuse_so(format_args!("the same change moves it to another cluster, pool or Node"), keep);
    }
    let parent: &Parent = match &lookup.parent {
        Fact::Unknown(why) => return Err(Refusal::undecided(rule, why)),
        Fact::Known(None) => {
            return refuse_so(
                format_args!("GarageCluster {} does not exist", Quoted(&old.cluster)),
                format_args!("only a GarageCluster can authorize it"),
            );
        }
        Fact::Known(Some(parent)) => parent,
    };
    let Some(value) = parent.replace.as_deref() else {
        return refuse(format_args!("its GarageCluster carries no replace request"));
    };
    let Ok(request) = value.parse::<ReplaceRequest>() else {
        return refuse(format_args!("its GarageCluster's replace request {} is malformed", Quoted(value)));
    };
    let same_pair =
        request.pair.pool.as_str() == old.pool && request.pair.node.as_str() == old.kubernetes_node;
    if !same_pair {
        return refuse(format_args!(
            "the standing replace request is for {}",
            Quoted(&request.pair.to_string())
        ));
    }
    if !same_id(&request.old_node_id.to_string(), was) {
        return refuse(format_args!(
            "the standing replace request is for identity {}",
            request.old_node_id.short()
        ));
    }
    let recorded = parent
        .service
        .as_ref()
        .filter(|s| s.pool == old.pool && s.kubernetes_node == old.kubernetes_node)
        .filter(|s| s.old_node_id.as_deref().is_some_and(|id| same_id(id, was)))
        .and_then(|s| s.new_node_id.as_deref());
    match recorded {
        Some(recorded) if !same_id(recorded, is) => refuse_so(
            format_args!("the replacement under way records another new identity"),
            format_args!("write {recorded}"),
        ),
        _ => Ok(()),
    }
}
