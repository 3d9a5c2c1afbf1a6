//! Reads that fail: the request fails and says where, the next one is right, and
//! nothing wrong is ever returned.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{How, bits, family, golden, ids, load, open, request, run};
use djinn_engine::{Engine, Finish, Request};
use djinn_model::{Extent, Model, Origin, Weights, program::TensorId};
use djinn_types::Tier;
use djinn_weights::MemorySettings;

/// Weights on a disk that can be told to fail.
struct Disk {
    real: Arc<dyn Weights>,
    /// Reads until one fails; `GONE` when all do.
    fuse: AtomicU64,
}

const WELL: u64 = u64::MAX;
const GONE: u64 = 0;

impl Weights for Disk {
    fn origin(&self) -> Origin {
        self.real.origin()
    }
    fn files(&self) -> Vec<u64> {
        self.real.files()
    }
    fn extent(&self, tensor: TensorId) -> Extent {
        self.real.extent(tensor)
    }
    fn read(&self, file: usize, offset: u64, dst: &mut [u8]) -> io::Result<()> {
        let fails = match self.fuse.load(Ordering::SeqCst) {
            WELL => false,
            GONE => true,
            _ => self.fuse.fetch_sub(1, Ordering::SeqCst) == 1,
        };
        if fails {
            // What a broken disk leaves behind must not be taken for weights.
            dst.fill(0xFF);
            let what = format!("file {file}: reading at offset {offset}: I/O error");
            return Err(io::Error::other(what));
        }
        self.real.read(file, offset, dst)
    }
}

/// A model on such a disk.
fn on_a_disk(folder: &Path) -> (Model, Arc<Disk>) {
    let mut model = open(folder);
    let disk = Arc::new(Disk {
        real: Arc::clone(&model.weights),
        fuse: AtomicU64::new(WELL),
    });
    model.weights = Arc::clone(&disk) as Arc<dyn Weights>;
    (model, disk)
}

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

fn asked(folder: &Path) -> Request {
    request(folder, &ids(&golden(folder)["input_ids"]), &["logits"], 6)
}

/// Steps until the end or the first error.
fn run_out(engine: &mut Engine) -> Result<(), String> {
    while !engine.is_idle() {
        engine.step().map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[test]
fn a_read_error_in_a_pass_ends_its_sessions_and_no_others() {
    for name in ["llama2", "mixtral"] {
        let folder = family(name);
        let expect = bits(&run(&folder, vec![asked(&folder)], How::default())[0]);
        for prefetch in [true, false] {
            for fuse in [1, 2, 5, 11, 17, GONE] {
                let (model, disk) = on_a_disk(&folder);
                let mut engine = load(model, &[asked(&folder)], streamed(prefetch));
                let first = engine.open(asked(&folder)).unwrap();
                engine.step().unwrap();
                disk.fuse.store(fuse, Ordering::SeqCst);
                let error = run_out(&mut engine).unwrap_err();
                assert!(error.contains("file 0: reading at offset"), "{error}");
                assert!(engine.is_idle(), "what failed is over");
                let transcript = engine.close(first).unwrap();
                assert_eq!(transcript.finish, Some(Finish::Failed));
                let right = expect.0.starts_with(&transcript.generated);
                assert!(right, "what came before the error stays right");
                // The disk is back: whoever comes next is served, to the bit.
                disk.fuse.store(WELL, Ordering::SeqCst);
                let next = engine.open(asked(&folder)).unwrap();
                run_out(&mut engine).unwrap();
                engine.check_integrity();
                let transcript = engine.close(next).unwrap();
                assert!(bits(&transcript) == expect, "{name} fuse {fuse}");
            }
        }
    }
}

#[test]
fn a_disk_that_is_gone_stays_an_error() {
    let folder = family("llama2");
    let (model, disk) = on_a_disk(&folder);
    let mut engine = load(model, &[asked(&folder)], streamed(true));
    disk.fuse.store(GONE, Ordering::SeqCst);
    for _ in 0..3 {
        let id = engine.open(asked(&folder)).unwrap();
        assert!(run_out(&mut engine).is_err());
        assert!(engine.close(id).unwrap().generated.is_empty());
    }
    engine.check_integrity();
}

#[test]
fn an_error_while_loading_is_an_error_of_loading() {
    let folder = family("llama2");
    let settings =
        |model: &Model| djinn_engine::Settings::for_requests(model, &[asked(&folder)], 64).unwrap();
    for how in [How::default(), from_host(true)] {
        let (model, disk) = on_a_disk(&folder);
        disk.fuse.store(3, Ordering::SeqCst);
        let (backend, settings) = (how.backend(), settings(&model));
        let blueprint =
            djinn_engine::Blueprint::draw(&model, &*backend, settings, how.memory).unwrap();
        let error = Engine::load(model, &*backend, blueprint, &mut |_| {}).err();
        assert!(error.unwrap().to_string().contains("I/O error"));
    }
}

#[test]
fn what_is_in_host_memory_needs_no_disk() {
    for name in ["llama2", "mixtral"] {
        let folder = family(name);
        let expect = run(&folder, vec![asked(&folder)], How::default());
        for prefetch in [true, false] {
            let (model, disk) = on_a_disk(&folder);
            let mut engine = load(model, &[asked(&folder)], from_host(prefetch));
            disk.fuse.store(GONE, Ordering::SeqCst);
            let id = engine.open(asked(&folder)).unwrap();
            run_out(&mut engine).unwrap();
            engine.check_integrity();
            let found = engine.close(id).unwrap();
            assert!(bits(&found) == bits(&expect[0]), "{name}");
        }
    }
}

/// A copy of a checkpoint, something done to it between passes, and the error.
fn after(change: impl FnOnce(&Path)) -> (tempfile::TempDir, Result<Vec<u32>, String>) {
    let copy = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(family("llama2").join(file), copy.path().join(file)).unwrap();
    }
    // Clocks of file systems tick in milliseconds.
    std::thread::sleep(Duration::from_millis(20));
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
fn a_file_changed_under_a_running_process_is_an_error_that_names_it() {
    let write = |path: &Path| File::options().write(true).open(path).unwrap();
    let (copy, shortened) = after(|path| write(path).set_len(20_000).unwrap());
    let file = copy.path().join("model.safetensors").display().to_string();
    let error = shortened.unwrap_err();
    assert!(error.starts_with(&file), "{error}");
    assert!(error.contains("at offset"), "{error}");

    let (copy, rewritten) = after(|path| {
        let bytes = fs::metadata(path).unwrap().len() as usize;
        write(path).write_all_at(&vec![0; bytes], 0).unwrap();
    });
    let file = copy.path().join("model.safetensors").display().to_string();
    let error = rewritten.unwrap_err();
    assert!(error.starts_with(&file), "{error}");
    assert!(
        error.ends_with("the file was changed while in use"),
        "{error}"
    );
}

#[test]
fn a_file_replaced_by_another_changes_nothing() {
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
