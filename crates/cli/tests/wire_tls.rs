//! TLS servers, with and without client certificates.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{fs, path::Path};

use common::{djinn, server::Server, stderr, stdout};
use djinn_client::{Client, ErrorCode, Options};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// Writes a certificate authority (`ca.pem`), and a certificate (`NAME.pem`) with its key (`NAME.key`) for each name.
fn write_certificates(folder: &Path, names: &[&str]) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    fs::write(folder.join("ca.pem"), ca.pem()).unwrap();
    for name in names {
        let hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(hosts).unwrap();
        let certificate = params.signed_by(&key, &ca).unwrap();
        fs::write(folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

#[tokio::test]
async fn tls_clients_and_servers_verify_certificates() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path(), &["server", "client"]);
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let tls = ["--tls-cert", &certificate, "--tls-key", &key];
    let server = Server::start(&tls);
    let trusting = Options {
        ca: Some(ca.clone().into()),
        ..Options::default()
    };
    let secure = format!("https://{}", server.address);
    for address in [&server.address, &secure] {
        let client = Client::connect(address, trusting.clone()).await.unwrap();
        let request = client.model("").session().text("The cat").max_tokens(5);
        let turn = request.open().await.unwrap().collect().await.unwrap();
        assert_eq!(turn.tokens.len(), 5);
    }
    // A client without the authority, and a client without TLS, cannot connect.
    let untrusted = Client::connect(&secure, Options::default()).await;
    assert_eq!(untrusted.unwrap_err().code(), ErrorCode::Unavailable);
    let without_tls = match Client::connect(&server.address, Options::default()).await {
        Ok(client) => client.models().await.map(drop),
        Err(error) => Err(error),
    };
    assert_eq!(without_tls.unwrap_err().code(), ErrorCode::Unavailable);
    let output = djinn(&["models", "--server", &secure, "--ca", &ca]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("stories-7m"));

    // A server with --tls-client-ca requires a certificate of each client.
    let server = Server::start(&[&tls[..], &["--tls-client-ca", &ca]].concat());
    let without_certificate = match Client::connect(&server.address, trusting.clone()).await {
        Ok(client) => client.models().await.map(drop),
        Err(error) => Err(error),
    };
    assert_eq!(
        without_certificate.unwrap_err().code(),
        ErrorCode::Unavailable
    );
    let with_certificate = Options {
        certificate: Some((file("client.pem").into(), file("client.key").into())),
        ..trusting
    };
    let client = Client::connect(&server.address, with_certificate)
        .await
        .unwrap();
    assert_eq!(client.models().await.unwrap().len(), 1);
}
