//! A budget of bytes that all requests of a route share, so that memory stays flat however many there are.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counts in KiB: a semaphore's permits are 32 bits wide in one acquisition.
const UNIT: usize = 1024;

/// The shared budget.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    free: Arc<Semaphore>,
    /// Bytes of the whole budget.
    total: usize,
}

/// What one request holds of it; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    permit: Option<OwnedSemaphorePermit>,
    held: usize,
}

impl Budget {
    pub fn new(bytes: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes.div_ceil(UNIT))), total: bytes }
    }

    pub const fn total(&self) -> usize {
        self.total
    }

    pub fn share(&self) -> Share {
        Share { budget: self.clone(), permit: None, held: 0 }
    }
}

impl Share {
    /// Makes the share cover `bytes` in all; `false` when the budget has no more.
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let wanted = bytes.div_ceil(UNIT);
        let Some(more) = wanted.checked_sub(self.held).filter(|m| *m > 0) else { return true };
        let Ok(count) = u32::try_from(more) else { return false };
        let Ok(permit) = self.budget.free.clone().try_acquire_many_owned(count) else { return false };
        match &mut self.permit {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        self.held = wanted;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_takes_from_the_budget_and_gives_back_when_dropped() {
        let budget = Budget::new(10 * UNIT);
        let mut a = budget.share();
        assert!(a.grow_to(1));
        assert!(a.grow_to(6 * UNIT));
        assert!(a.grow_to(3 * UNIT), "a smaller need is covered already");
        let mut b = budget.share();
        assert!(!b.grow_to(5 * UNIT));
        assert!(b.grow_to(4 * UNIT));
        drop(a);
        assert!(b.grow_to(10 * UNIT));
        assert!(!b.grow_to(10 * UNIT + 1));
    }
}
