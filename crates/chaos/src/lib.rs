//! Drives a real `djinn serve` process through faults of its disks, its clients and itself, and
//! checks what the server promised: nothing acknowledged is lost, every session gives the tokens
//! of an uninterrupted run, small requests are served in time, and memory stays flat.
//!
//! The faults of disks come from `shim.c`, which the run compiles with `cc` and loads into the
//! server with `LD_PRELOAD`.

#![forbid(unsafe_code)]

mod agent;
mod answers;
mod board;
mod chaos;
mod crew;
mod dice;
mod error;
mod faults;
mod findings;
mod http;
mod load;
mod oneshot;
mod record;
mod refused;
mod replay;
mod report;
mod script;
mod server;
mod settle;
mod shim;
mod usage;
mod whitebox;
mod world;

pub use chaos::{ChaosReport, ChaosSettings, run};
pub use error::ChaosError;
pub use faults::FaultKind;
pub use load::{LoadReport, LoadSettings, load};
pub use shim::DiskFault;
