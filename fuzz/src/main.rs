//! Runs one target with libFuzzer, guided by coverage. The variable `DJINN_FUZZ_TARGET` names the
//! target, and `DJINN_FUZZ_DATA` the folder that holds `testdata`.
//!
//! With `DJINN_FUZZ_LIST`, the program prints the name and the longest input of every target. With
//! `DJINN_FUZZ_DICTIONARY`, it prints the target's words in libFuzzer's format.

#![no_main]

use std::sync::OnceLock;

use djinn_fuzz::{FuzzTarget, TARGETS, check, target, watch_panics};
use libfuzzer_sys::fuzz_target;
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Returns the target that the environment names.
fn selected() -> &'static FuzzTarget {
    static SELECTED: OnceLock<&'static FuzzTarget> = OnceLock::new();
    SELECTED.get_or_init(|| {
        let name = std::env::var("DJINN_FUZZ_TARGET").unwrap_or_default();
        let Some(found) = target(&name) else {
            eprintln!("DJINN_FUZZ_TARGET='{name}' is not a target");
            std::process::exit(2);
        };
        // The hook of libFuzzer ends the process even if a reader catches the panic.
        watch_panics();
        // The first run makes fixtures, whose memory must not count.
        (found.run)(b"");
        found
    })
}

/// Prints what the environment asks for instead of fuzzing.
fn prepare() {
    if std::env::var_os("DJINN_FUZZ_LIST").is_some() {
        for target in TARGETS {
            println!("{} {}", target.name, target.longest);
        }
        std::process::exit(0);
    }
    if std::env::var_os("DJINN_FUZZ_DICTIONARY").is_some() {
        for token in selected().tokens {
            let escaped: String = token.bytes().map(|byte| format!("\\x{byte:02x}")).collect();
            println!("\"{escaped}\"");
        }
        std::process::exit(0);
    }
}

fuzz_target!(init: prepare(), |data: &[u8]| {
    if let Err(violation) = check(selected(), data, &MEMORY) {
        eprintln!("{}: {violation}", selected().name);
        std::process::abort();
    }
});
