//! Where the serving certificate comes from: a slot that another part of the process fills and swaps.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// A place for the current certificate. Each handshake takes what is in it at that moment, so a rotation drops no
/// connection; while it is empty, handshakes fail and the server is not ready.
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
