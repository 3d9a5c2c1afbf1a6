//! Tests of golden checkpoints: they open, every tensor is found, and the programs compute the
//! values of transformers.

mod common;
mod interpreter;

use common::{GOLDEN, golden, open, root};
use djinn_model::program::TensorId;
use interpreter::Golden;

#[test]
fn golden_checkpoints_open_and_resolve() {
    let check = |family: &str, parameters: u64| {
        let model = open(&golden(family));
        let program = &model.program;
        assert!(family.starts_with(program.family), "{family}");
        assert_eq!(program.parameters(), parameters, "{family}");
        for (id, spec) in program.tensors.iter().enumerate() {
            let mut bytes = vec![0; spec.bytes() as usize];
            let read = model.weights.read_tensor(TensorId(id), 0, &mut bytes);
            assert!(read.is_ok(), "{family}: {}", spec.name);
            let beyond = model.weights.read_tensor(TensorId(id), 1, &mut bytes);
            assert!(beyond.is_err(), "{family}: {}", spec.name);
        }
        let in_segments: usize = program.segments.iter().map(|s| s.tensors.len()).sum();
        assert_eq!(in_segments, program.tensors.len(), "{family}");
    };
    check("falcon180b", 201_856);
    check("falcon7b", 193_152);
    check("gpt2", 236_928);
    check("gptj", 239_808);
    check("llama2", 229_952);
    check("llama3", 193_088);
    check("mistral", 262_720);
    check("mixtral", 583_232);
    check("qwen2", 214_080);
    check("qwen3", 262_976);
}

#[test]
fn programs_match_transformers() {
    for family in GOLDEN {
        let folder = golden(family);
        let golden = Golden::read(&folder.join("golden.safetensors"));
        let seen = interpreter::run(&open(&folder), &golden.ids("input_ids"));
        let mut hooks = 0;
        for (name, values) in &seen {
            if let Some(expect) = golden.floats(name) {
                interpreter::assert_close(family, name, values, &expect);
                hooks += 1;
            }
        }
        assert_eq!(hooks, 4 * 4 + 1, "{family}: every golden hook was seen");
    }
}

#[test]
fn the_bundled_model_matches_transformers() {
    let folder = root().join("models/stories-7m");
    let golden = Golden::read(&folder.join("golden.safetensors"));
    let seen = interpreter::run(&open(&folder), &golden.ids("robot.input_ids"));
    let expect = golden.floats("robot.logits").expect("golden logits");
    interpreter::assert_close("stories", "logits", &seen["logits"], &expect);
}
