//! Where the serving certificate comes from: a slot that another part of the process fills and swaps.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// A place for the current certificate. Each handshake takes what is in it at that moment, so a rotation drops no
/// connection. While it is empty the server is not ready, and before the first one it accepts no connection.
#[derive(Clone, Default)]
pub struct CertSlot(Arc<ArcSwapOption<CertifiedKey>>);

impl CertSlot {
    /// Over a slot that somebody else fills.
    pub const fn new(slot: Arc<ArcSwapOption<CertifiedKey>>) -> Self {
        Self(slot)
    }

    /// Whether a certificate is there.
    pub fn is_loaded(&self) -> bool {
        self.0.load().is_some()
    }

    /// Resolves when one is there.
    pub(crate) async fn loaded(&self) {
        while !self.is_loaded() {
            // Whoever fills the slot knows nothing of us, and it happens once.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl fmt::Debug for CertSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertSlot").field("loaded", &self.is_loaded()).finish()
    }
}

impl ResolvesServerCert for CertSlot {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}
