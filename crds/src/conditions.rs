//! Condition types and reasons: every one that this product sets, in one place (`behaviour.md` 9 to 14, `compat.md` 11).

/// Longest message of a condition, in bytes.
pub const MESSAGE_MAX: usize = 4096;

/// Cuts a message to what a condition takes, at a character's edge.
pub fn cut_message(mut message: String) -> String {
    if message.len() > MESSAGE_MAX {
        let end =
            (0..=MESSAGE_MAX - '…'.len_utf8()).rev().find(|&i| message.is_char_boundary(i)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    message
}

/// `status` of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConditionStatus {
    /// It is so.
    True,
    /// It is not so.
    False,
    /// It is not known.
    Unknown,
}

impl ConditionStatus {
    /// As Kubernetes writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl std::fmt::Display for ConditionStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An enum of reasons: `as_str`, `ALL`, `FromStr` by exact name.
macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
            /// As the condition writes it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

reasons! {
    /// Condition types. On a GarageCluster but for `Ready`, which a GarageNode has too.
    ConditionType {
        /// Every object is on every node that should hold it. Informational.
        FullyReplicated,
        /// A member is held out of service; True: its disk may be touched.
        NodeLocalOutOfService,
        /// An identity was replaced; True: done, the proof comes next.
        NodeLocalIdentityReplaced,
        /// Every selected member is active, connected and in the layout.
        NodeLocalPoolsReady,
        /// Another controller writes what is ours.
        AnotherController,
        /// A field of ours does not survive a status write.
        StatusPruned,
        /// The object as a whole.
        Ready,
        /// A partition has lost its quorum (True = bad).
        QuorumAtRisk,
        /// A peer has been unreachable for long (True = bad).
        PeerUnreachable,
    }
}

reasons! {
    /// Reasons of [`ConditionType::FullyReplicated`], in the order in which they match (section 9).
    FullyReplicatedReason {
        /// Unknown: the Admin API did not answer (O3).
        NotObserved,
        /// Unknown: a federated site without a role (P5).
        SiteRoleUnset,
        /// Unknown: another site's repair was seen a short while ago (F2).
        WaitingForOtherSite,
        /// Unknown: P15, or no local node.
        PreconditionsNotMet,
        /// False: 30 minutes without progress, errors of a repair, or growing block errors.
        Stalled,
        /// False: block errors that do not grow.
        BlockErrors,
        /// False: a proof runs.
        Verifying,
        /// False: nodes are deferred (P13).
        Partial,
        /// True: the whole cluster is verified.
        Verified,
        /// True: this site's nodes are verified.
        VerifiedLocal,
        /// Unknown: no proof stands.
        NotVerified,
    }
}

reasons! {
    /// Reasons of [`ConditionType::NodeLocalOutOfService`] (section 11).
    OutOfServiceReason {
        /// True: the disk may be touched (H4).
        SafeToService,
        /// False: the proof does not stand (H1).
        WaitingForProof,
        /// False: health is not complete in every node's view (H1, O8).
        WaitingForHealth,
        /// False: the layout is not settled (H1).
        WaitingForLayout,
        /// False: another member is not active or not up (H1).
        WaitingForMembers,
        /// False: another member has no room (H1, O9).
        WaitingForRoom,
        /// False: the request is not allowed here (V1 to V9).
        Refused,
        /// False: the activation label goes (H2).
        Deactivating,
        /// False: the Pod ends (H3).
        Terminating,
        /// False: the Pod vanished without being seen to end (H3).
        TerminationUnconfirmed,
        /// False: somebody puts the activation back (H5).
        ActivationContested,
        /// False: the remaining members have lost quorum, or another went down, during the hold (H5).
        QuorumLost,
        /// False: the member returns (H6).
        Restoring,
        /// False: it is back (H6).
        InService,
        /// False: it came back with another identity (H7).
        DifferentIdentity,
        /// Unknown: the Admin API or the API server did not answer, so that nothing can be said (O3).
        NotObserved,
    }
}

reasons! {
    /// Reasons of [`ConditionType::NodeLocalIdentityReplaced`] (section 12).
    IdentityReplacedReason {
        /// True: done; a proof comes next (R6).
        Replaced,
        /// False: the request is not allowed here (V1 to V8).
        Refused,
        /// False: a hold or another service is not finished.
        WaitingForService,
        /// False: the number of storage roles or of living nodes is not what a refill needs (R1).
        WaitingForLayoutRoles,
        /// False: the old identity is not down, or does not hold the pair's role (R1).
        WaitingForOldIdentity,
        /// False: a partition lacks its quorum in some node's view (R1, O8).
        WaitingForQuorum,
        /// False: the layout is not settled (R1).
        WaitingForLayout,
        /// False: the layout holds the old and the new identity at once (R2, R4a).
        BothIdentitiesInLayout,
        /// False: the staging area holds changes of others (R3).
        ForeignStagedChanges,
        /// False: a drain, migration or another hand is on the layout (P15).
        WaitingForOtherOperation,
        /// False: the new process is not proven yet (R1).
        WaitingForNewProcess,
        /// False: the peers do not see the new identity, or it has a role (R1).
        WaitingForPeers,
        /// False: the new identity belongs to another GarageNode (R1).
        IdentityInUse,
        /// False: the file systems of the new process are not the declared ones, or lack room (R1).
        WaitingForRoom,
        /// False: another webhook would refuse a pin write of R4 (R1).
        PinWriteRefused,
        /// False: the layout is being applied (R2).
        Applying,
        /// False: the history settles (R4).
        Settling,
        /// False: another node is down, so that the dead identity cannot be skipped (R4).
        SettlingBlocked,
        /// False: pins move (R4).
        RepairingPins,
        /// False: another hand put the old identity back (R5).
        IdentityReappeared,
    }
}

reasons! {
    /// Reasons of [`ConditionType::NodeLocalPoolsReady`] (section 13; `compat.md` 11 where we fill the same).
    PoolsReason {
        /// True: every selected member is active, connected and in the layout.
        Converged,
        /// False: members are not there yet.
        WaitingForMembers,
        /// False: a replacement is not finished.
        WaitingForReplacement,
        /// False: the layout is not settled.
        WaitingForLayoutSync,
        /// False: an older Pod of the pool is still there.
        WaitingForPreviousNodeLocalPoolPod,
        /// False: two records of an identity differ, or a pin contradicts a disk.
        IdentityCollision,
        /// False: a Node belongs to two pools.
        SelectorConflict,
        /// False: directories overlap.
        HostPathConflict,
        /// False: more pools or Nodes than fit.
        MemberLimitExceeded,
        /// False: the marker file is missing, so the disk counts as not mounted.
        MarkerMissing,
        /// False: a default storage group or a gateway tier that is not run here.
        NotManaged,
        /// False: removing members is not done here.
        RemovalNotManaged,
        /// False: no Node matches the selector.
        NoNodesSelected,
        /// False: a Secret or a setting that the pools need is missing or damaged.
        ConfigurationInvalid,
        /// False: the API server is older than scheduling gates.
        UnsupportedKubernetesVersion,
        /// False: a record on a Node cannot be read.
        RecordDamaged,
        /// False: `maintenance.suspended`, here or on a member.
        Suspended,
        /// Unknown: Kubernetes or Garage could not be read.
        NotObserved,
    }
}

reasons! {
    /// Reasons of [`ConditionType::AnotherController`].
    AnotherControllerReason {
        /// True: the proof or the service in status changed by a write that is not ours.
        StatusContested,
        /// True: our status is erased by another writer.
        StatusErased,
        /// False: nobody else writes it.
        Alone,
    }
}

reasons! {
    /// Reasons of [`ConditionType::StatusPruned`].
    StatusPrunedReason {
        /// True: an older CRD cuts a field of ours.
        FieldNotStored,
        /// False: everything is stored.
        Stored,
    }
}

reasons! {
    /// Reasons of [`ConditionType::Ready`] on a GarageCluster.
    ReadyReason {
        /// True.
        ClusterReady,
        /// False: Pods are missing.
        NotAllReplicasReady,
        /// False: see `NodeLocalPoolsReady`.
        NodeLocalPoolsNotReady,
        /// False: the layout is not there or not settled.
        LayoutNotReady,
        /// False: an error, in the message.
        ReconcileFailed,
    }
}

reasons! {
    /// Reasons of [`ConditionType::Ready`] on a GarageNode.
    NodeReadyReason {
        /// True.
        NodeReady,
        /// False: it has no role.
        NotInLayout,
        /// False: Garage does not see it.
        NodeDisconnected,
        /// False: an error, in the message.
        ReconcileFailed,
    }
}

reasons! {
    /// Reasons of [`ConditionType::QuorumAtRisk`].
    QuorumReason {
        /// True (bad).
        PartitionsBelowQuorum,
        /// False (good).
        AllPartitionsQuorate,
        /// Unknown: the Admin API did not answer.
        NotObserved,
    }
}

reasons! {
    /// Reasons of [`ConditionType::PeerUnreachable`].
    PeerReason {
        /// True (bad).
        SustainedUnreachable,
        /// False (good).
        AllReachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_at_a_characters_edge() {
        let cut = cut_message("é".repeat(4000));
        assert!(cut.len() <= MESSAGE_MAX && cut.ends_with('…'), "{}", cut.len());
        assert_eq!(cut_message("short".to_owned()), "short");
    }

    #[test]
    fn reasons_are_words_that_kubernetes_takes() {
        let all = [FullyReplicatedReason::ALL.iter().map(|r| r.as_str()).collect::<Vec<_>>()]
            .concat()
            .into_iter()
            .chain(PoolsReason::ALL.iter().map(|r| r.as_str()))
            .chain(OutOfServiceReason::ALL.iter().map(|r| r.as_str()))
            .chain(IdentityReplacedReason::ALL.iter().map(|r| r.as_str()));
        for reason in all {
            assert!(reason.chars().all(|c| c.is_ascii_alphanumeric()) && reason.len() <= 128, "{reason}");
        }
    }
}
