//! The CPU: a slab of memory, a pool of threads, and kernels for each instruction set.
//!
//! Every operation, copy and load is done when its call returns. An event is therefore past as
//! soon as it is recorded, and waits return at once. Other threads may load while one computes.

mod affinity;
mod attention;
mod attention_tile;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod backend;
mod bandwidth;
mod chain;
mod choice;
mod device;
mod dot;
mod edit;
mod element;
mod elementwise;
mod isa;
mod lanes;
mod linear;
mod lookup;
mod math;
mod panel;
mod pool;
mod reduce;
mod rope;
mod row;
mod slab;
mod softmax;
mod split;
mod transfers;

pub use backend::CpuBackend;
pub use device::{CpuDevice, CpuOptions};
pub use isa::Isa;
