//! The small model that readers are fuzzed with: a golden checkpoint with a tokenizer for bytes.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use djinn_device::cpu::CpuBackend;
use djinn_engine::{Blueprint, Engine, ProbeLimits, Settings};
use djinn_model::{Model, program::Program};
use djinn_types::KvDtype;
use djinn_weights::MemorySettings;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::{scratch, seeds::data_folder};

/// Name of the model.
pub const MODEL: &str = "fuzz-model";
/// Context of the engine in tokens.
pub const CONTEXT: usize = 64;
/// Sessions that the engine may have open.
const SESSIONS: usize = 4;
/// Chat template of the model.
const TEMPLATE: &str = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// Folder of the model, made once for the process.
pub fn model_folder() -> &'static Path {
    static FOLDER: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let make = || {
        let parent = scratch::folder();
        let folder = parent.path().join(MODEL);
        fs::create_dir(&folder).expect("a folder for the model");
        let golden = data_folder().join("testdata/golden/qwen3");
        for name in ["config.json", "model.safetensors"] {
            let bytes = fs::read(golden.join(name)).expect("the golden checkpoint is in testdata");
            scratch::write(&folder, name, &bytes);
        }
        scratch::write(&folder, "tokenizer.json", byte_tokenizer().as_bytes());
        scratch::write(&folder, "chat_template.jinja", TEMPLATE.as_bytes());
        (parent, folder)
    };
    &FOLDER.get_or_init(make).1
}

/// Returns a `tokenizer.json` whose tokens are the printable ASCII characters.
pub fn byte_tokenizer() -> String {
    let vocab: Map<String, Value> = (b'!'..=b'~')
        .chain([b' '])
        .enumerate()
        .map(|(id, byte)| match byte {
            b' ' => ("\u{120}".to_owned(), id.into()),
            byte => (char::from(byte).to_string(), id.into()),
        })
        .collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
        "ignore_merges": false, "vocab": vocab, "merges": [],
    });
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level, "model": model,
    });
    file.to_string()
}

/// Opens the model.
pub fn model() -> Model {
    let folder = model_folder()
        .to_str()
        .expect("temporary folders are UTF-8");
    Model::open(folder).expect("the model of the fixtures is valid")
}

/// Program of the model, built once for the process.
pub fn program() -> &'static Program {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    PROGRAM.get_or_init(|| model().program)
}

/// Type of keys and values of saved sessions that name none.
pub const KV_DTYPE: KvDtype = KvDtype::F32;

/// Backend with one thread.
pub fn backend() -> Arc<CpuBackend> {
    Arc::new(CpuBackend {
        threads: Some(1),
        isa: None,
    })
}

/// Loads an engine of the model that accepts any probe.
pub fn engine() -> Engine {
    let model = model();
    let mut settings = Settings::for_sessions(&model.program, SESSIONS, CONTEXT, CONTEXT)
        .expect("the context is below the model's");
    settings.probe_limits = ProbeLimits::anything(&model.program, CONTEXT);
    settings.logit_rows = settings.rows;
    let memory = MemorySettings {
        kv_dtype: KV_DTYPE,
        ..MemorySettings::default()
    };
    let backend = backend();
    let blueprint = Blueprint::draw(&model, &*backend, settings, memory);
    let blueprint = blueprint.expect("the model is small");
    Engine::load(model, &*backend, blueprint, &mut |_| {}).expect("the model is valid")
}
