//! TLS servers, with and without client certificates.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{fs, path::Path};

use common::{djinn, server::Server, stderr, stdout};
use djinn_client::{Client, ErrorCode, Options};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// Writes a certificate authority (`ca.pem`), and a certificate (`NAME.pem`) with its key (`NAME.key`) for each name.
fn write_certificates(folder: &Path, names: &[&str]) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // A certificate with the name of its issuer would count as signed by itself.
    params
        .distinguished_name
        .push(DnType::CommonName, "authority");
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

#[tokio::test]
async fn certificates_are_read_again_on_a_hangup() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path(), &["server"]);
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let server = Server::start(&[
        "--tls-cert",
        &file("server.pem"),
        "--tls-key",
        &file("server.key"),
    ]);
    let trusting = || Options {
        ca: Some(file("ca.pem").into()),
        ..Options::default()
    };
    assert!(Client::connect(&server.address, trusting()).await.is_ok());
    // A new authority signs a new certificate. Until the signal, the server shows the old one.
    write_certificates(folder.path(), &["server"]);
    assert!(Client::connect(&server.address, trusting()).await.is_err());
    server.signal("-HUP");
    common::server::wait_until("the new certificate is in use", async || {
        Client::connect(&server.address, trusting()).await.is_ok()
    })
    .await;
    // A broken file changes nothing.
    fs::write(file("server.pem"), "not a certificate").unwrap();
    server.signal("-HUP");
    assert!(Client::connect(&server.address, trusting()).await.is_ok());
}

/// Posts a large body with curl and returns the status and the body of the answer.
fn curl(arguments: &[&str], body: &Path) -> String {
    let data = format!("@{}", body.display());
    let output = std::process::Command::new("curl")
        .args([
            "-sS",
            "-w",
            "\n%{http_code}",
            "-H",
            "content-type: application/json",
        ])
        .args(["--data-binary", &data])
        .args(arguments)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn refused_posts_have_a_body_over_every_protocol() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path(), &["server"]);
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let keys = folder.path().join("keys.toml");
    fs::write(
        &keys,
        "[[key]]\nowner = 'ada'\nkey = 'ada-0123456789abcdef'\n",
    )
    .unwrap();
    let server = Server::start(&[
        "--tls-cert",
        &file("server.pem"),
        "--tls-key",
        &file("server.key"),
        "--keys",
        keys.to_str().unwrap(),
        "--max-body",
        "1MB",
    ]);
    let port = server.address.rsplit(':').next().unwrap();
    let url = format!("https://localhost:{port}/v1/completions");
    let ca = file("ca.pem");
    let body = folder.path().join("body.json");
    let text = format!("{{\"prompt\": \"{}\"}}", "a ".repeat(1 << 20));
    fs::write(&body, text).unwrap();
    for protocol in ["--http1.1", "--http2"] {
        let without_key = curl(&[protocol, "--cacert", &ca, &url], &body);
        assert!(without_key.ends_with("\n401"), "{protocol}: {without_key}");
        assert!(
            without_key.contains("API key required"),
            "{protocol}: {without_key}"
        );
        let key = "authorization: Bearer ada-0123456789abcdef";
        let too_large = curl(&[protocol, "--cacert", &ca, "-H", key, &url], &body);
        assert!(too_large.ends_with("\n413"), "{protocol}: {too_large}");
        assert!(
            too_large.contains("exceeds the limit"),
            "{protocol}: {too_large}"
        );
    }
}
