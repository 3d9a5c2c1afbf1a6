//! Debugger with the model on a server: its commands print the same text as with a local model.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{fs, path::Path};

use common::{djinn, ok, server::Server, stderr, stdout};

/// Writes a debugger script and returns its path.
fn script(folder: &Path, lines: &[&str]) -> String {
    let path = folder.join("script.txt");
    fs::write(&path, lines.join("\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_debugger_prints_the_same_text_locally_and_on_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved.safetensors");
    let save = format!("save {}", saved.display());
    let add = format!("edit add={}*0.5", saved.display());
    let lines = [
        "print tokens",
        "break blocks.3.hook_resid_post,step=0",
        "run",
        "print",
        "step",
        "next",
        "until blocks.6.hook_mlp_out",
        "undo",
        "undo",
        "undo",
        &save,
        "edit scale=-1@-1",
        &add,
        "continue",
        "undo",
        "delete all",
        "print lens",
        "print attention 0 1",
        "breaks",
        "continue",
        "print tokens",
        "run",
    ];
    let path = script(folder.path(), &lines);
    let args = [
        "debug",
        "--prompt",
        "The cat sat on the",
        "--max-tokens",
        "5",
        "--script",
        &path,
    ];
    let local = stdout(&ok(&args));
    let server = Server::start(&[]);
    let remote_args = [&args[..], &["--server", &server.address]].concat();
    assert_eq!(local, stdout(&ok(&remote_args)));
    assert!(
        local.contains("stopped at blocks.6.hook_mlp_out"),
        "{local}"
    );
    assert!(local.contains("2 changes to apply"), "{local}");
    assert!(
        local.trim_end().ends_with("the session has ended"),
        "{local}"
    );
    // The debugger closes its sessions.
    let sessions = stdout(&ok(&["sessions", "list", "--server", &server.address]));
    assert_eq!(sessions, "no sessions\n");
}

#[test]
fn the_debugger_switches_between_branches_on_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[]);
    let lines = [
        "step",
        "branch 2",
        "sessions",
        "switch 2",
        "continue",
        "print tokens",
    ];
    let path = script(folder.path(), &lines);
    let args = [
        "debug",
        "--prompt",
        "The cat",
        "--max-tokens",
        "3",
        "--script",
        &path,
    ];
    let output = stdout(&ok(&[&args[..], &["--server", &server.address]].concat()));
    for part in [
        "stopped at hook_embed",
        "sessions 1, 2; switch",
        "2*",
        "session ended (length)",
    ] {
        assert!(output.contains(part), "'{part}' is not in: {output}");
    }
}

#[test]
fn invalid_debugger_commands_are_refused_on_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[]);
    for (lines, part) in [
        (&["break blocks.99.hook_q"][..], "blocks.99.hook_q"),
        (&["break blocks.0.attn.hook_pattern"], "cannot stop at"),
        (&["edit zero"], "run first"),
        (
            &["break blocks.0.hook_resid_post", "run", "edit add=[1,2]"],
            "line 3",
        ),
        (&["undo"], "nothing to undo"),
        (&["switch 77"], "no session 77"),
        (&["print"], "not paused"),
    ] {
        let path = script(folder.path(), lines);
        let args = ["debug", "--prompt", "The cat", "--script", &path];
        let output = djinn(&[&args[..], &["--server", &server.address]].concat());
        let stderr_text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{lines:?}: {stderr_text}");
        assert!(
            stderr_text.lines().last().unwrap().contains(part),
            "{lines:?}: {stderr_text}"
        );
    }
}
