//! What every condition reason means and what to do next: one table, read by `kubectl holdfast` and by the
//! page of the documentation that is generated from it.

use crate::conditions::ConditionType;

/// How much a person has to do about a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    /// Nothing: it is as it should be.
    Good,
    /// Nothing: the product works.
    Working,
    /// Nothing yet: it waits for something that often comes by itself; the message names it.
    Waiting,
    /// Something: it does not go on by itself.
    Act,
}

impl Urgency {
    /// In a word, as the reference shows it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Working => "working",
            Self::Waiting => "waiting",
            Self::Act => "act",
        }
    }
}

/// One reason of one condition.
#[derive(Debug, Clone, Copy)]
pub struct Explanation {
    /// The condition.
    pub condition: ConditionType,
    /// The reason.
    pub reason: &'static str,
    /// The condition's status with this reason.
    pub status: &'static str,
    /// How much a person has to do.
    pub urgency: Urgency,
    /// What it means, in a sentence.
    pub meaning: &'static str,
    /// The next step, in a sentence or two.
    pub next: &'static str,
}

/// What the reason of a condition means; `None` for a reason of another operator or release.
pub fn explain(condition: &str, reason: &str) -> Option<&'static Explanation> {
    TABLE.iter().find(|e| e.condition.as_str() == condition && e.reason == reason)
}

/// Every condition that knows this reason, or every reason of the condition of this name; letters' case does not count.
pub fn find(word: &str) -> Vec<&'static Explanation> {
    TABLE
        .iter()
        .filter(|e| e.reason.eq_ignore_ascii_case(word) || e.condition.as_str().eq_ignore_ascii_case(word))
        .collect()
}

/// What a condition as a whole says.
pub const fn condition_meaning(condition: ConditionType) -> &'static str {
    match condition {
        ConditionType::FullyReplicated => {
            "Every block is on every node that should hold it. Set by a completed proof and by nothing else; it never gates `Ready`."
        }
        ConditionType::NodeLocalOutOfService => {
            "The hold that `node-local-out-of-service` asks for. True, and only True, means that the disk may be touched."
        }
        ConditionType::NodeLocalIdentityReplaced => {
            "The refill that `node-local-replace-identity` authorizes. True means that the new identity has the old one's role; the data follows, and a proof tells when it is there."
        }
        ConditionType::NodeLocalPoolsReady => {
            "Every Node that a pool selects runs an active member that is connected and in the layout."
        }
        ConditionType::AnotherController => {
            "Whether another controller writes the status fields that are ours."
        }
        ConditionType::StatusPruned => "Whether the installed CRD cuts status fields that we write.",
        ConditionType::Ready => "The object as a whole, as the full operator of the group means it.",
        ConditionType::QuorumAtRisk => "A partition has lost its write quorum. True is bad.",
        ConditionType::PeerUnreachable => "A peer has been unreachable for long. True is bad.",
    }
}

macro_rules! table {
    ($($condition:ident { $($reason:ident $status:ident $urgency:ident $meaning:literal $next:literal;)* })*) => {
        /// Every reason of every condition, in the order of their declaration.
        pub const TABLE: &[Explanation] = &[$($(Explanation {
            condition: ConditionType::$condition,
            reason: stringify!($reason),
            status: stringify!($status),
            urgency: Urgency::$urgency,
            meaning: $meaning,
            next: $next,
        },)*)*];
    };
}

table! {
    FullyReplicated {
        NotObserved Unknown Waiting
            "Garage's Admin API did not answer, so nothing can be said about redundancy; the counters in status are the last ones seen."
            "Look at the Garage Pods and at the admin token Secret that the message speaks of. Nothing is launched until Garage answers.";
        SiteRoleUnset Unknown Act
            "Storage roles of other sites are in the layout, and this site does not know whether it leads."
            "Set spec.layoutManagement.siteRole: Writer on exactly one site, Follower on all others.";
        WaitingForOtherSite Unknown Waiting
            "Another site's repair was seen a short while ago; two repairs at a time would disturb each other's evidence."
            "Wait: the message says which node was seen and when this site starts. A repair that somebody runs by hand there counts too.";
        PreconditionsNotMet Unknown Waiting
            "A proof is asked for and something must be mended or finished first; the message names the first such thing and the node."
            "Mend what the message names (a node without room, staged layout changes, a drain, a suspended cluster); the proof then goes on by itself.";
        Stalled False Act
            "The proof makes no progress: 30 minutes without any, errors of a repair, or block errors that grow."
            "Look at the node in the message: its Pod's log, its disk, its network. The proof goes on by itself once work moves; a new verify-redundancy token starts it over.";
        BlockErrors False Waiting
            "Nodes list blocks that they could not fetch, and the number does not grow."
            "Garage retries by itself, up to an hour apart. If it stays, find the blocks with `garage block list-errors`; after a node died during uploads they are often those of an upload that never ended. See 'A block missing on every replica'. An empty list right after a retry proves nothing.";
        Verifying False Working
            "A proof runs; the message has the phase and the node."
            "Wait: `kubectl holdfast wait`. Do not service another node meanwhile.";
        Partial False Waiting
            "Every node that could be proven is, and some were put off: down, not reporting, or failed three times."
            "Bring the named nodes back; they are tried again by themselves after 10 minutes. One with RepairFailed is tried again only by a new verify-redundancy token.";
        Verified True Good
            "A proof over every storage node of the layout was completed and nothing has voided it since."
            "Nothing. This is the moment at which one node may be serviced.";
        VerifiedLocal True Good
            "A proof over this site's storage nodes was completed; what other sites hold was not looked at here."
            "Nothing here. Ask the other sites for their own proof: no site reports for the whole federation.";
        NotVerified Unknown Act
            "No proof stands: none was ever asked for, or a change or an outage voided it; the message says which."
            "Request one with `kubectl holdfast verify CLUSTER`, or set the annotation that the message names.";
    }
    NodeLocalOutOfService {
        SafeToService True Good
            "The member's Pod was seen to end, Garage reports the identity down, and nothing can start it: the disk may be touched."
            "Do the work. Then `kubectl holdfast release CLUSTER`, or after a wiped disk also `kubectl holdfast replace`.";
        WaitingForProof False Waiting
            "FullyReplicated is not True for the layout as it is now, so the other copies are not known to be whole."
            "Request a proof (`kubectl holdfast verify CLUSTER`) and wait for FullyReplicated; the hold then goes on by itself.";
        WaitingForHealth False Waiting
            "In some node's view the site is not healthy: a node is down, unreachable from another, or a partition is not complete."
            "Mend what the message names. Taking one more member away now could stop writes.";
        WaitingForLayout False Waiting
            "The layout is not settled: a version is still draining, or changes are staged."
            "Wait for the transition to end. Apply or revert staged changes with `garage layout`.";
        WaitingForMembers False Waiting
            "Another member of the cluster is not active or not up."
            "Bring that member back first; the message names it.";
        WaitingForRoom False Waiting
            "Another storage node has no room left, so its copies of new writes would be missing."
            "Free or add space on the node in the message. Garage does not report a full disk as unhealthy.";
        Refused False Act
            "The request is not allowed for this site; the message has the rule."
            "Correct or remove the annotation as the message says. Nothing was changed.";
        Deactivating False Working
            "The gate was passed and the activation label is being removed from the Node."
            "Wait. The disk must not be touched yet.";
        Terminating False Working
            "The member's Pod is ending, or Garage still sees the identity up."
            "Wait. The disk must not be touched yet.";
        TerminationUnconfirmed False Act
            "The Pod object vanished while its Node was not Ready: the process may still be writing to the disk."
            "Bring the Node back to Ready, or make sure that the machine is off and taint the Node with node.kubernetes.io/out-of-service. Not before is the disk safe.";
        ActivationContested False Act
            "Somebody puts the activation label back while the hold stands."
            "Find who writes the label (a script, another operator) and stop it, or release the hold. The disk is not safe meanwhile.";
        QuorumLost False Act
            "During the hold another member went down, or the remaining ones lost their quorum. Nothing is undone by itself."
            "Bring the other member back, or release the hold to bring this one back, whichever is quicker.";
        Restoring False Working
            "The hold is released: the label is back and the member returns."
            "Wait until it is in service (30 s up in every node's view).";
        InService False Good
            "The member is back with its own identity."
            "Request a proof before the next service: the outage has voided the last one.";
        DifferentIdentity False Act
            "The member came back with another identity: its metadata disk is new or was wiped. It gets no role by itself."
            "If that is what you did, run `kubectl holdfast replace CLUSTER MEMBER`. If not, the wrong disk is mounted: put the right one back.";
        NotObserved Unknown Act
            "Garage's Admin API or the API server did not answer, so it is not known whether the disk may be touched."
            "Do not touch the disk. The message names what is silent; mend that, and the condition tells again.";
    }
    NodeLocalIdentityReplaced {
        Replaced True Good
            "The new identity has the old one's role. Its data is still being copied."
            "Request a proof (`kubectl holdfast verify CLUSTER`) and wait for FullyReplicated before the next node is touched. The annotation may be removed.";
        Refused False Act
            "The request is not allowed, or names an identity that is not the current one; the message has the rule."
            "Correct or remove the annotation as the message says. Nothing was changed.";
        WaitingForService False Waiting
            "A hold or another service is not finished."
            "Release the hold first (`kubectl holdfast release CLUSTER`): the new process must run to be put into the layout.";
        WaitingForLayoutRoles False Waiting
            "The layout does not have exactly as many storage roles as the factor, or not exactly one storage node is down."
            "This refill is for a site with factor storage nodes of which one is gone. Bring other nodes back; with spare nodes use Garage's own layout commands.";
        WaitingForOldIdentity False Waiting
            "The identity to replace is still up, or does not hold the role of this member."
            "If it is up on a disk that is alive, nothing needs replacing: remove the annotation. If it still runs on a disk that is dead or was taken away, delete its Pod. Otherwise wait: a death is seen after some seconds, a pulled cable after 80.";
        WaitingForQuorum False Waiting
            "A partition lacks its quorum in the view of some living node."
            "Bring the other nodes back and mend the network between them.";
        WaitingForLayout False Waiting
            "The layout is not settled."
            "Wait for the transition to end.";
        BothIdentitiesInLayout False Act
            "The layout holds the old and the new identity at once, by another hand. With the old one dead that does not settle."
            "Remove the role of the new identity by hand; the replacement then goes on in one version of its own.";
        ForeignStagedChanges False Act
            "Layout changes that are not ours are staged; applying ours would apply them too."
            "Apply or revert them with `garage layout`. They are never reverted here.";
        WaitingForOtherOperation False Waiting
            "A drain, a migration, a suspension or another hand is on the layout."
            "Let it finish, or end it; the message names it.";
        WaitingForNewProcess False Waiting
            "No process with a new identity is proven on that Node yet: no running Pod, no answer from its own Admin API, or still the old identity."
            "Look at the Pod of the member. With hostPathType Directory a fresh file system needs the marker file; NodeLocalPoolsReady names it.";
        WaitingForPeers False Waiting
            "The other nodes do not see the new identity, or it already has a role."
            "Mend the network between the nodes. An identity that has a role was put there by hand: look at `garage layout show`.";
        IdentityInUse False Act
            "The new identity belongs to another GarageNode: a metadata disk was copied or moved."
            "Never run two processes on copies of one metadata directory. Wipe the copy and let the member start with an identity of its own.";
        WaitingForRoom False Waiting
            "The file systems under the new process are not the declared directories, or have no room for the role's capacity."
            "Mount the right file systems at the declared paths, or free space.";
        PinWriteRefused False Act
            "A dry run shows that another admission webhook would refuse to move the pins, so that the replacement would stick half-way."
            "Mend or exempt the webhook or policy that the message names.";
        Applying False Working
            "The one layout version that swaps the identities is being applied."
            "Wait. Keep every other node up: until it settles, one more failure stops the site.";
        Settling False Working
            "The new version is applied; the dead identity is being skipped so that the old version retires."
            "Wait. Keep every other node up.";
        SettlingBlocked False Act
            "Another node is down, so the dead identity cannot be skipped without risking data, and the old version stays alive."
            "Bring the named node back at once; until then one more failure stops reads and writes.";
        RepairingPins False Working
            "The records on the Node and the GarageNode move to the new identity."
            "Wait.";
        IdentityReappeared False Act
            "Somebody put the old identity back into the layout after it was replaced."
            "Find out who. Nothing here fights over it; a new request is needed after the layout is clean.";
    }
    NodeLocalPoolsReady {
        Converged True Good
            "Every selected member is active, connected and in the layout."
            "Nothing.";
        WaitingForMembers False Waiting
            "Members are still to be scheduled, to start, to connect or to get their role."
            "Wait. If it lasts, look at the Pod and the Node that the message names.";
        WaitingForReplacement False Waiting
            "A member came up with another identity than the recorded one, or a replacement is not finished."
            "See NodeLocalIdentityReplaced; if a disk was replaced, run `kubectl holdfast replace`.";
        WaitingForLayoutSync False Waiting
            "The layout is still moving; the next member is added when it has settled."
            "Wait.";
        WaitingForPreviousNodeLocalPoolPod False Waiting
            "An older Pod of the pool still holds the directory of that Node."
            "Wait for it to end; a Pod on a dead Node ends only when the Node does.";
        IdentityCollision False Act
            "Two records of one member's identity differ, or the disk says another identity than the pin."
            "Put the right disk back, or replace the identity with `kubectl holdfast replace`. It never enters the layout by itself.";
        SelectorConflict False Act
            "A Node is selected by two pools."
            "Change the selectors or the Node's labels so that each Node is in one pool.";
        HostPathConflict False Act
            "Directories of pools on one Node are the same or lie in each other."
            "Give each pool its own directories.";
        MemberLimitExceeded False Act
            "There are more pools or selected Nodes than the limits allow."
            "Narrow the selectors, or use fewer pools.";
        MarkerMissing False Act
            "The marker file is missing, so the disk counts as not mounted and the Pod does not start."
            "Mount the disk. Only if it is mounted and new, create the marker file that the message names inside it, once.";
        NotManaged False Act
            "The cluster has a default storage group or a gateway tier, which are not run here; the pools go on."
            "Set storage.replicas to 0 and remove the gateway tier, or run another operator for these and set pools.manage to false.";
        RemovalNotManaged False Act
            "A Node or a pool is no longer selected; members are not removed here."
            "Select it again, or remove the member by Garage's own layout commands.";
        NoNodesSelected False Act
            "No Node matches a pool's selector."
            "Label the Nodes, or correct the selector.";
        ConfigurationInvalid False Act
            "A Secret or a setting that the pools need is missing or damaged."
            "Mend what the message names.";
        UnsupportedKubernetesVersion False Act
            "The API server does not know scheduling gates."
            "Upgrade Kubernetes to 1.30 or newer.";
        RecordDamaged False Act
            "A record on a Node (the HostPath claim or the identity) cannot be read."
            "Look at the annotation that the message names. It is not overwritten: it may be the only record of who lives on that disk.";
        Suspended False Waiting
            "maintenance.suspended is set on the cluster or on a member."
            "Remove it when the maintenance is over.";
        NotObserved Unknown Waiting
            "Kubernetes or Garage could not be read."
            "Look at the Pods and at the product's log; it is tried again by itself.";
    }
    AnotherController {
        StatusContested True Act
            "The proof or the service in status was changed by a write that is not ours. Launching and acting have stopped."
            "Run one controller for these fields: set pools.manage to false or uninstall one of the two; see 'Beside another operator'.";
        StatusErased True Act
            "Another controller writes the whole status and erases our part of it."
            "That release cannot run beside this product; see 'Beside another operator'.";
        Alone False Good
            "Nobody else writes what is ours."
            "Nothing.";
    }
    StatusPruned {
        FieldNotStored True Act
            "The API server cut a status field of ours: the installed CRD is older than this release. Nothing is launched."
            "Install the CRDs of this release, or add our fields to the present ones with `garage-holdfast crds merge`.";
        Stored False Good
            "Every field that we write is stored."
            "Nothing.";
    }
    Ready {
        ClusterReady True Good
            "Every member is ready, and the layout is there and settled."
            "Nothing.";
        NotAllReplicasReady False Waiting
            "Some of the cluster's Pods are not ready."
            "Look at the Pods.";
        NodeLocalPoolsNotReady False Waiting
            "The node-local pools are not converged."
            "See NodeLocalPoolsReady.";
        LayoutNotReady False Waiting
            "There is no layout yet, or it is not settled."
            "Wait; the first layout is applied when factor members are up.";
        ReconcileFailed False Act
            "The object could not be brought to its desired state; the message has the error."
            "Mend what the message names.";
        NodeReady True Good
            "On a GarageNode: it has a role and Garage sees it."
            "Nothing.";
        NotInLayout False Waiting
            "On a GarageNode: it has no role in the layout."
            "See NodeLocalPoolsReady on its GarageCluster.";
        NodeDisconnected False Waiting
            "On a GarageNode: Garage does not see it up."
            "Look at its Pod, its Node and the network.";
    }
    QuorumAtRisk {
        PartitionsBelowQuorum True Act
            "Some partitions have fewer living nodes than a write needs; client writes fail."
            "Bring storage nodes back at once.";
        AllPartitionsQuorate False Good
            "Every partition has its quorum."
            "Nothing.";
        NotObserved Unknown Waiting
            "Garage's Admin API did not answer, so nobody knows whether writes are accepted."
            "Look at the Garage Pods; the other conditions name what did not answer.";
    }
    PeerUnreachable {
        SustainedUnreachable True Act
            "A peer has been unreachable for long."
            "Look at its Pod, its Node and the network.";
        AllReachable False Good
            "Every peer is reachable."
            "Nothing.";
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use super::*;
    use crate::conditions::{
        AnotherControllerReason, FullyReplicatedReason, IdentityReplacedReason, NodeReadyReason,
        OutOfServiceReason, PeerReason, PoolsReason, QuorumReason, ReadyReason, StatusPrunedReason,
    };

    fn all() -> Vec<(ConditionType, &'static str)> {
        let mut all = Vec::new();
        macro_rules! add {
            ($($condition:ident: $($reasons:ident),+;)*) => {
                $($(all.extend($reasons::ALL.iter().map(|r| (ConditionType::$condition, r.as_str())));)+)*
            };
        }
        add! {
            FullyReplicated: FullyReplicatedReason;
            NodeLocalOutOfService: OutOfServiceReason;
            NodeLocalIdentityReplaced: IdentityReplacedReason;
            NodeLocalPoolsReady: PoolsReason;
            AnotherController: AnotherControllerReason;
            StatusPruned: StatusPrunedReason;
            Ready: ReadyReason, NodeReadyReason;
            QuorumAtRisk: QuorumReason;
            PeerUnreachable: PeerReason;
        }
        all
    }

    #[test]
    fn every_reason_of_every_condition_is_explained() {
        for (condition, reason) in all() {
            assert!(explain(condition.as_str(), reason).is_some(), "{condition}/{reason} has no explanation");
        }
        for condition in ConditionType::ALL {
            assert!(!find(condition.as_str()).is_empty(), "{condition} has no reasons");
            assert!(!condition_meaning(*condition).is_empty());
        }
    }

    #[test]
    fn every_explanation_is_of_a_reason_that_exists_and_stands_once() {
        let known = all();
        for (index, e) in TABLE.iter().enumerate() {
            assert!(
                known.contains(&(e.condition, e.reason)),
                "{}/{} is set by nothing",
                e.condition,
                e.reason
            );
            let again =
                TABLE.iter().skip(index + 1).any(|o| o.condition == e.condition && o.reason == e.reason);
            assert!(!again, "{}/{} stands twice", e.condition, e.reason);
        }
    }

    #[test]
    fn explanations_are_whole_sentences_that_name_a_next_step() {
        for e in TABLE {
            for text in [e.meaning, e.next] {
                assert!(text.ends_with('.') && !text.contains('|'), "{}/{}: {text}", e.condition, e.reason);
            }
            if e.urgency == Urgency::Act {
                assert_ne!(e.next, "Nothing.", "{}/{}", e.condition, e.reason);
            }
        }
    }

    /// The macro takes any word; a status is one of three.
    #[test]
    fn statuses_are_those_of_kubernetes_and_good_ones_are_never_unknown() {
        for e in TABLE {
            match e.status {
                "True" | "False" => {}
                "Unknown" => assert_ne!(e.urgency, Urgency::Good, "{}/{}", e.condition, e.reason),
                other => panic!("{}/{}: {other}", e.condition, e.reason),
            }
        }
    }

    #[test]
    fn a_word_finds_a_reason_in_every_condition_that_has_it_or_all_of_a_condition() {
        assert_eq!(find("refused").len(), 2);
        assert!(find("fullyreplicated").len() > 10);
        assert!(find("nonsense").is_empty());
    }
}
