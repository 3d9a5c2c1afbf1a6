//! Files of steering vectors: GGUF and safetensors.

use djinn_vectors::{Format, Steering};

/// Reads an input, and reads an accepted vector back from both formats.
pub fn run(data: &[u8]) {
    let Ok(steering) = Steering::from_bytes(data) else {
        return;
    };
    assert!(!steering.directions().is_empty());
    for direction in steering.directions().values() {
        assert_eq!(direction.len(), steering.width());
        assert!(direction.iter().all(|x| x.is_finite()));
    }
    for format in [Format::Safetensors, Format::Gguf] {
        // GGUF cannot store a direction of block 0.
        let Ok(bytes) = steering.to_bytes(format) else {
            assert!(steering.directions().contains_key(&0));
            continue;
        };
        let again = Steering::from_bytes(&bytes).expect("a written vector is valid");
        assert_eq!(again, steering, "{format:?}");
    }
}
