//! NVIDIA cards: a slab of device memory, streams, and kernels that the driver compiles from
//! PTX. The driver is found at run time; building needs nothing of CUDA.
//!
//! Operations are put on the compute stream and return at once. A kernel that reads an invalid
//! index from the slab (a row beyond its table, a page that does not exist) records the fault.
//! The next download or synchronisation returns the fault as an error.

mod args;
mod attention;
mod backend;
mod blas;
mod card;
mod chain;
mod context;
mod device;
mod driver;
mod event;
mod facts;
#[cfg(any(test, feature = "faults"))]
mod faults;
mod fused;
mod graph;
mod kernels;
mod launch;
mod link;
mod memory;
mod memory_ledger;
mod nvml;
mod pinned;
mod prefill;
mod product;
mod row_ops;
mod scratch;
mod shadow;
mod streams;
mod transfers;

pub use backend::CudaBackend;
pub use card::Card;
pub use device::CudaDevice;
pub use driver::Version;
pub use facts::{
    CardFacts, PciLink, driver_present, driver_version, library_present, management_present,
};
pub use kernels::ROWS_MAX;
pub use link::{Direction, HostMemory, LinkBench, Transfer, measure_link, measure_memory};
