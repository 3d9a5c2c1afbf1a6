//! Helpers of the tests that run the built program: commands, servers, and damaged checkpoints.

#![allow(dead_code, clippy::unwrap_used, missing_docs)]

pub mod checkpoint;
pub mod proxy;
pub mod server;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// Flags of a patching experiment with two prompts that differ in one token.
pub const PATCH: [&str; 9] = [
    "patch",
    "--clean",
    "Tom had a red car. The car was",
    "--corrupt",
    "Tom had a blue car. The car was",
    "--answer",
    " red",
    "--instead",
    " blue",
];

/// Flags that make a steering vector from one pair of texts.
pub const STEER_MAKE: [&str; 6] = [
    "steer",
    "make",
    "--positive",
    "She was happy",
    "--negative",
    "She was sad",
];

/// Root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Folder of a model family's golden checkpoint.
pub fn golden(family: &str) -> PathBuf {
    root().join("testdata/golden").join(family)
}

/// Runs the built program with an empty home, so that it ignores the user's models and settings.
pub fn djinn(args: &[&str]) -> Output {
    let home = std::env::temp_dir().join("djinn-tests-have-no-home");
    Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(args)
        .env("DJINN_HOME", &home)
        .env("HF_HOME", &home)
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

/// Runs a command with these lines on standard input.
pub fn with_input(args: &[&str], lines: &[&str]) -> Output {
    let home = std::env::temp_dir().join("djinn-tests-have-no-home");
    let mut child = Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(args)
        .env("DJINN_HOME", &home)
        .env("HF_HOME", &home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(lines.join("\n").as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// Runs a command with these lines on standard input, checks that it succeeds, and returns its standard output.
pub fn output_of(args: &[&str], lines: &[&str]) -> String {
    let output = with_input(args, lines);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

/// Runs a command and checks that it succeeds.
pub fn ok(args: &[&str]) -> Output {
    let output = djinn(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    output
}

/// Runs a command and checks that it fails with exit status 2, one line on standard error that contains all of
/// `parts`, and an empty standard output.
pub fn refused(args: &[&str], parts: &[&str]) {
    let stderr_text = fails(args, parts);
    assert_eq!(
        stderr_text.trim_end().lines().count(),
        1,
        "{args:?}: {stderr_text}"
    );
}

/// Runs a command and checks that it fails with exit status 2, an empty standard output, and an error that
/// contains all of `parts` as the last line on standard error. Notices may precede the error. Returns standard error.
pub fn fails(args: &[&str], parts: &[&str]) -> String {
    let output = djinn(args);
    let stderr_text = stderr(&output);
    let error = stderr_text.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr_text}");
    assert!(error.starts_with("djinn: "), "{args:?}: {error}");
    for part in parts {
        assert!(
            error.contains(part),
            "{args:?}: '{part}' is not in: {error}"
        );
    }
    assert_eq!(stdout(&output), "", "{args:?}");
    stderr_text
}

/// Copy of a family's golden checkpoint that a test damages.
pub struct DamagedModel {
    pub folder: tempfile::TempDir,
}

impl DamagedModel {
    pub fn new(family: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(golden(family).join(file), folder.path().join(file)).unwrap();
        }
        DamagedModel { folder }
    }

    pub fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces a text in the configuration.
    pub fn config(self, from: &str, to: &str) -> Self {
        let path = self.file("config.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.contains(from),
            "the configuration does not contain {from}"
        );
        fs::write(path, text.replace(from, to)).unwrap();
        self
    }

    /// Changes the bytes of the weights.
    pub fn weights(self, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let path = self.file("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
        self
    }

    /// Replaces a text in the header of the weights with another of the same length.
    pub fn header(self, from: &str, to: &str) -> Self {
        assert_eq!(from.len(), to.len());
        self.weights(|bytes| {
            let at = bytes
                .windows(from.len())
                .position(|w| w == from.as_bytes())
                .expect("the header contains the text");
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        })
    }
}

/// Runs a command and parses its standard output as JSON.
pub fn json_output(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&stdout(&ok(args))).unwrap()
}
