//! When a container that ended may start again: the kubelet's exponential back-off, shorter by default.

use std::time::{Duration, Instant};

/// The times of the back-off. A kubelet has 10 s and 300 s.
#[derive(Debug, Clone, Copy)]
pub struct BackOffTimes {
    /// The delay before the second restart; the first one is immediate. Doubles from there.
    pub first: Duration,
    /// The longest delay. A container that lived twice as long starts afresh.
    pub max: Duration,
}

impl Default for BackOffTimes {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), max: Duration::from_secs(10) }
    }
}

/// The back-off of one container.
#[derive(Debug, Clone, Copy)]
pub struct BackOff {
    times: BackOffTimes,
    last: Option<(Instant, Duration)>,
}

impl BackOff {
    /// A container that never ended.
    pub fn new(times: BackOffTimes) -> Self {
        Self { times, last: None }
    }

    /// The container ended now: how long to wait before it starts again.
    pub fn next_delay(&mut self, now: Instant) -> Duration {
        let fresh =
            self.last.is_none_or(|(then, _)| now.saturating_duration_since(then) > self.times.max * 2);
        let (delay, step) = match self.last {
            Some((_, step)) if !fresh => (step, (step * 2).min(self.times.max)),
            _ => (Duration::ZERO, self.times.first),
        };
        self.last = Some((now + delay, step));
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_restart_is_immediate_and_then_the_delay_doubles_up_to_its_limit() {
        let mut back_off = BackOff::new(BackOffTimes { first: S, max: 4 * S });
        let now = Instant::now();
        let delays: Vec<_> = (0..5).map(|_| back_off.next_delay(now).as_secs()).collect();
        assert_eq!(delays, [0, 1, 2, 4, 4]);
    }

    #[test]
    fn a_container_that_lived_long_starts_afresh() {
        let mut back_off = BackOff::new(BackOffTimes { first: S, max: 4 * S });
        let now = Instant::now();
        for _ in 0..3 {
            back_off.next_delay(now);
        }
        assert_eq!(back_off.next_delay(now + 60 * S), Duration::ZERO);
        assert_eq!(back_off.next_delay(now + 60 * S), S);
    }
}
