//! What travels between a server and its clients: the protocol (`proto/djinn/v1`), and tensors on it.
//!
//! Knows neither engines nor connections. What a client sends is data, and is checked here before
//! anybody computes with it: a tensor is as long as its shape says, or it is refused.

#![forbid(unsafe_code)]

mod error;
mod tensor;

pub use error::{ERROR_CODE_METADATA, ErrorCode};
pub use tensor::{Assembler, PART_BYTES, TensorError, elements, numbers, parts, tensor};

/// The protocol, version 1.
#[allow(missing_docs, unused_qualifications, clippy::all)]
pub mod v1 {
    tonic::include_proto!("djinn.v1");
}

/// The protocol as descriptors: for reflection, and for languages that read them at run time.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/djinn.binpb"));

/// The same with their comments: for documents.
pub const COMMENTED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/commented.binpb"));
