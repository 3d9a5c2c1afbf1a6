//! What there is of CUDA on this machine, and where a card sits in it. Only asks: no card
//! is taken for it.

use std::fmt;
use std::fs;
use std::path::Path;

use cudarc::driver::sys;
use libloading::Library;

use super::card::{Card, Said};
use super::nvml::Nvml;
use crate::Result;

/// A version of CUDA, or what a card can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Before the point.
    pub major: u32,
    /// After it.
    pub minor: u32,
}

impl Version {
    /// What the bindings are written for and the kernels' text asks for; a driver that
    /// supports a newer one does as well.
    pub const DRIVER_NEEDED: Version = Version {
        major: 13,
        minor: 0,
    };
    /// The least a card must be able to do for the kernels to run there.
    pub const CAPABILITY_NEEDED: Version = Version { major: 8, minor: 0 };

    /// From 13000 for 13.0.
    fn from_number(number: i32) -> Self {
        let number = number.max(0) as u32;
        Version {
            major: number / 1000,
            minor: number % 1000 / 10,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Whether the driver's library is found.
pub fn driver_present() -> bool {
    // SAFETY: only looks for the library.
    unsafe { sys::is_culib_present() }
}

/// The newest CUDA that the driver supports; `None` where there is no driver.
pub fn driver_version() -> Option<Result<Version>> {
    if !driver_present() {
        return None;
    }
    let mut number = 0;
    // SAFETY: the library is there, and the number lives through the call.
    let asked = unsafe { sys::cuDriverGetVersion(&raw mut number) };
    let asked = asked.result().said("asking the driver's version");
    Some(asked.map(|()| Version::from_number(number)))
}

/// Whether one of CUDA's libraries (`cublasLt`) is found, under any name it goes by.
pub fn library_present(name: &str) -> bool {
    let names = cudarc::get_lib_name_candidates(name);
    // SAFETY: libraries of CUDA, whose initialisers have no other effect.
    let opens = |name: &String| unsafe { Library::new(name.as_str()) }.is_ok();
    names.iter().any(opens)
}

/// Whether the driver's management library is found and starts.
pub fn management_present() -> bool {
    Nvml::get().is_some()
}

/// What can be said of a card beside its name and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardFacts {
    /// What its processors can do.
    pub capability: Version,
    /// Where it sits, as `/sys/bus/pci/devices` has it.
    pub bus_id: String,
    /// Processes that compute there, this one among them, where the system says.
    pub processes: Option<usize>,
    /// How it is connected, where the system says.
    pub link: Option<PciLink>,
    /// The NUMA node it is near to, where there are several.
    pub node: Option<usize>,
}

/// A connection as it is, and as it could be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciLink {
    /// Now: `32.0 GT/s PCIe`. Less than the most while the card is idle.
    pub speed: String,
    /// Lanes now.
    pub width: u32,
    /// The most the card can have.
    pub speed_max: String,
    /// Lanes it can have.
    pub width_max: u32,
}

impl Card {
    /// Asks the driver and the system about this card.
    pub fn facts(&self) -> Result<CardFacts> {
        let bus_id = self.bus_id().to_lowercase();
        let folder = Path::new("/sys/bus/pci/devices").join(&bus_id);
        Ok(CardFacts {
            capability: self.capability()?,
            processes: Nvml::get().and_then(|nvml| nvml.processes(self.bus_id())),
            link: pci_link(&folder),
            // −1 stands for no node in particular.
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
    fn versions_are_compared_and_told() {
        assert_eq!(Version::from_number(13000), Version::DRIVER_NEEDED);
        assert_eq!(Version::from_number(12080).to_string(), "12.8");
        assert!(Version::from_number(12080) < Version::DRIVER_NEEDED);
        assert!(Version { major: 9, minor: 0 } > Version::CAPABILITY_NEEDED);
    }

    #[test]
    fn a_library_nobody_has_is_not_found() {
        assert!(!library_present("djinn-has-no-such-library"));
    }

    #[test]
    fn a_link_is_read_or_nothing_is_said_of_it() {
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
