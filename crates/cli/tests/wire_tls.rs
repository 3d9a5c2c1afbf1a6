//! Servers that speak TLS, and want to know who is asking.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{fs, path::Path};

use common::{djinn, server::Server, stderr, stdout};
use djinn_client::{Client, ErrorCode, Options};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// Writes an authority (`ca.pem`), and certificates it signed for these names, with their keys.
fn certificates(folder: &Path, names: &[&str]) {
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
async fn a_server_is_trusted_by_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), &["server", "client"]);
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
        let asked = client.model("").session().text("The cat").max_tokens(5);
        let turn = asked.open().await.unwrap().collect().await.unwrap();
        assert_eq!(turn.tokens.len(), 5);
    }
    // One that nobody vouches for, and one that is spoken to in the clear.
    let strange = Client::connect(&secure, Options::default()).await;
    assert_eq!(strange.unwrap_err().code(), ErrorCode::Unavailable);
    let clear = match Client::connect(&server.address, Options::default()).await {
        Ok(client) => client.models().await.map(drop),
        Err(error) => Err(error),
    };
    assert_eq!(clear.unwrap_err().code(), ErrorCode::Unavailable);
    let output = djinn(&["models", "--server", &secure, "--ca", &ca]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("stories-7m"));

    // One that wants a certificate of its clients too.
    let server = Server::start(&[&tls[..], &["--tls-client-ca", &ca]].concat());
    let unknown = match Client::connect(&server.address, trusting.clone()).await {
        Ok(client) => client.models().await.map(drop),
        Err(error) => Err(error),
    };
    assert_eq!(unknown.unwrap_err().code(), ErrorCode::Unavailable);
    let known = Options {
        certificate: Some((file("client.pem").into(), file("client.key").into())),
        ..trusting
    };
    let client = Client::connect(&server.address, known).await.unwrap();
    assert_eq!(client.models().await.unwrap().len(), 1);
}
