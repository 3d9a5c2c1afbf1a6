//! Model configurations: `config.json`, then `generation_config.json`.

use std::path::Path;

use djinn_model::{Generation, RawConfig, families};
use djinn_types::DType;

use crate::{input::section, scratch};

/// Reads both files and builds the program of an accepted configuration.
pub fn run(data: &[u8]) {
    let Ok(config) = RawConfig::parse(Path::new("config.json"), section(data, 0)) else {
        return;
    };
    let folder = scratch::folder();
    scratch::write(folder.path(), "generation_config.json", section(data, 1));
    if let Ok(generation) = Generation::read(folder.path(), &config, None) {
        assert!((0.0..=100.0).contains(&generation.temperature));
        assert!(generation.top_p > 0.0 && generation.top_p <= 1.0);
    }
    let Ok(program) = families::build(&config, DType::F16) else {
        return;
    };
    let dims = &program.dims;
    assert_eq!(program.blocks.len(), dims.blocks);
    assert!(dims.heads.is_multiple_of(dims.kv_heads));
    assert!(program.weight_bytes() > 0);
    if let Some(rope) = &program.rope {
        assert!(2 * rope.frequencies.len() <= dims.d_head);
        assert!(rope.frequencies.iter().all(|f| f.is_finite()) && rope.scale.is_finite());
    }
}
