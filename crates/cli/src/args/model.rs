//! Flags of the model, and their values on this machine.

use clap::Args;
use djinn_device::{Backend, ChosenDevice, DeviceError};
use djinn_types::Size;
use djinn_weights::MemorySettings;

use super::{device::DeviceArgs, memory::MemoryArgs, parse::at_least_one};

/// Model, and the device and memory it runs in.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// Model: a folder, a pulled hub id, or shape:NAME[?layers=N&context=N&dtype=f16&seed=1]
    #[arg(long, value_name = "M")]
    pub model: Option<String>,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Prompt tokens that pass through the model together [default: 512, fewer where memory is scarce]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub rows: Option<usize>,
    #[command(flatten)]
    pub memory: MemoryArgs,
}

impl ModelArgs {
    /// Opens the device and resolves memory flags for it. A command calls this once.
    pub fn resolve(&self) -> Result<ResolvedModel, DeviceError> {
        let device = self.device.choose()?;
        let memory = self.memory.resolve(device.backend.free_memory()?);
        Ok(ResolvedModel {
            args: self.clone(),
            device,
            memory,
        })
    }
}

/// Flags of a model, resolved on this machine.
pub struct ResolvedModel {
    /// Flags as given.
    pub args: ModelArgs,
    /// Device that computes.
    pub device: ChosenDevice,
    /// Memory of the device, and how weights stream into it.
    pub memory: MemorySettings,
}

impl ResolvedModel {
    /// Backend of the device.
    pub fn backend(&self) -> &dyn Backend {
        &*self.device.backend
    }

    /// Prints the device, unless the user named it.
    pub fn print_device(&self) {
        if let Some(note) = self.device.note() {
            eprintln!("{note}");
        }
    }

    /// Refuses a budget above a card's total memory. A processor's memory is checked when it is
    /// allocated.
    pub fn check_budget(&self, budget: u64) -> Result<(), DeviceError> {
        let Some(card) = self.backend().card() else {
            return Ok(());
        };
        let (free, total) = card.memory()?;
        if budget <= total {
            return Ok(());
        }
        Err(DeviceError::Setup(over_budget(
            budget,
            &self.device.to_string(),
            total,
            free,
        )))
    }
}

fn over_budget(budget: u64, device: &str, total: u64, free: u64) -> String {
    let [budget, total, free] = [budget, total, free].map(Size);
    format!(
        "--memory {budget} is more than {device} has: {total}, of which {free} are free; lower it, or \
         leave --memory out to use the free memory"
    )
}

#[cfg(test)]
mod tests {
    use super::over_budget;

    #[test]
    fn a_budget_above_the_card_names_the_memory_of_the_card() {
        let device = "cuda:0 (NVIDIA H200)";
        let message = over_budget(500_000_000_000, device, 150 << 30, 149 << 30);
        for part in ["500.00 GB", device, "161.06 GB", "159.99 GB"] {
            assert!(message.contains(part), "{part} not in {message}");
        }
    }
}
