//! Helpers of the whole-engine tests: golden data, and functions that run sessions.

#![allow(dead_code, clippy::unwrap_used, missing_docs)]

pub mod durable;
pub mod elastic;
pub mod faulty_disk;
pub mod paging;
pub mod stops;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use djinn_device::{
    Backend,
    cpu::{CpuBackend, Isa},
    cuda::CudaBackend,
};
use djinn_engine::{
    Blueprint, Engine, Positions, Probe, Request, Settings, Tensor, Transcript, read_tensors,
};
use djinn_model::Model;
use djinn_types::KvDtype;
use djinn_weights::MemorySettings;

pub const FAMILIES: [&str; 10] = [
    "falcon180b",
    "falcon7b",
    "gpt2",
    "gptj",
    "llama2",
    "llama3",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn family(name: &str) -> PathBuf {
    root().join("testdata/golden").join(name)
}

pub fn stories() -> PathBuf {
    root().join("models/stories-7m")
}

pub fn open(folder: &Path) -> Model {
    Model::open(folder.to_str().unwrap()).unwrap()
}

/// Golden tensors by name.
pub fn golden(folder: &Path) -> BTreeMap<String, Tensor> {
    read_tensors(&folder.join("golden.safetensors")).unwrap()
}

/// Reads a metadata string of the golden file.
pub fn golden_note(folder: &Path, key: &str) -> String {
    let bytes = fs::read(folder.join("golden.safetensors")).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    header.metadata().as_ref().unwrap()[key].clone()
}

pub fn ids(tensor: &Tensor) -> Vec<u32> {
    tensor.data.iter().map(|&x| x as u32).collect()
}

/// Settings of a run: rows of a pass, processor settings, memory.
#[derive(Clone, Copy)]
pub struct How {
    pub rows: usize,
    pub threads: Option<usize>,
    pub isa: Option<Isa>,
    pub memory: MemorySettings,
}

impl How {
    pub fn backend(&self) -> Arc<dyn Backend> {
        let cpu = || {
            Arc::new(CpuBackend {
                threads: self.threads,
                isa: self.isa,
            })
        };
        card().unwrap_or_else(|| cpu())
    }
}

/// GPU whose number is in `DJINN_TEST_CARD`, opened once. If the variable is set, the tests run on
/// that GPU instead of the processor.
pub fn card() -> Option<Arc<dyn Backend>> {
    static CARD: OnceLock<Option<Arc<dyn Backend>>> = OnceLock::new();
    let open = || {
        let number = std::env::var("DJINN_TEST_CARD").ok()?;
        Some(Arc::new(CudaBackend::new(number.parse().unwrap()).unwrap()) as Arc<dyn Backend>)
    };
    CARD.get_or_init(open).clone()
}

impl Default for How {
    fn default() -> Self {
        How {
            rows: Settings::ROWS,
            threads: Some(1),
            isa: None,
            memory: MemorySettings::default(),
        }
    }
}

/// Types of keys and values.
pub const KV_DTYPES: [KvDtype; 3] = [KvDtype::F16, KvDtype::Bf16, KvDtype::F32];

/// A run with keys and values of this type.
pub fn with_kv(kv_dtype: KvDtype) -> How {
    let memory = MemorySettings {
        kv_dtype,
        ..MemorySettings::default()
    };
    How {
        memory,
        ..How::default()
    }
}

/// Loads an engine with room for these requests.
pub fn load(model: Model, requests: &[Request], how: How) -> Engine {
    let settings = Settings::for_requests(&model, requests, how.rows).unwrap();
    let backend = how.backend();
    let blueprint = Blueprint::draw(&model, &*backend, settings, how.memory).unwrap();
    Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap()
}

/// Runs all requests together and returns their transcripts in order.
pub fn run(folder: &Path, requests: Vec<Request>, how: How) -> Vec<Transcript> {
    let mut engine = load(open(folder), &requests, how);
    let ids: Vec<_> = requests
        .into_iter()
        .map(|request| engine.open(request).unwrap())
        .collect();
    while !engine.is_idle() {
        engine.step().unwrap();
        engine.check_integrity();
    }
    ids.into_iter()
        .map(|id| engine.close(id).unwrap())
        .collect()
}

/// Creates a request that captures `patterns` and generates greedily.
pub fn request(folder: &Path, tokens: &[u32], patterns: &[&str], generate: usize) -> Request {
    request_edited(folder, tokens, patterns, generate, &[])
}

pub fn request_edited(
    folder: &Path,
    tokens: &[u32],
    patterns: &[&str],
    generate: usize,
    edits: &[&str],
) -> Request {
    let program = open(folder).program;
    let edits: Vec<_> = edits.iter().map(|e| e.parse().unwrap()).collect();
    Request {
        tokens: tokens.to_vec(),
        max_tokens: generate,
        probe: Probe::new(&program, patterns, Positions::All, &edits).unwrap(),
        ..Request::default()
    }
}

pub fn tensors(transcript: &Transcript) -> BTreeMap<String, Tensor> {
    transcript.captured.tensors()
}

/// Returns the largest difference over all positions of a captured tensor. In a model with experts,
/// rounding may select another expert at a position and change all its numbers, so the larger half of
/// the positions is ignored.
pub fn largest_difference(found: &Tensor, expect: &[f32], is_routed: bool) -> f32 {
    let width = found.shape[1];
    let far = |(x, y): (&[f32], &[f32])| {
        let pairs = x.iter().zip(y);
        pairs.fold(0f32, |most, (x, y)| most.max((x - y).abs()))
    };
    let positions = found.data.chunks(width).zip(expect.chunks(width));
    let mut all: Vec<f32> = positions.map(far).collect();
    all.sort_by(f32::total_cmp);
    let last = if is_routed { all.len() / 2 } else { all.len() };
    all[last - 1]
}

/// Generated tokens and captured tensors of a session, comparable bit by bit.
pub type Bits = (Vec<u32>, BTreeMap<String, Vec<u32>>);

pub fn bits(transcript: &Transcript) -> Bits {
    let tensors = tensors(transcript)
        .into_iter()
        .map(|(name, t)| (name, t.data.iter().map(|x| x.to_bits()).collect()))
        .collect();
    (transcript.generated.clone(), tensors)
}
