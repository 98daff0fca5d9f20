//! The certificates and keys of the bed's control plane, made anew for each bed.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::error::{Doing as _, Error, Result};

/// Files that the control plane is started with.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// The authority's certificate, PEM.
    pub ca_pem: String,
    /// The same as a file.
    pub ca: PathBuf,
    /// The API server's certificate.
    pub server: PathBuf,
    /// The API server's key.
    pub server_key: PathBuf,
    /// The key that signs ServiceAccount tokens (ECDSA P-256).
    pub service_account_key: PathBuf,
    /// Its public half, by which they are checked.
    pub service_account_public_key: PathBuf,
}

impl Certificates {
    /// Makes everything in `folder`; the API server answers under `addresses`.
    pub fn make(folder: &Path, addresses: &[IpAddr]) -> Result<Self> {
        std::fs::create_dir_all(folder).doing(|| format!("making {}", folder.display()))?;
        let write = |name: &str, text: &str| -> Result<PathBuf> {
            let path = folder.join(name);
            std::fs::write(&path, text).doing(|| format!("writing {}", path.display()))?;
            Ok(path)
        };
        let failed = |error: rcgen::Error| Error::other(format!("making the bed's certificates: {error}"));

        let ca_key = KeyPair::generate().map_err(failed)?;
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, "bed");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_pem = ca.self_signed(&ca_key).map_err(failed)?.pem();
        let issuer = Issuer::new(ca, ca_key);

        let names =
            ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_owned);
        let mut server = CertificateParams::new(names).map_err(failed)?;
        server.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
        server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let server_key = KeyPair::generate().map_err(failed)?;
        let server_pem = server.signed_by(&server_key, &issuer).map_err(failed)?.pem();

        let service_account = KeyPair::generate().map_err(failed)?;
        Ok(Self {
            ca: write("ca.crt", &ca_pem)?,
            ca_pem,
            server: write("apiserver.crt", &server_pem)?,
            server_key: write("apiserver.key", &server_key.serialize_pem())?,
            service_account_key: write("service-account.key", &service_account.serialize_pem())?,
            service_account_public_key: write("service-account.pub", &service_account.public_key_pem())?,
        })
    }
}
