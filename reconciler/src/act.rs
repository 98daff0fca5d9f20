//! What a pass may do, as data; [`perform`] is the only place that writes.
//!
//! Every action can be repeated: a process killed between any two goes on from what it finds. An
//! [`Outcome`] tells apart what certainly did not happen, what happened, and what may have.

mod endpoints;
mod garage;
mod kubernetes;
mod object;

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_crds::ids::{LayoutVersion, NodeId};
use serde_json::Value;

pub use endpoints::Endpoints;
#[cfg(test)]
pub(crate) use garage::perform as perform_on_garage;
pub use garage::{CallFailure, GarageCalls};
pub use object::{Kind, Object, PatchBuilder, Target, pointer};

use crate::observe::{Layout, Role, StagedChange};
use crate::spans;

/// The field manager of every write, and the reporter of every event.
pub const FIELD_MANAGER: &str = "garage-holdfast";

/// How long one action may take (`architecture.md`: every call has a deadline): a read and a write of a
/// starved Garage fit in. Less than what is always left of a renewed lease (15 s, renewed every 2 s within 4 s),
/// or the leader would never act.
pub const DEADLINE: Duration = Duration::from_secs(9);

/// A repair that the proof launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepairKind {
    /// `tables`.
    Tables,
    /// `blocks`.
    Blocks,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Creates an object; one that is already there is left as it is.
    Create(Object),
    /// Replaces an object; its `metadata.resourceVersion` makes it a compare-and-swap.
    Update(Object),
    /// A JSON patch whose `test` operations say what it rests on.
    Patch {
        /// Which object.
        target: Target,
        /// Whether it goes to the `status` subresource.
        status: bool,
        /// The patch.
        patch: json_patch::Patch,
        /// Only asks whether it would be accepted (R1).
        dry_run: bool,
    },
    /// A JSON merge patch of `status` on the resource version that was read (P20).
    MergeStatus {
        /// Which object.
        target: Target,
        /// The resource version that was read.
        resource_version: String,
        /// The changed fields of `status`; `null` removes one.
        status: Value,
    },
    /// Deletes exactly the object with this UID.
    Delete {
        /// Which object.
        target: Target,
        /// Its UID.
        uid: String,
    },
    /// Publishes an event about an object.
    Event(Event),
    /// `ConnectClusterNodes` on one Pod's own endpoint.
    ConnectNodes {
        /// Where: an Admin API address of a running Pod.
        at: SocketAddr,
        /// Whom it is told of.
        peers: Vec<Peer>,
    },
    /// `UpdateClusterLayout`: stages role changes beside what is staged already.
    UpdateLayout {
        /// The node to which the update and the apply both go (FACTS 2); `None`: the endpoint that
        /// this pass believed.
        at: Option<NodeId>,
        /// The version on which the decision rests. Another one there: nothing is staged.
        base: LayoutVersion,
        /// What to stage.
        changes: Vec<StagedChange>,
        /// All that may be staged once it is done; anything else there before: nothing is staged.
        staged: Vec<StagedChange>,
    },
    /// `ApplyClusterLayout` (R2): re-reads staging on the same node first and applies only exactly
    /// what is expected, then compares the roles of the answer.
    ApplyLayout {
        /// As in `UpdateLayout`.
        at: Option<NodeId>,
        /// The version that this makes: current + 1.
        version: LayoutVersion,
        /// Exactly what must be staged, in any order.
        staged: Vec<StagedChange>,
    },
    /// `ClusterLayoutSkipDeadNodes`, never with `allowMissingData` (R4).
    SkipDeadNodes {
        /// As in `UpdateLayout`.
        at: Option<NodeId>,
        /// The current version.
        version: LayoutVersion,
    },
    /// Launch a repair on one node (P7, P8).
    LaunchRepair {
        /// Where.
        node: NodeId,
        /// Which.
        kind: RepairKind,
    },
    /// `SetWorkerVariable` on one node.
    SetWorkerVariable {
        /// Where.
        node: NodeId,
        /// Which, e.g. `resync-tranquility`.
        variable: String,
        /// Its value.
        value: String,
    },
}

impl Action {
    /// Its kind and object, for the log: never what it carries, which may be a Secret.
    pub fn name(&self) -> String {
        match self {
            Self::Create(object) => format!("create {}", object.target()),
            Self::Update(object) => format!("update {}", object.target()),
            Self::Patch { target, dry_run: true, .. } => format!("dry run of a patch of {target}"),
            Self::Patch { target, .. } => format!("patch {target}"),
            Self::MergeStatus { target, .. } => format!("status of {target}"),
            Self::Delete { target, .. } => format!("delete {target}"),
            Self::Event(event) => format!("event {} on {}", event.reason, event.regarding),
            Self::ConnectNodes { at, .. } => format!("ConnectClusterNodes at {at}"),
            Self::UpdateLayout { base, .. } => format!("UpdateClusterLayout on version {base}"),
            Self::ApplyLayout { version, .. } => format!("ApplyClusterLayout of version {version}"),
            Self::SkipDeadNodes { version, .. } => format!("ClusterLayoutSkipDeadNodes of version {version}"),
            Self::LaunchRepair { node, kind } => {
                format!("LaunchRepairOperation {kind:?} on {}", node.short())
            }
            Self::SetWorkerVariable { node, variable, .. } => {
                format!("SetWorkerVariable {variable} on {}", node.short())
            }
        }
    }
}

/// A peer to introduce: `<id>@<address>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Its identity.
    pub id: NodeId,
    /// Its RPC address.
    pub address: SocketAddr,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.id, self.address)
    }
}

/// An event to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// About which object.
    pub regarding: Target,
    /// Its UID.
    pub uid: String,
    /// A warning, or else normal.
    pub warning: bool,
    /// `CamelCase`, at most 128 characters.
    pub reason: String,
    /// One sentence, at most 1 kB.
    pub note: String,
}

/// What became of an action.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It was done, or was done already.
    Executed(Answer),
    /// It certainly was not done; nothing changed.
    NotExecuted(Refusal),
    /// It may have been done, or may still be: the next pass looks (R3). A fixed phrase.
    Unknown(String),
}

impl Outcome {
    /// Whether it was done.
    pub const fn executed(&self) -> bool {
        matches!(self, Self::Executed(_))
    }
}

/// What an executed action answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Nothing of interest.
    Done,
    /// The object as it is stored now.
    Stored(Value),
    /// The layout as it is now.
    Layout(Layout),
    /// Per peer whether it was connected, in the order asked.
    Connected(Vec<bool>),
    /// The nodes whose `ack` a skip moved.
    Skipped(Vec<NodeId>),
}

/// Why an action certainly was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The object changed since it was read, or a `test` of the patch failed.
    #[error("{0} changed since it was read")]
    Conflict(String),
    /// The API server or an admission webhook said no; its message.
    #[error("{target} was refused: {message}")]
    Denied {
        /// Which object.
        target: String,
        /// The server's words.
        message: String,
    },
    /// The object does not exist.
    #[error("{0} does not exist")]
    NotFound(String),
    /// Garage cannot be reached there.
    #[error("the Admin API at {0} cannot be reached")]
    Unreachable(String),
    /// Garage said no. A fixed phrase.
    #[error("Garage refused: {0}")]
    Garage(String),
    /// What is staged or current in the layout is not what the decision rests on.
    #[error("the layout is not what this change rests on: {0}")]
    Layout(String),
}

/// What [`perform`] needs.
pub struct Clients<G> {
    /// Kubernetes.
    pub kube: kube::Client,
    /// Garage.
    pub garage: G,
}

/// Performs one action within [`DEADLINE`].
pub async fn perform<G: GarageCalls>(action: &Action, clients: &Clients<G>) -> Outcome {
    let work = async {
        match action {
            Action::Create(object) => kubernetes::create(&clients.kube, object).await,
            Action::Update(object) => kubernetes::update(&clients.kube, object).await,
            Action::Patch { target, status, patch, dry_run } => {
                kubernetes::patch(&clients.kube, target, *status, patch, *dry_run).await
            }
            Action::MergeStatus { target, resource_version, status } => {
                kubernetes::merge_status(&clients.kube, target, resource_version, status).await
            }
            Action::Delete { target, uid } => kubernetes::delete(&clients.kube, target, uid).await,
            Action::Event(event) => kubernetes::publish(&clients.kube, event).await,
            other => garage::perform(other, &clients.garage).await,
        }
    };
    let span = spans::write(action);
    let outcome = match tokio::time::timeout(DEADLINE, work).await {
        Ok(outcome) => outcome,
        Err(_) => Outcome::Unknown(format!("no answer within {} s", DEADLINE.as_secs())),
    };
    spans::done(&span, &outcome);
    outcome
}

/// Whether what is staged is exactly what is expected, in any order. A removal of an ID without a
/// role is no change (D12), yet it is not ours: R4a refuses to apply over it.
pub fn is_exactly_staged(layout: &Layout, expected: &[StagedChange]) -> bool {
    layout.staged_parameters.is_none()
        && layout.staged.len() == expected.len()
        && expected.iter().all(|change| layout.staged.iter().any(|have| same_change(have, change)))
}

/// Whether the roles of `layout` are what `changes` were to make of them.
pub fn roles_hold(layout: &Layout, changes: &[StagedChange]) -> bool {
    changes.iter().all(|change| match (&change.role, layout.roles.get(&change.id)) {
        (None, None) => true,
        (Some(wanted), Some(role)) => same_role(wanted, role),
        _ => false,
    })
}

/// The same node and the same role.
pub fn same_change(a: &StagedChange, b: &StagedChange) -> bool {
    a.id == b.id
        && match (&a.role, &b.role) {
            (Some(a), Some(b)) => same_role(a, b),
            (None, None) => true,
            _ => false,
        }
}

/// Equal zone and capacity, and equal tags in any order.
pub fn same_role(a: &Role, b: &Role) -> bool {
    let sorted = |role: &Role| {
        let mut tags = role.tags.clone();
        tags.sort();
        tags
    };
    a.zone == b.zone && a.capacity == b.capacity && sorted(a) == sorted(b)
}
