//! TLS with rustls, and client certificates if the configuration names a CA for them.

use std::{
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio_rustls::TlsAcceptor;

use crate::config::TlsFiles;

/// TLS with certificates that can be read again while the server runs.
pub struct ReloadableTls {
    files: TlsFiles,
    current: RwLock<TlsAcceptor>,
}

impl ReloadableTls {
    /// Reads the certificate and key files.
    pub fn open(files: &TlsFiles) -> Result<Self, String> {
        Ok(ReloadableTls {
            files: files.clone(),
            current: RwLock::new(acceptor(files)?),
        })
    }

    /// Acceptor for a new connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        let current = self.current.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again. On an error the current certificates stay in use.
    pub fn reload(&self) -> Result<(), String> {
        let next = acceptor(&self.files)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }
}

/// Creates a TLS acceptor from certificate and key files.
fn acceptor(tls: &TlsFiles) -> Result<TlsAcceptor, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots
                    .add(certificate)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier
                .build()
                .map_err(|error| format!("{}: {error}", path.display()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&tls.key)
        .map_err(|error| format!("{}: {error}", tls.key.display()))?;
    let mut config = builder
        .with_single_cert(certificates(&tls.certificate)?, key)
        .map_err(|error| format!("{}: {error}", tls.certificate.display()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let error = |error: rustls::pki_types::pem::Error| format!("{}: {error}", path.display());
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(error)?
        .collect();
    match all.map_err(error)? {
        all if all.is_empty() => Err(format!("{} contains no certificate", path.display())),
        all => Ok(all),
    }
}
