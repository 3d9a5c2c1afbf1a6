//! Flag of the device, and the device that it selects.

use std::{fmt, str::FromStr, sync::Arc};

use clap::Args;
use djinn_device::{
    Backend, DeviceError,
    cpu::CpuBackend,
    cuda::{self, CudaBackend},
};

use super::at_least_one;

/// Where to compute.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// Where to compute: cpu, cuda:N for an NVIDIA card, or auto for the card cuda:0 if it
    /// works and else the processor
    #[arg(long, value_name = "D", default_value_t = DeviceName::Auto)]
    pub device: DeviceName,
    /// CPU threads [default: all usable cores]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub threads: Option<usize>,
}

impl DeviceArgs {
    /// Takes the device these flags name. Once in a command: this is what opens a card.
    pub fn choose(&self) -> Result<Chosen, DeviceError> {
        self.device.choose(self.threads)
    }
}

/// A device as it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The first card if it works, else the processor.
    Auto,
    /// The processor.
    Cpu,
    /// A card, by number.
    Cuda(usize),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let card = text.strip_prefix("cuda:").map(str::parse);
        match (text, card) {
            ("auto", _) => Ok(DeviceName::Auto),
            ("cpu", _) => Ok(DeviceName::Cpu),
            ("cuda", _) => Ok(DeviceName::Cuda(0)),
            (_, Some(Ok(ordinal))) => Ok(DeviceName::Cuda(ordinal)),
            _ => Err(format!("'{text}' is neither auto, cpu nor cuda:N")),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Auto => write!(f, "auto"),
            DeviceName::Cpu => write!(f, "cpu"),
            DeviceName::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl DeviceName {
    /// Takes the device of this name.
    pub fn choose(self, threads: Option<usize>) -> Result<Chosen, DeviceError> {
        let cpu = Arc::new(CpuBackend { threads, isa: None });
        let (backend, why): (Arc<dyn Backend>, _) = match self {
            DeviceName::Cpu => (cpu, None),
            DeviceName::Cuda(ordinal) => (Arc::new(CudaBackend::new(ordinal)?), None),
            // Without a driver there is no note about cards.
            DeviceName::Auto if !cuda::driver_present() => (cpu, None),
            DeviceName::Auto => match CudaBackend::new(0) {
                Ok(card) => (Arc::new(card), None),
                Err(error) => (cpu, Some(error.to_string())),
            },
        };
        Ok(Chosen {
            backend,
            named: self != DeviceName::Auto,
            why,
        })
    }
}

/// A device that was taken, for all that a command does.
pub struct Chosen {
    /// The device.
    pub backend: Arc<dyn Backend>,
    /// Whether the flag named it.
    named: bool,
    /// Why it is not the card that `auto` looks for first.
    why: Option<String>,
}

impl Chosen {
    /// Prints the device, unless the flag named it.
    pub fn say(&self) {
        if self.named {
            return;
        }
        match &self.why {
            None => eprintln!("device: {self}"),
            Some(why) => eprintln!("device: {self}, because {why}"),
        }
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.backend.name();
        match self.backend.card() {
            None => write!(f, "{name}"),
            Some(card) => write!(f, "{name} ({})", card.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceName;

    #[test]
    fn names() {
        let check = |text: &str, expect: Option<DeviceName>| {
            assert_eq!(text.parse().ok(), expect, "{text}");
        };
        check("auto", Some(DeviceName::Auto));
        check("cpu", Some(DeviceName::Cpu));
        check("cuda", Some(DeviceName::Cuda(0)));
        check("cuda:3", Some(DeviceName::Cuda(3)));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda0", "CUDA:0"] {
            check(wrong, None);
        }
        for name in ["auto", "cpu", "cuda:7"] {
            let parsed: DeviceName = name.parse().unwrap();
            assert_eq!(parsed.to_string(), name);
        }
    }
}
