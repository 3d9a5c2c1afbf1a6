//! Choice of a device by name: `auto`, `cpu` or `cuda:N`.

use std::{fmt, str::FromStr, sync::Arc};

use crate::{
    Backend, DeviceError,
    cpu::CpuBackend,
    cuda::{self, CudaBackend},
};

/// Name of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The card `cuda:0` if it works, otherwise the processor.
    Auto,
    /// The processor.
    Cpu,
    /// The card with this number.
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
    /// Opens the device of this name. A processor uses this number of threads, or all usable cores.
    pub fn choose(self, threads: Option<usize>) -> Result<ChosenDevice, DeviceError> {
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
        Ok(ChosenDevice {
            backend,
            named: self != DeviceName::Auto,
            why,
        })
    }
}

/// A device that was chosen by its name.
pub struct ChosenDevice {
    /// Backend of the device.
    pub backend: Arc<dyn Backend>,
    /// Whether the name was other than `auto`.
    named: bool,
    /// Reason why `auto` did not choose a card.
    why: Option<String>,
}

impl ChosenDevice {
    /// Line about the device that `auto` chose; none if the user named the device.
    pub fn note(&self) -> Option<String> {
        match (self.named, &self.why) {
            (true, _) => None,
            (false, None) => Some(format!("device: {self}")),
            (false, Some(why)) => Some(format!("device: {self}, because {why}")),
        }
    }
}

impl fmt::Display for ChosenDevice {
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
