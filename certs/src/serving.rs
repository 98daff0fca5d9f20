//! The certificate that this replica serves with, in a slot that a TLS listener reads on each
//! handshake: replacing it drops no connection.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::Error;

/// Empty until the first certificate is there.
pub type Slot = Arc<ArcSwapOption<CertifiedKey>>;

/// Builds what rustls serves from PEM text; checks that the key fits the certificate.
pub fn certified_key(cert_pem: &str, key_pem: &str, place: &str) -> Result<CertifiedKey, Error> {
    let malformed = |what: &str| Error::Malformed { place: place.to_owned(), what: what.to_owned() };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(cert_pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| malformed("the certificate chain is not valid PEM"))?;
    if chain.is_empty() {
        return Err(malformed("there is no certificate in it"));
    }
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
        .map_err(|_| malformed("the key is not a PEM private key"))?;
    let key = any_supported_type(&key)
        .map_err(|_| malformed("the key is of a kind that is not supported (use ECDSA, Ed25519 or RSA)"))?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match().map_err(|_| malformed("the key does not belong to the certificate"))?;
    Ok(certified)
}

/// Reads `tls.crt` and `tls.key` from a folder (a mounted Secret of cert-manager).
/// Returns what to serve, when it ends, and the text of the certificate (to see a change).
pub async fn read_files(dir: &Path) -> Result<(CertifiedKey, Timestamp, String), Error> {
    let read = async |name: &str| {
        let path = dir.join(name);
        tokio::fs::read_to_string(&path)
            .await
            .map_err(|source| Error::File { path: path.display().to_string(), source })
    };
    let (cert, key) = (read("tls.crt").await?, read("tls.key").await?);
    let place = dir.display().to_string();
    let certified = certified_key(&cert, &key, &place)?;
    let end = crate::authority::not_after(&cert)
        .ok_or_else(|| Error::Malformed { place, what: "tls.crt holds no X.509 certificate".to_owned() })?;
    Ok((certified, end, cert))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::authority::Authority;

    #[tokio::test]
    async fn files_are_read_and_a_pair_that_does_not_fit_is_refused_by_name() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let ca = Authority::generate(now, 1000).unwrap();
        let names = ["a.b.svc".to_owned()];
        let (one, two) = (ca.issue(&names, now, 100).unwrap(), ca.issue(&names, now, 100).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let missing = read_files(dir.path()).await.unwrap_err().to_string();
        assert!(missing.contains("tls.crt"), "{missing}");
        std::fs::write(dir.path().join("tls.crt"), &one.cert_pem).unwrap();
        std::fs::write(dir.path().join("tls.key"), &one.key_pem).unwrap();
        let (_, end, _) = read_files(dir.path()).await.unwrap();
        assert_eq!(end, one.not_after);
        std::fs::write(dir.path().join("tls.key"), &two.key_pem).unwrap();
        let error = read_files(dir.path()).await.unwrap_err().to_string();
        assert!(error.contains("does not belong"), "{error}");
        assert!(!error.contains("PRIVATE"));
    }
}
