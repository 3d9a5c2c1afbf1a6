//! The protocol between a server and its clients: messages and services (`proto/djinn/v1`), tensors in
//! messages, and error codes.
//!
//! This crate knows neither engines nor connections. It validates tensors from clients: the data must
//! match dtype and shape.

#![forbid(unsafe_code)]

mod error;
mod finish;
mod kv_dtype;
mod tensor;

pub use error::{ERROR_CODE_METADATA, ErrorCode};
pub use finish::FinishReason;
pub use tensor::{Assembler, PART_BYTES, TensorError, elements, numbers, parts, tensor};

/// Messages and services of the protocol, version 1.
#[allow(missing_docs, unused_qualifications, clippy::all)]
pub mod v1 {
    tonic::include_proto!("djinn.v1");
}

/// Descriptors of the protocol, for reflection and for clients that read them at run time.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/djinn.binpb"));

/// Descriptors of the protocol with their comments, for the reference documentation.
pub const COMMENTED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/commented.binpb"));
