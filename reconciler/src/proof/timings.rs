//! How long the proof waits. The product runs with [`Timings::default`]; only the test bed shortens them.

/// The waiting times of the proof, in seconds. Defaults are the product's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timings {
    /// Least time between the two clean observations of a tables stage (P7). More than the 20 s after
    /// which a restarted Garage begins its own full sync, so both cannot lie before it.
    pub clean_gap: i64,
    /// Pause after a blocks turn (P9).
    pub pause: i64,
    /// A deferred node is retried no sooner than this (P11).
    pub retry: i64,
    /// Grace for a node that is up but missing from the answers in a launched stage (P11).
    pub silence: i64,
    /// A blocks launch is lost only after this (P10) ...
    pub lost_launch: i64,
    /// ... and this many passes in which the node reported without a new worker (P10).
    pub lost_passes: i32,
    /// The findings of a scan have left the deferred worker after this, where it still has something (P8, D4).
    pub findings: i64,
    /// Garage's default `rpc_timeout` (P14), where neither Garage nor the spec says one.
    pub rpc_timeout: i64,
    /// Margin over 2 x rpcTimeout in the quiet period (P14, D4).
    pub quiet_margin: i64,
    /// Least quiet period (P14).
    pub quiet_min: i64,
    /// One anti-entropy interval of the other sites and a margin (P6, P14; scope `Local`).
    pub anti_entropy: i64,
    /// Hold-down after another site's repair (F2).
    pub hold_down: i64,
    /// Least offset that a Follower adds to it (F2).
    pub follower_offset_min: i64,
    /// Largest offset that a Follower adds to it (F2).
    pub follower_offset_max: i64,
    /// Without progress for this long a proof is stalled; also the window of growing block errors (section 9).
    pub stalled: i64,
    /// Least time between two rewrites of progress (P18, P19, F1).
    pub progress_step: i64,
    /// A node counts as up only this long after its container's start (O7).
    pub settled_start: i64,
}

impl Timings {
    /// For test beds only, with a Garage whose `rpc_timeout` is a few seconds: every wait is long enough for
    /// what it waits for there, and for nothing else.
    pub fn short() -> Self {
        Self {
            clean_gap: 4,
            pause: 3,
            retry: 15,
            silence: 20,
            lost_launch: 20,
            lost_passes: 3,
            findings: 6,
            rpc_timeout: 7,
            quiet_margin: 6,
            quiet_min: 20,
            anti_entropy: 30,
            hold_down: 20,
            follower_offset_min: 5,
            follower_offset_max: 15,
            stalled: 60,
            progress_step: 5,
            settled_start: 10,
        }
    }
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            clean_gap: 30,
            pause: 120,
            retry: 600,
            silence: 300,
            lost_launch: 180,
            lost_passes: 3,
            findings: 30,
            rpc_timeout: 300,
            quiet_margin: 60,
            quiet_min: 670,
            anti_entropy: 720,
            hold_down: 900,
            follower_offset_min: 60,
            follower_offset_max: 600,
            stalled: 1800,
            progress_step: 60,
            settled_start: 10,
        }
    }
}

/// Seconds after its start at which a Garage process begins a full sync of its own (FACTS 7).
pub const GARAGE_START_SYNC_SECONDS: i64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_between_clean_observations_is_longer_than_garages_own_start_up_sync_takes_to_begin() {
        assert!(Timings::default().clean_gap > GARAGE_START_SYNC_SECONDS);
    }

    #[test]
    fn the_products_own_waiting_times_are_those_of_the_specification() {
        let t = Timings::default();
        assert_eq!((t.clean_gap, t.pause, t.retry, t.silence), (30, 120, 600, 300));
        assert_eq!((t.lost_launch, t.lost_passes, t.findings), (180, 3, 30));
        assert_eq!((t.rpc_timeout, t.quiet_margin, t.quiet_min, t.anti_entropy), (300, 60, 670, 720));
        assert_eq!((t.hold_down, t.follower_offset_min, t.follower_offset_max), (900, 60, 600));
        assert_eq!((t.stalled, t.progress_step, t.settled_start), (1800, 60, 10));
    }
}
