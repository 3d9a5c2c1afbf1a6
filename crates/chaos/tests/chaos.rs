//! The chaos run on the built server. The binary `djinn` of the same build must exist; a test run of the
//! whole workspace builds it, and so does `cargo build -p djinn`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use djinn_chaos::{ChaosSettings, FaultKind};

/// Seed of the run. Another seed gives another order of faults and requests.
const SEED: u64 = 1;
/// Time after which no further round begins.
const TIME: Duration = Duration::from_secs(180);

/// Path of the built server, beside the folder of this test.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("path of the test");
    let folder = test
        .parent()
        .and_then(Path::parent)
        .expect("folder of the build");
    let program = folder.join("djinn");
    assert!(
        program.exists(),
        "{} does not exist; run cargo build -p djinn first",
        program.display()
    );
    program
}

#[test]
fn a_server_keeps_its_promises_through_faults() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let settings = ChaosSettings {
        program: program(),
        model: root
            .join("models/stories-7m")
            .canonicalize()
            .expect("bundled model"),
        folder: folder.path().to_owned(),
        time: TIME,
        seed: SEED,
        faults: FaultKind::ALL.to_vec(),
    };
    println!("seed {SEED}");
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let report = runtime
        .block_on(djinn_chaos::run(&settings))
        .expect("the run starts");
    println!("{}", report.to_text());
    assert!(
        report.violations.is_empty(),
        "{}",
        report.violations.join("\n")
    );
}
