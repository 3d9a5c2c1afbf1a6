//! Checks of a machine: driver, card, link, memory and processor. Every problem has a remedy.

#![forbid(unsafe_code)]

mod card;
mod check;
mod machine;

pub use check::{Check, CheckVerdict};

use djinn_device::DeviceName;

/// Options of the checks.
#[derive(Clone, Copy, Debug)]
pub struct DoctorOptions {
    /// Device to check. A card that is missing fails only if it is named.
    pub device: DeviceName,
    /// Smallest bandwidth in GB/s from pinned memory to the card.
    pub threshold: f64,
}

/// Checks this machine. Calls `progress` before a check that takes a while.
pub fn examine(options: DoctorOptions, progress: &mut dyn FnMut(&str)) -> Vec<Check> {
    let (mut checks, card) = card::checks(options, progress);
    checks.extend(machine::checks(card.as_ref()));
    checks
}
