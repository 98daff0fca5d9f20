//! GarageNode: the recovery pin.

use super::Subject;
use crate::convert::Version;
use crate::names::annotation::node::RECOVERY_PIN;
use crate::validate::{
    Change, Fact, Kind, Lookup, NodeView, Operation, Parent, Request, Subject as Judged, validate,
};

pub(super) fn judge(subject: &mut Subject<'_>) {
    let json = subject.object.to_value().to_string();
    let view = match NodeView::from_json("object", &json) {
        Ok(view) => view,
        Err(error) => {
            subject.misshapen(&error);
            return;
        }
    };
    let at = subject.annotation_at(RECOVERY_PIN);
    match subject.live.node(subject.namespace(), subject.name()) {
        Fact::Unknown(_) => {
            let pinned = view.pin.as_deref().is_some_and(|p| !p.is_empty());
            let request = Request {
                operation: Operation::Create,
                addressed: Version::V1beta1,
                subject: Judged::Node(Box::new(Change { old: None, new: Some(view) })),
            };
            let verdict = validate(&request, &Lookup::default());
            if let Some(refusal) = verdict.refusal {
                subject.error(at, refusal.rule.id(), refusal.message);
            } else if pinned {
                subject.unchecked(
                    at,
                    "V10",
                    "whether the stored GarageNode has another pin, which cannot be changed",
                );
            }
        }
        Fact::Known(old) => {
            let operation = if old.is_some() { Operation::Update } else { Operation::Create };
            let request = Request::from_json(
                Kind::GarageNode,
                operation,
                Version::V1beta1,
                "",
                old.as_deref(),
                Some(&json),
            );
            let request = match request {
                Ok(request) => request,
                Err(error) => {
                    subject.misshapen(&error);
                    return;
                }
            };
            let lookup = Lookup { parent: parent(subject, &view), ..Lookup::default() };
            if let Some(refusal) = validate(&request, &lookup).refusal {
                if refusal.undecided {
                    subject.unchecked(at, refusal.rule.id(), refusal.message);
                } else {
                    subject.error(at, refusal.rule.id(), refusal.message);
                }
            }
        }
    }
}

fn parent(subject: &Subject<'_>, view: &NodeView<'_>) -> Fact<Option<Parent>> {
    match subject.live.cluster(subject.namespace(), &view.cluster) {
        Fact::Unknown(why) => Fact::Unknown(why),
        Fact::Known(None) => Fact::Known(None),
        Fact::Known(Some(json)) => match crate::validate::ClusterView::from_json("parent", &json) {
            Ok(cluster) => Fact::Known(Some(Parent::from(&cluster))),
            Err(error) => Fact::Unknown(error.to_string().into()),
        },
    }
}
