//! Checks of a machine: driver, card, link, memory and processor. Every problem has a remedy.

#![forbid(unsafe_code)]

mod card;
mod check;
mod machine;
mod options;

pub use check::{CheckVerdict, MachineCheck};
pub use options::DoctorOptions;

/// Checks this machine. Calls `progress` before a check that takes a while.
pub fn examine(options: DoctorOptions, progress: &mut dyn FnMut(&str)) -> Vec<MachineCheck> {
    let (mut checks, card) = card::checks(options, progress);
    checks.extend(machine::checks(card.as_ref()));
    checks
}
