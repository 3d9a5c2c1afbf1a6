//! Says which commit is being built.

use std::{env, path::PathBuf, process::Command};

fn main() {
    // Read at run time, because a cached build script may come from another copy of the sources.
    let here = env::var_os("CARGO_MANIFEST_DIR").map_or_else(PathBuf::new, PathBuf::from);
    let root = here.join("../..");
    for name in ["crates", ".git/HEAD", ".git/logs/HEAD"] {
        let path = root.join(name);
        // A missing path would make Cargo run this script on every build.
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let described = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .current_dir(&root)
        .output();
    let commit = match described {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        // Built from an archive.
        _ => "unknown".to_owned(),
    };
    println!("cargo::rustc-env=DJINN_COMMIT={commit}");
}
