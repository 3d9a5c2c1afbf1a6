//! Runs CUDA kernels on the processor, under the emulation in `emulation/`, and compares their results
//! with references. This finds wrong indexes, missing barriers and reads that come too early; speed and
//! the compiler's work need a card.
//!
//! The tests need a C++ compiler: `CXX`, or `c++`. Without one they are skipped, except in CI.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Compiler for C++; `None` if there is none.
fn compiler() -> Option<String> {
    let name = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let found = Command::new(&name).arg("--version").output();
    found
        .is_ok_and(|output| output.status.success())
        .then_some(name)
}

fn run(test: &str) {
    let Some(compiler) = compiler() else {
        assert!(std::env::var_os("CI").is_none(), "CI needs a C++ compiler");
        eprintln!("skipped: no C++ compiler");
        return;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("emulated-{test}"));
    let compiled = Command::new(compiler)
        .args([
            "-std=c++17",
            "-O1",
            "-g",
            "-fsanitize=address",
            "-ffp-contract=off",
        ])
        .args([
            "-Wall",
            "-Werror",
            "-Wno-unknown-pragmas",
            "-I",
            "emulation",
            "-I",
            "src",
            "-o",
        ])
        .arg(&program)
        .arg(format!("emulation/{test}_test.cpp"))
        .current_dir(root)
        .status();
    assert!(compiled.expect("the compiler starts").success());
    let ran = Command::new(&program)
        .env(
            "ASAN_OPTIONS",
            "detect_stack_use_after_return=0:detect_leaks=0",
        )
        .output()
        .expect("the test starts");
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}\n{errors}", ran.status);
}

#[test]
fn products_are_chains() {
    run("product_chain");
}

#[test]
fn products_of_few_rows() {
    run("gemv_small_batch");
}

#[test]
fn attention_of_prompts() {
    run("attention_prefill");
}
