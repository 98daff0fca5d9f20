//! Leader election over a `coordination.k8s.io` Lease.
//!
//! [`decide`] is pure; [`run`] is the thin writer around it. Two guarantees (`architecture.md`,
//! "Versions that fit together"): an expired lease is not leadership, and whoever loses it has
//! stopped writing before another can begin.
//!
//! How the second one holds: a holder may write until [`Timing::duration`] after the *start* of its
//! last successful renewal, less the deadline of the write itself ([`Leadership::may_write`]). A
//! rival takes the lease over only after it has seen it unchanged for the whole duration by its own
//! clock, which begins when the renewal had already reached the API server. The clocks of two
//! machines are never compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::PostParams;
use tokio::sync::watch;
use tokio::time::Instant;

/// The times of an election.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// For how long a renewal holds.
    pub duration: Duration,
    /// How often the holder renews and others look.
    pub retry: Duration,
    /// Deadline of one read or write of the Lease.
    pub call: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            retry: Duration::from_secs(2),
            call: Duration::from_secs(4),
        }
    }
}

/// The Lease as last read, with the moment (of our own clock) at which it was first seen like this.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Seen {
    /// `spec.holderIdentity`; empty and absent are the same.
    pub holder: Option<String>,
    /// `metadata.resourceVersion`: any write of the Lease changes it.
    pub resource_version: Option<String>,
    /// Duration that the holder promised.
    pub duration: Duration,
    /// When this content was first seen.
    pub since: Duration,
}

/// What to do about the Lease now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// There is none: create it with us as holder.
    Create,
    /// It is ours: write a new renew time.
    Renew,
    /// It is free or has run out: write ourselves as holder.
    TakeOver,
    /// Somebody else holds it: look again later.
    Wait,
}

/// Decides over the Lease as seen. `now` is of the same clock as [`Seen::since`].
pub fn decide(seen: Option<&Seen>, me: &str, now: Duration) -> Decision {
    match seen {
        None => Decision::Create,
        Some(Seen { holder: None, .. }) => Decision::TakeOver,
        Some(Seen { holder: Some(holder), .. }) if holder == me => Decision::Renew,
        Some(seen) if now.saturating_sub(seen.since) >= seen.duration => Decision::TakeOver,
        Some(_) => Decision::Wait,
    }
}

/// Whether a write that begins at `now` and ends within `deadline` ends before `until` (milliseconds
/// of the same clock).
pub(crate) fn ends_in_time(now: Duration, deadline: Duration, until: u64) -> bool {
    now.saturating_add(deadline) < Duration::from_millis(until)
}

/// What a read at `now` adds to what was known before.
pub(crate) fn observe(lease: &Lease, before: Option<&Seen>, now: Duration, timing: &Timing) -> Seen {
    let spec = lease.spec.as_ref();
    let resource_version = lease.metadata.resource_version.clone();
    let since = match before {
        Some(b) if b.resource_version == resource_version => b.since,
        _ => now,
    };
    let seconds = spec.and_then(|s| s.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
    Seen {
        holder: spec.and_then(|s| s.holder_identity.clone()).filter(|h| !h.is_empty()),
        resource_version,
        duration: seconds.map_or(timing.duration, Duration::from_secs),
        since,
    }
}

/// The Lease to be written with us as holder, on the one that was read: its resource version makes the write a
/// compare-and-swap.
pub(crate) fn claimed(
    name: &str,
    me: &str,
    current: Option<&Lease>,
    timing: &Timing,
    now: Timestamp,
) -> Lease {
    let now = MicroTime(now);
    let old = current.and_then(|l| l.spec.as_ref());
    let ours = old.is_some_and(|s| s.holder_identity.as_deref() == Some(me));
    let transitions = old.and_then(|s| s.lease_transitions).unwrap_or(0);
    Lease {
        metadata: current.map_or_else(
            || ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            |l| l.metadata.clone(),
        ),
        spec: Some(LeaseSpec {
            holder_identity: Some(me.to_owned()),
            lease_duration_seconds: i32::try_from(timing.duration.as_secs()).ok(),
            acquire_time: if ours { old.and_then(|s| s.acquire_time.clone()) } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(if ours || current.is_none() { transitions } else { transitions + 1 }),
            ..LeaseSpec::default()
        }),
    }
}

/// The Lease without its holder; `None` when that is not us.
pub(crate) fn released(mut lease: Lease, me: &str) -> Option<Lease> {
    let spec = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(me))?;
    spec.holder_identity = None;
    Some(lease)
}

/// Until when a renewal holds (milliseconds) whose turn began at `before`: from the start of the turn, since the API
/// server cannot have stored it earlier.
pub(crate) fn holds_until(before: Duration, timing: &Timing) -> Option<u64> {
    u64::try_from((before + timing.duration).as_millis()).ok()
}

/// Whether a turn at `now` that did not renew ends the leadership: no other turn could renew it in time.
pub(crate) fn is_lost(now: Duration, until: u64, timing: &Timing) -> bool {
    !ends_in_time(now, timing.retry, until)
}

/// Says whether this process leads, and for how much longer.
#[derive(Debug, Clone)]
pub struct Leadership {
    start: Instant,
    /// Milliseconds since `start` until which writes may be under way; 0 is "does not lead".
    until: Arc<AtomicU64>,
    changed: watch::Receiver<bool>,
}

impl Leadership {
    /// Whether a write that ends within `deadline` may begin now.
    pub fn may_write(&self, deadline: Duration) -> bool {
        ends_in_time(self.start.elapsed(), deadline, self.until.load(Ordering::Acquire))
    }

    /// Whether this process leads at this moment.
    pub fn is_leader(&self) -> bool {
        self.may_write(Duration::ZERO)
    }

    /// Resolves when leadership was gained; also when it is there already.
    pub async fn gained(&mut self) {
        // The sender lives in `run`; when that ended, so does the process.
        let _ = self.changed.wait_for(|leads| *leads).await;
    }

    /// Leadership without an election, for tests and offline tools.
    pub fn always() -> Self {
        let (_, changed) = watch::channel(true);
        Self { start: Instant::now(), until: Arc::new(AtomicU64::new(u64::MAX)), changed }
    }
}

/// Why the election ended: leadership was lost. The process must end (architecture: any task that
/// ends, ends the process).
#[derive(Debug, thiserror::Error)]
#[error("leadership was lost: the lease {0} could not be renewed in time")]
pub struct Lost(String);

/// Takes part in the election.
pub struct Election {
    api: Api<Lease>,
    name: String,
    me: String,
    timing: Timing,
    leadership: Leadership,
    leads: watch::Sender<bool>,
}

impl Election {
    /// `me` is unique to this process (Pod name and a random part).
    pub fn new(api: Api<Lease>, name: &str, me: &str, timing: Timing) -> Self {
        let (leads, changed) = watch::channel(false);
        let leadership = Leadership { start: Instant::now(), until: Arc::new(AtomicU64::new(0)), changed };
        Self { api, name: name.to_owned(), me: me.to_owned(), timing, leadership, leads }
    }

    /// The handle that writers ask.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Runs until `shutdown` resolves (then the lease is given back) or leadership is lost.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Lost> {
        tokio::pin!(shutdown);
        let mut seen: Option<Seen> = None;
        loop {
            let before = self.leadership.start.elapsed();
            if let Some(until) = self.turn(&mut seen, before).await {
                self.leadership.until.store(until, Ordering::Release);
                self.leads.send_if_modified(|leads| !std::mem::replace(leads, true));
            } else if *self.leads.borrow() && self.is_lost() {
                self.leadership.until.store(0, Ordering::Release);
                return Err(Lost(self.name));
            }
            tokio::select! {
                () = tokio::time::sleep(self.timing.retry) => {}
                () = &mut shutdown => {
                    self.leadership.until.store(0, Ordering::Release);
                    self.give_back(seen).await;
                    return Ok(());
                }
            }
        }
    }

    /// One look at the Lease. Returns until when (ms since start) leadership holds, if it was confirmed.
    async fn turn(&self, seen: &mut Option<Seen>, before: Duration) -> Option<u64> {
        let current = match self.deadline(self.api.get_opt(&self.name)).await {
            Ok(current) => current,
            Err(why) => {
                tracing::warn!(lease = self.name, why, "lease could not be read");
                return None;
            }
        };
        let now = self.leadership.start.elapsed();
        *seen = current.as_ref().map(|lease| observe(lease, seen.as_ref(), now, &self.timing));
        let decision = decide(seen.as_ref(), &self.me, now);
        let lease = claimed(&self.name, &self.me, current.as_ref(), &self.timing, Timestamp::now());
        let written = match decision {
            Decision::Wait => return None,
            Decision::Create => self.deadline(self.api.create(&PostParams::default(), &lease)).await,
            Decision::Renew | Decision::TakeOver => {
                self.deadline(self.api.replace(&self.name, &PostParams::default(), &lease)).await
            }
        };
        match written {
            Ok(lease) => {
                if decision != Decision::Renew {
                    tracing::info!(lease = self.name, "leading");
                }
                let now = self.leadership.start.elapsed();
                *seen = Some(observe(&lease, seen.as_ref(), now, &self.timing));
                holds_until(before, &self.timing)
            }
            Err(why) => {
                tracing::debug!(lease = self.name, why, "lease was not written");
                None
            }
        }
    }

    fn is_lost(&self) -> bool {
        let until = self.leadership.until.load(Ordering::Acquire);
        is_lost(self.leadership.start.elapsed(), until, &self.timing)
    }

    /// Lets the next one begin at once. Best effort: an unreturned lease only runs out.
    async fn give_back(&self, seen: Option<Seen>) {
        if seen.is_none_or(|s| s.holder.as_deref() != Some(self.me.as_str())) {
            return;
        }
        let Ok(Some(lease)) = self.deadline(self.api.get_opt(&self.name)).await else { return };
        let Some(lease) = released(lease, &self.me) else { return };
        if let Err(why) = self.deadline(self.api.replace(&self.name, &PostParams::default(), &lease)).await {
            tracing::debug!(lease = self.name, why, "lease was not given back; it runs out by itself");
        }
    }

    async fn deadline<T>(&self, call: impl Future<Output = kube::Result<T>>) -> Result<T, &'static str> {
        match tokio::time::timeout(self.timing.call, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_already_exists() => {
                Err("somebody else wrote it first")
            }
            Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => Err("not permitted (RBAC)"),
            Ok(Err(_)) => Err("the API server refused or was not reached"),
            Err(_) => Err("the API server did not answer in time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(holder: Option<&str>, since: u64) -> Seen {
        Seen {
            holder: holder.map(str::to_owned),
            resource_version: Some("1".into()),
            duration: Duration::from_secs(15),
            since: Duration::from_secs(since),
        }
    }

    #[test]
    fn an_absent_lease_is_created_and_a_free_one_taken() {
        assert_eq!(decide(None, "a", Duration::ZERO), Decision::Create);
        assert_eq!(decide(Some(&seen(None, 0)), "a", Duration::ZERO), Decision::TakeOver);
    }

    #[test]
    fn our_own_lease_is_renewed_however_old() {
        assert_eq!(decide(Some(&seen(Some("a"), 0)), "a", Duration::from_secs(999)), Decision::Renew);
    }

    #[test]
    fn anothers_lease_is_taken_only_after_it_stood_still_for_its_whole_duration() {
        let s = seen(Some("b"), 10);
        assert_eq!(decide(Some(&s), "a", Duration::from_secs(24)), Decision::Wait);
        assert_eq!(decide(Some(&s), "a", Duration::from_secs(25)), Decision::TakeOver);
    }

    #[test]
    fn a_write_that_could_outlive_the_lease_may_not_begin() {
        let s = Duration::from_secs;
        assert!(ends_in_time(s(9), s(5), 15_000));
        assert!(!ends_in_time(s(11), s(5), 15_000));
        assert!(ends_in_time(s(11), s(0), 15_000));
        assert!(!ends_in_time(s(15), s(0), 15_000));
        assert!(!ends_in_time(s(0), s(0), 0), "whoever never led may not write");
    }
}
