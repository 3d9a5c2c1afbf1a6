//! Nothing travels but what is asked for.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{proxy::counted, server::Server};
use djinn_client::{HookEdit, PushProgress, Register, Resume};

const HERE: &str = "blocks.3.hook_resid_post";

#[tokio::test]
async fn a_breakpoint_moves_only_what_is_asked_for() {
    let server = Server::start(&[]);
    let (client, counts) = counted(&server.address).await;
    let prompt = "Tom had a red boat. ".repeat(12);
    let asked = client.model("").session().text(prompt).max_tokens(4).keep();
    let asked = asked.breakpoint(format!("{HERE},step=0"));
    // The connection's own first words are no part of it.
    client.capabilities().await.unwrap();
    counts.take();
    let events = asked.open().await.unwrap();
    let session = events.session().clone();
    let turn = events.collect().await.unwrap();
    let shape = turn.paused().unwrap().shape.clone();
    let (rows, width) = (shape[0], shape[1]);
    let whole = 4 * rows * width;
    assert!(whole > 50_000, "{shape:?}");
    // It stopped, and said no more than where.
    let (_, came) = counts.take();
    assert!(came < 1_000, "{came} bytes to say where it stopped");

    let eight = session.activation("[0..8]", "-1").await.unwrap();
    assert_eq!(eight.shape, [1, 8]);
    let (went, came) = counts.take();
    assert!(went + came < 600, "{went} and {came} bytes for 8 numbers");

    let row = session.activation("", "-1").await.unwrap();
    assert_eq!(row.data.len() as u64, width);
    assert_eq!(row.data[..8], eight.data);
    let (_, came) = counts.take();
    assert!(
        came >= 4 * width && came < 4 * width + 600,
        "{came} for a row"
    );

    let all = session.activation("", "").await.unwrap();
    assert_eq!(all.data.len() as u64, rows * width);
    let (_, came) = counts.take();
    // Frames of 16 KiB cost nine bytes each.
    assert!(
        came >= whole && came < whole + whole / 100 + 600,
        "{came} for {whole}"
    );

    // An edit is as long as its numbers.
    let edit = HookEdit::replace(HERE, &eight).part("[0..8]").at("-1");
    let resume = Resume::new().edit(edit).to_next_hook();
    let turn = session
        .resume(resume)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert!(turn.paused().is_some());
    let (went, came) = counts.take();
    assert!(
        went + came < 1_200,
        "{went} and {came} bytes to change 8 numbers"
    );
}

#[tokio::test]
async fn captures_are_cut_before_they_travel() {
    let server = Server::start(&[]);
    let (client, counts) = counted(&server.address).await;
    let prompt = "Tom had a red boat. ".repeat(12);
    let asked = || {
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
        let turn = asked().capture(capture).open().await.unwrap();
        let turn = turn.collect().await.unwrap();
        let numbers: usize = turn.captured.values().map(|t| 4 * t.data.len()).sum();
        let (_, came) = counts.take();
        assert!(
            came < numbers as u64 * 101 / 100 + 2_000,
            "{capture}: {came}"
        );
        sizes.push(came);
    }
    assert!(
        sizes[0] < sizes[2] / 50 && sizes[1] < sizes[2] / 20,
        "{sizes:?}"
    );
}

#[tokio::test]
async fn a_model_is_pushed_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&["--push-dir", folder.path().to_str().unwrap()]);
    let (client, counts) = counted(&server.address).await;
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
    let (went, _) = counts.take();
    assert!(went > pushed.bytes && went < pushed.bytes + pushed.bytes / 50);

    let again = client.push(&model, |_| {}).await.unwrap();
    assert_eq!((again.sent, &again.reference), (0, &pushed.reference));
    let (went, came) = counts.take();
    assert!(
        went + came < 2_000,
        "{went} and {came} bytes to offer it again"
    );

    // What it came to is the model that was there: the same words of it.
    let told = Register::new(&pushed.reference).name("pushed");
    let registered = client.register(told, |_| {}).await.unwrap();
    assert_eq!(
        (registered.name.as_str(), registered.has_text),
        ("pushed", true)
    );
    let mut tokens = Vec::new();
    for name in ["", "pushed"] {
        let asked = client.model(name).session().text("The cat").max_tokens(12);
        tokens.push(asked.open().await.unwrap().collect().await.unwrap().tokens);
    }
    assert_eq!(tokens[0], tokens[1]);
    client.model("pushed").unload(false, true).await.unwrap();
    assert_eq!(client.models().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_push_that_broke_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&["--push-dir", folder.path().to_str().unwrap()]);
    let client = server.client().await;
    let model = common::root().join("models/stories-7m");
    let pushed = client.push(&model, |_| {}).await.unwrap();
    // As if it had broken off in the middle of the largest file.
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
