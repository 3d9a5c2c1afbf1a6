//! Files of tensors, as operands of edits.

use std::collections::BTreeMap;

use djinn_engine::{EditSpec, Positions, Probe, read_tensors, write_tensors};

use crate::{fixtures, scratch};

/// Edits that read an operand.
const CHANGES: [&str; 3] = ["add", "replace", "project-out"];

/// Reads a file of tensors, reads an accepted one back, and binds edits to it.
pub fn run(data: &[u8]) {
    let folder = scratch::folder();
    scratch::write(folder.path(), "t.safetensors", data);
    let path = folder.path().join("t.safetensors");
    let Ok(tensors) = read_tensors(&path) else {
        return;
    };
    for tensor in tensors.values() {
        assert_eq!(tensor.shape.iter().product::<usize>(), tensor.data.len());
    }
    let again = folder.path().join("again.safetensors");
    write_tensors(&again, &tensors, &BTreeMap::new()).expect("read tensors can be written");
    let again = read_tensors(&again).expect("a written file is valid");
    assert_eq!(bits(&again), bits(&tensors));
    for change in CHANGES {
        let text = format!("blocks.0.hook_resid_post:{change}={}", path.display());
        let edit: EditSpec = text.parse().expect("the edit is valid");
        let none: [&str; 0] = [];
        let _ = Probe::new(fixtures::program(), &none, Positions::All, &[edit]);
    }
}

/// Shapes and bits of tensors, which compare equal even where numbers are not numbers.
fn bits(tensors: &BTreeMap<String, djinn_engine::Tensor>) -> Vec<(&String, &Vec<usize>, Vec<u32>)> {
    let bits = |data: &[f32]| data.iter().map(|x| x.to_bits()).collect();
    let all = tensors.iter();
    all.map(|(name, tensor)| (name, &tensor.shape, bits(&tensor.data)))
        .collect()
}
