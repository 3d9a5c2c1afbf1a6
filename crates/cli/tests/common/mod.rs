//! What the whole-program tests share: the built program, and checkpoints to break.

#![allow(dead_code, clippy::unwrap_used, missing_docs)]

pub mod proxy;
pub mod server;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn golden(family: &str) -> PathBuf {
    root().join("testdata/golden").join(family)
}

/// The built program, away from the user's own models and settings.
pub fn djinn(args: &[&str]) -> Output {
    let nowhere = std::env::temp_dir().join("djinn-tests-have-no-home");
    Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(args)
        .env("DJINN_HOME", &nowhere)
        .env("HF_HOME", &nowhere)
        .env_remove("HF_HUB_CACHE")
        .output()
        .unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs and expects success.
pub fn ok(args: &[&str]) -> Output {
    let output = djinn(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    output
}

/// Runs and expects one line of complaint with all of `parts`, exit status 2 and
/// nothing on standard output.
pub fn refused(args: &[&str], parts: &[&str]) {
    let said = complained(args, parts);
    assert_eq!(said.trim_end().lines().count(), 1, "{args:?}: {said}");
}

/// The same of what is noticed only once it runs: before the complaint stands what was
/// said of the plan.
pub fn complained(args: &[&str], parts: &[&str]) -> String {
    let output = djinn(args);
    let said = stderr(&output);
    let complaint = said.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
    assert!(complaint.starts_with("djinn: "), "{args:?}: {complaint}");
    for part in parts {
        assert!(
            complaint.contains(part),
            "{args:?}: '{part}' not in: {complaint}"
        );
    }
    assert_eq!(stdout(&output), "", "{args:?}");
    said
}

/// A copy of a family's golden checkpoint, to be broken.
pub struct Broken {
    pub folder: tempfile::TempDir,
}

impl Broken {
    pub fn new(family: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(golden(family).join(file), folder.path().join(file)).unwrap();
        }
        Broken { folder }
    }

    pub fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Changes the configuration's text.
    pub fn config(self, from: &str, to: &str) -> Self {
        let path = self.file("config.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from} is not in the configuration");
        fs::write(path, text.replace(from, to)).unwrap();
        self
    }

    /// Changes the weights' bytes.
    pub fn weights(self, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let path = self.file("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
        self
    }

    /// Replaces a text of the weights' header by one of the same length.
    pub fn header(self, from: &str, to: &str) -> Self {
        assert_eq!(from.len(), to.len());
        self.weights(|bytes| {
            let at = bytes
                .windows(from.len())
                .position(|w| w == from.as_bytes())
                .expect("the text is in the header");
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        })
    }
}
