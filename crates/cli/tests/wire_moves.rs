//! Bytes between client and server: a request transfers only what it asks for.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{proxy::counted_client, server::Server};
use djinn_client::{HookEdit, PushProgress, Register, Resume};

const HOOK: &str = "blocks.3.hook_resid_post";

#[tokio::test]
async fn a_breakpoint_transfers_only_the_requested_values() {
    let server = Server::start(&[]);
    let (client, counts) = counted_client(&server.address).await;
    let prompt = "Tom had a red boat. ".repeat(12);
    let request = client.model("").session().text(prompt).max_tokens(4).keep();
    let request = request.breakpoint(format!("{HOOK},step=0"));
    // The first call sets up the connection; its bytes are not part of the measurement.
    client.capabilities().await.unwrap();
    counts.take();
    let events = request.open().await.unwrap();
    let session = events.session().clone();
    let turn = events.collect().await.unwrap();
    let shape = turn.paused().unwrap().shape.clone();
    let (rows, width) = (shape[0], shape[1]);
    let whole = 4 * rows * width;
    assert!(whole > 50_000, "{shape:?}");
    // A pause transfers its location and no tensor.
    let (_, received) = counts.take();
    assert!(received < 1_000, "{received} bytes for a pause");

    let eight = session.activation("[0..8]", "-1").await.unwrap();
    assert_eq!(eight.shape, [1, 8]);
    let (sent, received) = counts.take();
    assert!(
        sent + received < 600,
        "{sent} bytes sent and {received} received to read 8 numbers"
    );

    let row = session.activation("", "-1").await.unwrap();
    assert_eq!(row.data.len() as u64, width);
    assert_eq!(row.data[..8], eight.data);
    let (_, received) = counts.take();
    assert!(
        received >= 4 * width && received < 4 * width + 600,
        "{received} bytes for a row"
    );

    let all = session.activation("", "").await.unwrap();
    assert_eq!(all.data.len() as u64, rows * width);
    let (_, received) = counts.take();
    // Each frame of 16 KiB adds nine bytes.
    assert!(
        received >= whole && received < whole + whole / 100 + 600,
        "{received} bytes for {whole} bytes of numbers"
    );

    // An edit transfers only its numbers.
    let edit = HookEdit::replace(HOOK, &eight).part("[0..8]").at("-1");
    let resume = Resume::new().edit(edit).to_next_hook();
    let turn = session
        .resume(resume)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert!(turn.paused().is_some());
    let (sent, received) = counts.take();
    assert!(
        sent + received < 1_200,
        "{sent} bytes sent and {received} received to change 8 numbers"
    );
}

#[tokio::test]
async fn captures_are_reduced_before_they_are_transferred() {
    let server = Server::start(&[]);
    let (client, counts) = counted_client(&server.address).await;
    let prompt = "Tom had a red boat. ".repeat(12);
    let request = || {
        client
            .model("")
            .session()
            .text(prompt.clone())
            .max_tokens(0)
    };
    client.capabilities().await.unwrap();
    counts.take();
    let mut sizes = Vec::new();
    for capture in [
        "blocks.*.hook_resid_post|norm",
        "blocks.*.hook_resid_post@-1",
        "blocks.*.hook_resid_post",
    ] {
        let turn = request().capture(capture).open().await.unwrap();
        let turn = turn.collect().await.unwrap();
        let numbers: usize = turn.captured.values().map(|t| 4 * t.data.len()).sum();
        let (_, received) = counts.take();
        assert!(
            received < numbers as u64 * 101 / 100 + 2_000,
            "{capture}: {received} bytes"
        );
        sizes.push(received);
    }
    assert!(
        sizes[0] < sizes[2] / 50 && sizes[1] < sizes[2] / 20,
        "{sizes:?}"
    );
}

#[tokio::test]
async fn a_second_push_of_a_model_sends_no_weights() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&["--push-dir", folder.path().to_str().unwrap()]);
    let (client, counts) = counted_client(&server.address).await;
    let model = common::root().join("models/stories-7m");
    let mut last = None;
    let pushed = client
        .push(&model, |progress| last = Some(progress))
        .await
        .unwrap();
    assert_eq!(pushed.sent, pushed.bytes);
    assert_eq!(
        last,
        Some(PushProgress::Sending(pushed.bytes, pushed.bytes))
    );
    let (sent, _) = counts.take();
    assert!(sent > pushed.bytes && sent < pushed.bytes + pushed.bytes / 50);

    let again = client.push(&model, |_| {}).await.unwrap();
    assert_eq!((again.sent, &again.reference), (0, &pushed.reference));
    let (sent, received) = counts.take();
    assert!(
        sent + received < 2_000,
        "{sent} bytes sent and {received} received to push it again"
    );

    // The pushed model generates the same tokens as the bundled model.
    let registration = Register::new(&pushed.reference).name("pushed");
    let registered = client.register(registration, |_| {}).await.unwrap();
    assert_eq!(
        (registered.name.as_str(), registered.has_text),
        ("pushed", true)
    );
    let mut tokens = Vec::new();
    for name in ["", "pushed"] {
        let request = client.model(name).session().text("The cat").max_tokens(12);
        tokens.push(
            request
                .open()
                .await
                .unwrap()
                .collect()
                .await
                .unwrap()
                .tokens,
        );
    }
    assert_eq!(tokens[0], tokens[1]);
    client.model("pushed").unload(false, true).await.unwrap();
    assert_eq!(client.models().await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_interrupted_push_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&["--push-dir", folder.path().to_str().unwrap()]);
    let client = server.client().await;
    let model = common::root().join("models/stories-7m");
    let pushed = client.push(&model, |_| {}).await.unwrap();
    // Only half of the largest file remains, as after an interruption.
    let blobs: Vec<_> = std::fs::read_dir(folder.path().join("blobs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let length = |path: &std::path::PathBuf| path.metadata().unwrap().len();
    let largest = blobs.iter().max_by_key(|path| length(path)).unwrap();
    let bytes = std::fs::read(largest).unwrap();
    let half = bytes.len() / 2;
    let part = folder
        .path()
        .join("parts")
        .join(largest.file_name().unwrap());
    std::fs::write(part, &bytes[..half]).unwrap();
    std::fs::remove_file(largest).unwrap();
    std::fs::remove_dir_all(folder.path().join("models")).unwrap();
    let again = client.push(&model, |_| {}).await.unwrap();
    assert_eq!(again.reference, pushed.reference);
    assert_eq!(again.sent as usize, bytes.len() - half);
}
