//! A certificate authority, and the leaves it issues. Pure but for randomness.

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use time::OffsetDateTime;

use crate::Error;

/// Clocks of other machines may be this much behind ours: certificates begin that much earlier.
const SKEW_SECONDS: i64 = 300;

/// A CA: certificate and key.
#[derive(Clone)]
pub struct Authority {
    /// Certificate, PEM.
    pub cert_pem: String,
    key_pem: String,
    /// End of its validity.
    pub not_after: Timestamp,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("not_after", &self.not_after).finish_non_exhaustive()
    }
}

/// A serving certificate with its key.
#[derive(Clone)]
pub struct Leaf {
    /// Certificate, PEM.
    pub cert_pem: String,
    /// Key, PEM (PKCS #8). Never logged.
    pub key_pem: String,
    /// Certificate of the CA that issued it: another one there means that it must be replaced.
    pub issuer_pem: String,
    /// End of its validity.
    pub not_after: Timestamp,
}

fn date(t: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(t.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn add(t: Timestamp, seconds: i64) -> Timestamp {
    Timestamp::from_second(t.as_second().saturating_add(seconds)).unwrap_or(Timestamp::MAX)
}

impl Authority {
    /// Makes a new one, valid for `lifetime_seconds` from `now`.
    pub fn generate(now: Timestamp, lifetime_seconds: i64) -> Result<Self, Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        // A name of its own, so that a chain never fits the wrong one of two CAs in a bundle.
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, format!("garage-holdfast webhook CA {:016x}", rand::random::<u64>()));
        params.distinguished_name = name;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let not_after = add(now, lifetime_seconds);
        params.not_before = date(add(now, -SKEW_SECONDS));
        params.not_after = date(not_after);
        let cert_pem = params.self_signed(&key)?.pem();
        Ok(Self { cert_pem, key_pem: key.serialize_pem(), not_after })
    }

    /// Reads one back. `place` names the Secret keys for the error text.
    pub fn parse(cert_pem: &str, key_pem: &str, place: &str) -> Result<Self, Error> {
        let malformed = |what: &str| Error::Malformed { place: place.to_owned(), what: what.to_owned() };
        let not_after = not_after(cert_pem)
            .ok_or_else(|| malformed("the certificate is not valid PEM of one X.509 certificate"))?;
        let key = KeyPair::from_pem(key_pem).map_err(|_| malformed("the key is not a PEM private key"))?;
        if !is_key_of(&key, cert_pem) {
            return Err(malformed("the key does not belong to the certificate"));
        }
        Ok(Self { cert_pem: cert_pem.to_owned(), key_pem: key_pem.to_owned(), not_after })
    }

    /// The key, to be stored in the Secret and nowhere else.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// End of a leaf that is issued at `now`.
    pub(crate) fn leaf_end(&self, now: Timestamp, lifetime_seconds: i64) -> Timestamp {
        add(now, lifetime_seconds).min(self.not_after)
    }

    /// Issues a serving certificate for these DNS names. It never outlives its CA.
    pub fn issue(&self, dns_names: &[String], now: Timestamp, lifetime_seconds: i64) -> Result<Leaf, Error> {
        let issuer = Issuer::from_ca_cert_pem(&self.cert_pem, KeyPair::from_pem(&self.key_pem)?)?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(dns_names.to_vec())?;
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, "garage-holdfast");
        params.distinguished_name = name;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let not_after = self.leaf_end(now, lifetime_seconds);
        params.not_before = date(add(now, -SKEW_SECONDS));
        params.not_after = date(not_after);
        let cert = params.signed_by(&key, &issuer)?;
        Ok(Leaf {
            cert_pem: cert.pem(),
            key_pem: key.serialize_pem(),
            issuer_pem: self.cert_pem.clone(),
            not_after,
        })
    }
}

/// End of validity of the first certificate in `pem`.
pub fn not_after(pem: &str) -> Option<Timestamp> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let cert = pem.parse_x509().ok()?;
    Timestamp::from_second(cert.validity().not_after.timestamp()).ok()
}

fn is_key_of(key: &KeyPair, cert_pem: &str) -> bool {
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(cert_pem.as_bytes()) else { return false };
    pem.parse_x509()
        .is_ok_and(|cert| cert.public_key().subject_public_key.data.as_ref() == key.public_key_raw())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    #[test]
    fn a_ca_read_back_issues_a_leaf_that_its_certificate_verifies() {
        let ca = Authority::generate(now(), 86_400).unwrap();
        let ca = Authority::parse(&ca.cert_pem, ca.key_pem(), "test").unwrap();
        let leaf = ca.issue(&["svc.ns.svc".to_owned()], now(), 3600).unwrap();
        let (_, ca_pem) = x509_parser::pem::parse_x509_pem(ca.cert_pem.as_bytes()).unwrap();
        let (_, leaf_pem) = x509_parser::pem::parse_x509_pem(leaf.cert_pem.as_bytes()).unwrap();
        let ca_cert = ca_pem.parse_x509().unwrap();
        let cert = leaf_pem.parse_x509().unwrap();
        assert_eq!(cert.issuer(), ca_cert.subject());
        assert!(ca_cert.is_ca());
        assert!(!cert.is_ca());
        assert_eq!(cert.validity().not_after.timestamp(), now().as_second() + 3600);
    }

    #[test]
    fn a_leaf_never_outlives_its_ca() {
        let ca = Authority::generate(now(), 100).unwrap();
        assert_eq!(ca.issue(&["a.b.svc".to_owned()], now(), 3600).unwrap().not_after, ca.not_after);
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let (a, b) = (Authority::generate(now(), 100).unwrap(), Authority::generate(now(), 100).unwrap());
        let error = Authority::parse(&a.cert_pem, b.key_pem(), "secret x").unwrap_err().to_string();
        assert_eq!(error, "secret x: the key does not belong to the certificate");
        assert!(Authority::parse("no", "no", "x").is_err());
    }

    #[test]
    fn nothing_secret_is_shown() {
        let ca = Authority::generate(now(), 100).unwrap();
        assert!(!format!("{ca:?}").contains("PRIVATE"));
    }
}
