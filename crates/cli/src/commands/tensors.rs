//! Conversions between the client's types and the engine's.

use djinn_client::v1;

/// Sampling that always takes the most likely token.
pub fn greedy() -> v1::Sampling {
    v1::Sampling {
        temperature: Some(0.0),
        repetition_penalty: Some(1.0),
        ..v1::Sampling::default()
    }
}

/// Tensor of the client as a tensor of the engine.
pub fn tensor(from: djinn_client::TensorData) -> djinn_engine::Tensor {
    djinn_engine::Tensor {
        shape: from.shape,
        data: from.data,
    }
}
