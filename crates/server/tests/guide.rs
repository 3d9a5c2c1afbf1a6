//! Test that every curl command of the guide works as written.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::process::Command;

use common::{Server, folder, model};

/// Shell blocks of a guide that begin with curl.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "```sh" {
            continue;
        }
        let block: Vec<&str> = lines
            .by_ref()
            .take_while(|line| line.trim() != "```")
            .collect();
        let block = block.join("\n");
        if block.trim_start().starts_with("curl") {
            blocks.push(block);
        }
    }
    blocks
}

#[test]
fn the_curl_commands_of_the_guide_work() {
    let server =
        Server::with(|config| config.models = vec![model("stories-7m", "models/stories-7m")]);
    let text = std::fs::read_to_string(folder("docs/serving.md")).unwrap();
    let blocks = blocks(&text);
    assert!(
        blocks.len() >= 4,
        "the guide has {} curl commands",
        blocks.len()
    );
    for block in blocks {
        let address = server.address.to_string();
        let here = block
            .replace("127.0.0.1:5556", &address)
            .replace("localhost:5556", &address);
        let ran = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &here])
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&ran.stdout).into_owned();
        let error = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(
            ran.status.success() && !output.contains("\"error\""),
            "{block}\n{output}\n{error}"
        );
    }
}
