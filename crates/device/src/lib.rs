//! Devices: memory, streams, and the operations that a model is made of.
//!
//! A [`Device`] owns one *slab* of memory, allocated at start. Everything a pass touches
//! lies in the slab: weights, KV pages, activations, token ids. Operations take [`View`]s,
//! typed strided matrices at an offset of the slab, and run in order on the compute stream.
//! A device knows nothing of models or sessions.
//!
//! All `unsafe` code of the project lives in this crate.

mod backend;
mod check;
mod choice;
mod device;
mod draw;
mod error;
#[cfg(any(test, feature = "faults"))]
mod fault;
mod kv;
mod operands;
mod ops;
pub mod selftest;
mod streams;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transfers;
mod view;

pub mod cpu;
pub mod cuda;
pub mod host;
#[cfg(feature = "yardstick")]
pub mod yardstick;

pub use backend::{Backend, DeviceLimits, PassLimits};
pub use choice::{ChosenDevice, DeviceName};
pub use device::{Device, DeviceInfo};
pub use draw::Draw;
pub use error::{DeviceError, Result};
pub use host::{Fill, HostRows, HostSlab};
pub use kv::{Attention, KvLayer, Rows};
pub use operands::{ALIGN, Edit, NormParams, Phase, Projection, Qkv, Reduction, Rotation, Weight};
pub use ops::{
    AttentionOps, ChoiceOps, ElementwiseOps, FusedOps, LookupOps, Ops, ProbeOps, ProductOps,
    RopeOps,
};
pub use streams::{Event, Stream, Streams};
pub use transfers::Transfers;
pub use view::{Span, View};
