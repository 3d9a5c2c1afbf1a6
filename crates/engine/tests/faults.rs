//! Failing reads: the affected sessions fail with an error that names the file, the next session
//! is correct, and no wrong result is returned.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use common::faulty_disk::{GONE, HEALTHY, on_faulty_disk};
use common::{How, bits, family, golden, ids, load, open, request, run};
use djinn_device::DeviceError;
use djinn_engine::{Engine, EngineError, Finish, Request};
use djinn_model::Model;
use djinn_types::Tier;
use djinn_weights::MemorySettings;

fn streamed(prefetch: bool) -> How {
    How {
        memory: MemorySettings {
            overrides: djinn_weights::Overrides {
                keep: djinn_weights::Keep::Nothing,
                ring: None,
            },
            chunk: Some(64 << 10),
            prefetch,
            ..MemorySettings::default()
        },
        ..How::default()
    }
}

fn from_host(prefetch: bool) -> How {
    let mut how = streamed(prefetch);
    how.memory.tier = Some(Tier::Host);
    how
}

/// Whether weights could not be read.
fn is_read_error(error: &EngineError) -> bool {
    matches!(error, EngineError::Device(DeviceError::Read(_)))
}

fn asked(folder: &Path) -> Request {
    request(folder, &ids(&golden(folder)["input_ids"]), &["logits"], 6)
}

/// Steps until the engine is idle or an error occurs.
fn run_out(engine: &mut Engine) -> Result<(), EngineError> {
    while !engine.is_idle() {
        engine.step()?;
    }
    Ok(())
}

#[test]
fn a_read_error_ends_the_sessions_of_its_pass_only() {
    for name in ["llama2", "mixtral"] {
        let folder = family(name);
        let expect = bits(&run(&folder, vec![asked(&folder)], How::default())[0]);
        for prefetch in [true, false] {
            for reads in [1, 2, 5, 11, 17, GONE] {
                let (model, disk) = on_faulty_disk(&folder);
                let mut engine = load(model, &[asked(&folder)], streamed(prefetch));
                let first = engine.open(asked(&folder)).unwrap();
                engine.step().unwrap();
                disk.reads_left.store(reads, Ordering::SeqCst);
                let error = run_out(&mut engine).unwrap_err();
                assert!(is_read_error(&error), "{error}");
                assert!(engine.is_idle(), "the failed session has ended");
                let transcript = engine.close(first).unwrap();
                assert_eq!(transcript.finish, Some(Finish::Failed));
                let right = expect.0.starts_with(&transcript.generated);
                assert!(right, "tokens before the error are correct");
                // The disk is healthy again: the next session gives the expected bits.
                disk.reads_left.store(HEALTHY, Ordering::SeqCst);
                let next = engine.open(asked(&folder)).unwrap();
                run_out(&mut engine).unwrap();
                engine.check_integrity();
                let transcript = engine.close(next).unwrap();
                assert!(
                    bits(&transcript) == expect,
                    "{name}: failure after {reads} reads"
                );
            }
        }
    }
}

#[test]
fn a_missing_disk_fails_every_session() {
    let folder = family("llama2");
    let (model, disk) = on_faulty_disk(&folder);
    let mut engine = load(model, &[asked(&folder)], streamed(true));
    disk.reads_left.store(GONE, Ordering::SeqCst);
    for _ in 0..3 {
        let id = engine.open(asked(&folder)).unwrap();
        let error = run_out(&mut engine).unwrap_err();
        assert!(is_read_error(&error), "{error}");
        assert!(engine.close(id).unwrap().generated.is_empty());
    }
    engine.check_integrity();
}

#[test]
fn a_read_error_while_loading_fails_the_load() {
    let folder = family("llama2");
    let settings =
        |model: &Model| djinn_engine::Settings::for_requests(model, &[asked(&folder)], 64).unwrap();
    for how in [How::default(), from_host(true)] {
        let (model, disk) = on_faulty_disk(&folder);
        disk.reads_left.store(3, Ordering::SeqCst);
        let (backend, settings) = (how.backend(), settings(&model));
        let blueprint =
            djinn_engine::Blueprint::draw(&model, &*backend, settings, how.memory).unwrap();
        let error = Engine::load(model, &*backend, blueprint, &mut |_| {}).err();
        assert!(is_read_error(&error.unwrap()));
    }
}

#[test]
fn weights_in_host_memory_need_no_disk() {
    for name in ["llama2", "mixtral"] {
        let folder = family(name);
        let expect = run(&folder, vec![asked(&folder)], How::default());
        for prefetch in [true, false] {
            let (model, disk) = on_faulty_disk(&folder);
            let mut engine = load(model, &[asked(&folder)], from_host(prefetch));
            disk.reads_left.store(GONE, Ordering::SeqCst);
            let id = engine.open(asked(&folder)).unwrap();
            run_out(&mut engine).unwrap();
            engine.check_integrity();
            let found = engine.close(id).unwrap();
            assert!(bits(&found) == bits(&expect[0]), "{name}");
        }
    }
}

/// Runs a session on a copy of a checkpoint that `change` modifies between two passes. Returns the
/// folder of the copy, and the generated tokens or the error.
fn after(change: impl FnOnce(&Path)) -> (tempfile::TempDir, Result<Vec<u32>, EngineError>) {
    let copy = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(family("llama2").join(file), copy.path().join(file)).unwrap();
    }
    // An old modification time: the clock of a file system may be too coarse to tell two writes
    // of this test apart.
    let path = copy.path().join("model.safetensors");
    let file = File::options().write(true).open(path).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(old).unwrap();
    drop(file);
    let ask = asked(&family("llama2"));
    let mut engine = load(
        open(copy.path()),
        std::slice::from_ref(&ask),
        streamed(false),
    );
    let id = engine.open(ask).unwrap();
    engine.step().unwrap();
    change(&copy.path().join("model.safetensors"));
    let ran = run_out(&mut engine);
    let generated = engine.close(id).unwrap().generated;
    (copy, ran.map(|()| generated))
}

#[test]
fn a_changed_file_is_an_error_that_names_the_file() {
    let write = |path: &Path| File::options().write(true).open(path).unwrap();
    let (copy, shortened) = after(|path| write(path).set_len(20_000).unwrap());
    let file = copy.path().join("model.safetensors").display().to_string();
    let error = shortened.unwrap_err();
    assert!(is_read_error(&error), "{error}");
    assert!(error.to_string().starts_with(&file), "{error}");

    let (copy, rewritten) = after(|path| {
        let bytes = fs::metadata(path).unwrap().len() as usize;
        write(path).write_all_at(&vec![0; bytes], 0).unwrap();
    });
    let file = copy.path().join("model.safetensors").display().to_string();
    let error = rewritten.unwrap_err();
    assert!(is_read_error(&error), "{error}");
    assert!(error.to_string().starts_with(&file), "{error}");
}

#[test]
fn replacing_or_removing_the_file_changes_nothing() {
    let expect = run(
        &family("llama2"),
        vec![asked(&family("llama2"))],
        How::default(),
    );
    let (_copy, replaced) = after(|path| {
        let bytes = fs::metadata(path).unwrap().len() as usize;
        let other = path.with_extension("new");
        fs::write(&other, vec![0; bytes]).unwrap();
        fs::rename(&other, path).unwrap();
    });
    assert_eq!(replaced.unwrap(), expect[0].generated);
    let (_copy, removed) = after(|path| fs::remove_file(path).unwrap());
    assert_eq!(removed.unwrap(), expect[0].generated);
}
