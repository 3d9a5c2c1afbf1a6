//! Flags of the device.

use clap::Args;
use djinn_device::{ChosenDevice, DeviceError, DeviceName};

use super::parse::at_least_one;

/// Device that computes.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// Device that computes: cpu, cuda:N for an NVIDIA card, or auto for the card cuda:0 if it works and
    /// otherwise the processor
    #[arg(long, value_name = "D", default_value_t = DeviceName::Auto)]
    pub device: DeviceName,
    /// CPU threads [default: all usable cores]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub threads: Option<usize>,
}

impl DeviceArgs {
    /// Opens the device that these flags name. A command calls this once.
    pub fn choose(&self) -> Result<ChosenDevice, DeviceError> {
        self.device.choose(self.threads)
    }
}
