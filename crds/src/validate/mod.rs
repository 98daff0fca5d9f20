//! Admission rules V1 to V13 (`behaviour.md`, section 4) as pure functions over plain data.
//!
//! The webhook runs them at apply time, the reconciler again before it acts: a webhook that was down cannot let
//! a bad request act. The steps of a caller:
//!
//! 1. build a [`Request`] ([`Request::from_json`], or [`standing`] for what is already stored);
//! 2. ask [`needs`] which facts the rules want, and fetch them;
//! 3. call [`validate`] with a [`Lookup`].
//!
//! A fact that could not be had is [`Fact::Unknown`], and a rule that needs it refuses: fail closed.

mod cluster;
mod node;
#[cfg(test)]
mod tests;
mod transport;
mod view;

use std::borrow::Cow;
use std::fmt;

pub use view::{Annotations, ClusterView, NodeView, RawCluster, Service, Unreadable};

pub use crate::convert::Version;

/// The longest message, in characters. Kubernetes shows it on one line of a terminal.
pub const MAX_MESSAGE: usize = 480;

/// The rule that a refusal or an unknown fact belongs to; its name is a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Syntax.
    V1,
    /// Hold and replace are never present together.
    V2,
    /// The pair is declared and has a GarageNode.
    V4,
    /// The old ID is the current identity.
    V5,
    /// One hold at a time.
    V6,
    /// Not in the middle of a replacement.
    V7,
    /// Sites that may.
    V8,
    /// Write quorum by arithmetic.
    V9,
    /// The recovery pin.
    V10,
    /// The identity in status.
    V11,
    /// Reserved transport annotations.
    V12,
}

impl Rule {
    /// Every rule that can refuse.
    pub const ALL: [Self; 11] = [
        Self::V1,
        Self::V2,
        Self::V4,
        Self::V5,
        Self::V6,
        Self::V7,
        Self::V8,
        Self::V9,
        Self::V10,
        Self::V11,
        Self::V12,
    ];

    /// `V1` to `V12`.
    pub const fn id(self) -> &'static str {
        match self {
            Self::V1 => "V1",
            Self::V2 => "V2",
            Self::V4 => "V4",
            Self::V5 => "V5",
            Self::V6 => "V6",
            Self::V7 => "V7",
            Self::V8 => "V8",
            Self::V9 => "V9",
            Self::V10 => "V10",
            Self::V11 => "V11",
            Self::V12 => "V12",
        }
    }

    /// The rule in words, the beginning of each of its messages.
    pub const fn words(self) -> &'static str {
        match self {
            Self::V1 => "the value must be well-formed",
            Self::V2 => "a hold and a replacement are never requested together",
            Self::V4 => "a request must name a known member",
            Self::V5 => "a replacement must name the member's current identity",
            Self::V6 => "one hold at a time",
            Self::V7 => "a replacement under way is not interrupted",
            Self::V8 => "only a single site with its own storage tier is serviced this way",
            Self::V9 => "the remaining nodes must keep the write quorum",
            Self::V10 => "a recovery pin moves only with an authorized replacement",
            Self::V11 => "a pinned member's identity changes only with an authorized replacement",
            Self::V12 => "reserved transport is not for hand edits",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Which rule.
    pub rule: Rule,
    /// The rule in words, the value, the fact, the next step (V13). At most [`MAX_MESSAGE`] characters.
    pub message: String,
    /// The rule could not be judged, because a fact was unknown: asking again later may succeed.
    pub undecided: bool,
}

impl Refusal {
    fn new(rule: Rule, what: fmt::Arguments<'_>) -> Self {
        Self { rule, message: cut(format!("{rule} ({}): {what}", rule.words())), undecided: false }
    }

    fn undecided(rule: Rule, why: &str) -> Self {
        let message = format!(
            "{rule} ({}): cannot be judged now and is refused to be safe: {why}; apply again in some seconds",
            rule.words()
        );
        Self { rule, message: cut(message), undecided: true }
    }
}

/// Cuts a message to [`MAX_MESSAGE`] characters.
fn cut(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE - 1) {
        message.truncate(end);
        message.push('…');
    }
    message
}

/// The outcome of one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Why not, if not.
    pub refusal: Option<Refusal>,
    /// For what is allowed but deserves notice; each at most a few hundred characters.
    pub warnings: Vec<String>,
}

impl Verdict {
    /// Whether the request passes.
    pub const fn allowed(&self) -> bool {
        self.refusal.is_none()
    }

    /// The rule that refused it.
    pub fn rule(&self) -> Option<Rule> {
        self.refusal.as_ref().map(|r| r.rule)
    }

    /// The message of the refusal; empty when allowed.
    pub fn message(&self) -> &str {
        self.refusal.as_ref().map_or("", |r| &r.message)
    }
}

impl From<Result<(), Refusal>> for Verdict {
    fn from(result: Result<(), Refusal>) -> Self {
        Self { refusal: result.err(), warnings: Vec::new() }
    }
}

/// What is done to the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// It is made.
    Create,
    /// It is changed: update, patch, server-side apply.
    Update,
    /// It is deleted.
    Delete,
    /// A connection to it is opened.
    Connect,
}

impl Operation {
    /// From the word of an AdmissionReview.
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "CREATE" => Some(Self::Create),
            "UPDATE" => Some(Self::Update),
            "DELETE" => Some(Self::Delete),
            "CONNECT" => Some(Self::Connect),
            _ => None,
        }
    }
}

/// Which kind a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// GarageCluster, both versions.
    GarageCluster,
    /// GarageNode, v1beta1.
    GarageNode,
}

/// An object before and after.
#[derive(Debug, Clone, Default)]
pub struct Change<T> {
    /// Before; absent on create.
    pub old: Option<T>,
    /// After; absent on delete.
    pub new: Option<T>,
}

/// What is changed.
#[derive(Debug, Clone)]
pub enum Subject<'a> {
    /// A GarageCluster.
    Cluster(Box<Change<ClusterView<'a>>>),
    /// A GarageNode.
    Node(Box<Change<NodeView<'a>>>),
    /// Nothing that a rule reads: a `scale` subresource, a deletion.
    Nothing,
}

/// One request to judge.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// What is done.
    pub operation: Operation,
    /// The version that the client addressed (`requestKind`), which V12 goes by.
    pub addressed: Version,
    /// The object before and after.
    pub subject: Subject<'a>,
}

impl<'a> Request<'a> {
    /// Reads what rules need from the JSON of the objects.
    ///
    /// `subresource` is that of the review ("status", "scale") or empty. A deletion and a `scale` change nothing
    /// that a rule protects; their objects are not read.
    ///
    /// # Errors
    /// An object that the operation needs is absent, broken, or of another version.
    pub fn from_json(
        kind: Kind,
        operation: Operation,
        addressed: Version,
        subresource: &str,
        old: Option<&'a str>,
        new: Option<&'a str>,
    ) -> Result<Self, Unreadable> {
        let judged = matches!(operation, Operation::Create | Operation::Update)
            && matches!(subresource, "" | "status");
        if !judged {
            return Ok(Self { operation, addressed, subject: Subject::Nothing });
        }
        let new = new.ok_or(Unreadable::Missing { what: "object" })?;
        let old = match operation {
            Operation::Create => None,
            _ => Some(old.ok_or(Unreadable::Missing { what: "oldObject" })?),
        };
        let subject = match kind {
            Kind::GarageCluster => Subject::Cluster(Box::new(Change {
                old: old.map(|json| ClusterView::from_json("oldObject", json)).transpose()?,
                new: Some(ClusterView::from_json("object", new)?),
            })),
            Kind::GarageNode => Subject::Node(Box::new(Change {
                old: old.map(|json| NodeView::from_json("oldObject", json)).transpose()?,
                new: Some(NodeView::from_json("object", new)?),
            })),
        };
        Ok(Self { operation, addressed, subject })
    }
}

/// The requests that stand on a stored GarageCluster, judged as if they were set just now.
///
/// For the reconciler, before it acts: [`validate`] on the result runs V1, V2 and V4 to V9 on the annotations
/// that are there, whether or not they changed.
pub fn standing<'a>(cluster: &ClusterView<'a>) -> Request<'a> {
    let mut old = cluster.clone();
    old.annotations.hold = None;
    old.annotations.replace = None;
    Request {
        operation: Operation::Update,
        addressed: cluster.version,
        subject: Subject::Cluster(Box::new(Change { old: Some(old), new: Some(cluster.clone()) })),
    }
}

/// A fact from outside the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact<T> {
    /// It is so.
    Known(T),
    /// It could not be had; why, in words that may be shown ("the cache is not filled yet").
    Unknown(Cow<'static, str>),
}

impl<T> Default for Fact<T> {
    fn default() -> Self {
        Self::Unknown(Cow::Borrowed("it was not looked up"))
    }
}

/// A pool member's GarageNode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Member {
    /// `spec.nodeLocalPoolName`.
    pub pool: String,
    /// `spec.kubernetesNodeName`.
    pub kubernetes_node: String,
    /// `status.nodeId`; empty counts as absent.
    pub node_id: Option<String>,
    /// The recovery pin; empty counts as absent.
    pub pin: Option<String>,
}

impl From<&NodeView<'_>> for Member {
    fn from(node: &NodeView<'_>) -> Self {
        let text = |t: &Option<Cow<'_, str>>| t.as_deref().filter(|t| !t.is_empty()).map(str::to_owned);
        Self {
            pool: node.pool.to_string(),
            kubernetes_node: node.kubernetes_node.to_string(),
            node_id: text(&node.node_id),
            pin: text(&node.pin),
        }
    }
}

/// What a GarageNode's rules need of its parent, read live.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parent {
    /// Its `node-local-replace-identity`.
    pub replace: Option<String>,
    /// Its `status.nodeLocalService`.
    pub service: Option<Service>,
}

impl From<&ClusterView<'_>> for Parent {
    fn from(cluster: &ClusterView<'_>) -> Self {
        Self {
            replace: cluster.annotations.replace.as_deref().map(str::to_owned),
            service: cluster.service.clone(),
        }
    }
}

/// Facts for [`validate`]; only what [`needs`] names has to be filled.
#[derive(Debug, Clone, Default)]
pub struct Lookup {
    /// The cluster's `NodeLocalPool`-backed GarageNodes (V4, V5); a cache will do.
    pub members: Fact<Vec<Member>>,
    /// The GarageNode's parent as the API server has it at this moment (V10, V11); `None`: there is none.
    pub parent: Fact<Option<Parent>>,
}

/// What [`validate`] will ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs<'r> {
    /// The members of the cluster with this namespace and name.
    pub members: Option<(&'r str, &'r str)>,
    /// A live read of the GarageCluster with this namespace and name.
    pub parent: Option<(&'r str, &'r str)>,
}

/// Which facts a request needs; most need none.
pub fn needs<'r>(request: &'r Request<'_>) -> Needs<'r> {
    match &request.subject {
        Subject::Cluster(change) => Needs { members: cluster::needs_members(change), parent: None },
        Subject::Node(change) => Needs { members: None, parent: node::needs_parent(change) },
        Subject::Nothing => Needs::default(),
    }
}

/// Judges a request by V1 to V13. Dry runs get the same verdict: nothing here has an effect.
pub fn validate(request: &Request<'_>, lookup: &Lookup) -> Verdict {
    match &request.subject {
        Subject::Cluster(change) => cluster::validate(request.addressed, change, lookup),
        Subject::Node(change) => node::validate(change, lookup).into(),
        Subject::Nothing => Verdict::default(),
    }
}
