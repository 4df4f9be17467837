//! The server's own certificate authority and the certificate it shows.
//!
//! The CA is made once and stays; the server's certificate is made anew when it
//! nears its end or the names it must carry change.
//!
//! The invariant: a client that trusts the CA file can connect at any time,
//! whatever certificate was renewed meanwhile.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::auth::replace_file;

const DAY: Duration = Duration::from_secs(24 * 3600);
const CA_LIFE: Duration = Duration::from_secs(20 * 365 * 24 * 3600);
const SERVER_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// A certificate with less than this left is replaced.
const RENEW_BEFORE: Duration = Duration::from_secs(60 * 24 * 3600);

/// What can go wrong with keys and certificates.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("use {path}")]
    File { path: PathBuf, source: io::Error },
    #[error("make a certificate")]
    Make(#[from] rcgen::Error),
    #[error("{path} is not valid PEM")]
    Pem { path: PathBuf },
    #[error("set up TLS")]
    Setup(#[from] rustls::Error),
}

/// The CA, the certificate in use, and the names it carries.
#[derive(Debug)]
pub(crate) struct Certificates {
    ca_pem: String,
    ca_key: KeyPair,
    names: Vec<String>,
    current: Arc<Current>,
}

/// The certificate shown to the next client, and when it ends.
#[derive(Debug)]
struct Current(ArcSwap<(CertifiedKey, SystemTime)>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self.0.load();
        Some(Arc::new(shown.0.clone()))
    }
}

impl Certificates {
    /// Takes the CA from the folder or makes it, and a fresh server certificate for
    /// `localhost`, its addresses and the given names.
    pub(crate) fn open(
        folder: &Path,
        extra_names: &[String],
        now: SystemTime,
    ) -> Result<Certificates, TlsError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|source| TlsError::File { path: folder.to_owned(), source })?;
        let (ca_pem, ca_key) = load_ca(folder)?.map_or_else(|| make_ca(folder, now), Ok)?;
        let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        names.extend(
            extra_names
                .iter()
                .filter(|name| !["localhost", "127.0.0.1", "::1"].contains(&name.as_str()))
                .cloned(),
        );
        let shown = make_server(&ca_key, &names, now)?;
        Ok(Certificates { ca_pem, ca_key, names, current: Arc::new(Current(ArcSwap::from_pointee(shown))) })
    }

    /// What clients must trust.
    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Replaces the shown certificate if it nears its end.
    pub(crate) fn renew_if_due(&self, now: SystemTime) -> Result<bool, TlsError> {
        if self.current.0.load().1 > now + RENEW_BEFORE {
            return Ok(false);
        }
        let shown = make_server(&self.ca_key, &self.names, now)?;
        self.current.0.store(Arc::new(shown));
        Ok(true)
    }

    /// Settings for accepting connections, HTTP/2 preferred.
    pub(crate) fn server_config(&self) -> Result<Arc<rustls::ServerConfig>, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.current.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn load_ca(folder: &Path) -> Result<Option<(String, KeyPair)>, TlsError> {
    let read = |name: &str| {
        let path = folder.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(TlsError::File { path, source }),
        }
    };
    let (Some(certificate), Some(key)) = (read("ca.crt")?, read("ca.key")?) else { return Ok(None) };
    let key = KeyPair::from_pem(&key).map_err(|_| TlsError::Pem { path: folder.join("ca.key") })?;
    if CertificateDer::from_pem_slice(certificate.as_bytes()).is_err() {
        return Err(TlsError::Pem { path: folder.join("ca.crt") });
    }
    Ok(Some((certificate, key)))
}

fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named("midflight-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn make_ca(folder: &Path, now: SystemTime) -> Result<(String, KeyPair), TlsError> {
    let key = KeyPair::generate()?;
    let mut params = ca_params();
    params.not_before = (now - DAY).into();
    params.not_after = (now + CA_LIFE).into();
    let certificate = params.self_signed(&key)?.pem();
    for (name, content) in [("ca.key", key.serialize_pem()), ("ca.crt", certificate.clone())] {
        let path = folder.join(name);
        replace_file(&path, content.as_bytes()).map_err(|source| TlsError::File { path, source })?;
    }
    Ok((certificate, key))
}

fn make_server(
    ca_key: &KeyPair,
    names: &[String],
    now: SystemTime,
) -> Result<(CertifiedKey, SystemTime), TlsError> {
    let ends = now + SERVER_LIFE;
    let mut params = CertificateParams::default();
    params.distinguished_name = named("midflight-apiserver");
    params.subject_alt_names = names.iter().map(|name| subject_name(name)).collect::<Result<_, _>>()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.not_before = (now - DAY).into();
    params.not_after = ends.into();

    let key = KeyPair::generate()?;
    // The CA's name and usages never change, so they need not be read back from its PEM.
    let ca = ca_params();
    let issuer = Issuer::from_params(&ca, ca_key);
    let certificate = params.signed_by(&key, &issuer)?;
    let private = PrivateKeyDer::try_from(key.serialize_der()).expect("rcgen writes PKCS#8");
    let signer = rustls::crypto::ring::sign::any_supported_type(&private)?;
    Ok((CertifiedKey::new(vec![certificate.der().clone()], signer), ends))
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn subject_name(name: &str) -> Result<SanType, rcgen::Error> {
    match name.parse::<IpAddr>() {
        Ok(address) => Ok(SanType::IpAddress(address)),
        Err(_) => Ok(SanType::DnsName(name.try_into()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

    fn shown(certificates: &Certificates) -> CertificateDer<'static> {
        certificates.current.0.load().0.cert[0].clone()
    }

    #[test]
    fn the_ca_stays_and_the_certificate_is_renewed_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let first =
            Certificates::open(folder.path(), &["example.test".into(), "10.0.0.1".into()], now).unwrap();
        let certificate = shown(&first);
        assert!(!first.renew_if_due(now).unwrap());
        assert_eq!(shown(&first), certificate);
        assert!(first.renew_if_due(now + YEAR - 2 * RENEW_BEFORE / 3).unwrap());
        assert_ne!(shown(&first), certificate);

        let second = Certificates::open(folder.path(), &[], now).unwrap();
        assert_eq!(first.ca_pem(), second.ca_pem(), "clients go on trusting what they trusted");
    }

    #[test]
    fn clients_that_trust_the_ca_accept_every_name() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let certificates =
            Certificates::open(folder.path(), &["example.test".into(), "10.0.0.1".into()], now).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(certificates.ca_pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .unwrap();
        let time = rustls::pki_types::UnixTime::since_unix_epoch(
            now.duration_since(SystemTime::UNIX_EPOCH).unwrap(),
        );
        let accepts = |name: &str| {
            use rustls::client::danger::ServerCertVerifier;
            let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
            verifier.verify_server_cert(&shown(&certificates), &[], &name, &[], time).is_ok()
        };
        for name in ["localhost", "127.0.0.1", "::1", "example.test", "10.0.0.1"] {
            assert!(accepts(name), "{name}");
        }
        assert!(!accepts("other.test"));
    }

    #[test]
    fn a_broken_ca_file_is_an_error_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        Certificates::open(folder.path(), &[], SystemTime::now()).unwrap();
        let path = folder.path().join("ca.crt");
        fs::write(&path, "nonsense").unwrap();
        assert!(matches!(
            Certificates::open(folder.path(), &[], SystemTime::now()),
            Err(TlsError::Pem { .. })
        ));
        assert_eq!(fs::read_to_string(path).unwrap(), "nonsense");
    }
}
