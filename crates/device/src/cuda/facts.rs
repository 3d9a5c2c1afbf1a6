//! Facts about CUDA on this machine, and about a card's place in it. These queries open no card.

use std::fs;
use std::path::Path;

use cudarc::driver::sys;
use libloading::Library;

use super::card::Card;
use super::driver::{DriverContext, Version};
use super::nvml::Nvml;
use crate::Result;

/// Returns whether the driver's library is present.
pub fn driver_present() -> bool {
    // SAFETY: only looks for the library.
    unsafe { sys::is_culib_present() }
}

/// Newest CUDA version that the driver supports; `None` without a driver.
pub fn driver_version() -> Option<Result<Version>> {
    if !driver_present() {
        return None;
    }
    let mut number = 0;
    // SAFETY: the library is loaded, and the number lives through the call.
    let asked = unsafe { sys::cuDriverGetVersion(&raw mut number) };
    let asked = asked.result().context("reading the driver's version");
    Some(asked.map(|()| Version::from_number(number)))
}

/// Returns whether a CUDA library (`cublasLt`) is present under any of its file names.
pub fn library_present(name: &str) -> bool {
    let names = cudarc::get_lib_name_candidates(name);
    // SAFETY: the initialisers of CUDA's libraries have no other effect.
    let opens = |name: &String| unsafe { Library::new(name.as_str()) }.is_ok();
    names.iter().any(opens)
}

/// Returns whether the driver's management library (NVML) is present and starts.
pub fn management_present() -> bool {
    Nvml::get().is_some()
}

/// Facts about a card in addition to its name and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardFacts {
    /// Compute capability.
    pub capability: Version,
    /// PCI address, as in `/sys/bus/pci/devices`.
    pub bus_id: String,
    /// Number of processes that compute on the card, including this one; `None` if the system
    /// does not report it.
    pub processes: Option<usize>,
    /// PCIe link of the card; `None` if the system does not report it.
    pub link: Option<PciLink>,
    /// NUMA node that the card is attached to; `None` on a machine with one node.
    pub node: Option<usize>,
}

/// PCIe link of a card: current and maximum values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciLink {
    /// Current speed, such as `32.0 GT/s PCIe`. Lower than the maximum while the card is idle.
    pub speed: String,
    /// Current number of lanes.
    pub width: u32,
    /// Maximum speed.
    pub speed_max: String,
    /// Maximum number of lanes.
    pub width_max: u32,
}

impl Card {
    /// Queries the driver and the system about this card.
    pub fn facts(&self) -> Result<CardFacts> {
        let bus_id = self.bus_id().to_lowercase();
        let folder = Path::new("/sys/bus/pci/devices").join(&bus_id);
        Ok(CardFacts {
            capability: self.capability()?,
            processes: Nvml::get().and_then(|nvml| nvml.processes(self.bus_id())),
            link: pci_link(&folder),
            // A card without a node has the value −1, which does not parse.
            node: read(&folder, "numa_node").and_then(|text| text.parse().ok()),
            bus_id,
        })
    }
}

fn pci_link(folder: &Path) -> Option<PciLink> {
    Some(PciLink {
        speed: read(folder, "current_link_speed")?,
        width: read(folder, "current_link_width")?.parse().ok()?,
        speed_max: read(folder, "max_link_speed")?,
        width_max: read(folder, "max_link_width")?.parse().ok()?,
    })
}

fn read(folder: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(folder.join(name)).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_not_found() {
        assert!(!library_present("djinn-has-no-such-library"));
    }

    #[test]
    fn a_link_is_read_completely_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("current_link_speed", "2.5 GT/s PCIe\n");
        write("current_link_width", "8\n");
        write("max_link_speed", "32.0 GT/s PCIe\n");
        assert_eq!(pci_link(folder.path()), None);
        write("max_link_width", "16\n");
        let link = pci_link(folder.path()).unwrap();
        assert_eq!((link.width, link.width_max), (8, 16));
        assert_eq!(link.speed_max, "32.0 GT/s PCIe");
    }
}
