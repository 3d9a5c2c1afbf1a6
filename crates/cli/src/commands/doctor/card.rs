//! What a card needs: driver, libraries, the card itself, and the way to it.

use std::{sync::Arc, time::Duration};

use djinn_device::{
    DeviceError,
    cuda::{self, Card, CardFacts, PciLink, Version},
};
use djinn_types::Size;

use super::Check;
use crate::{
    args::{DeviceName, DoctorArgs},
    progress::Doing,
};

/// Bytes of a copy while the link is measured.
const CHUNK: u64 = 64 << 20;
/// How long it is.
const MEASURE: Duration = Duration::from_millis(300);
const GET_A_DRIVER: &str = "for a card: install NVIDIA's driver, series 580 or later; in a \
                            container, start it with the card (docker run --gpus all)";

/// A card that works, as far as the host's checks care.
pub struct Working {
    /// Its NUMA node, where there are several.
    pub node: Option<usize>,
    /// Whether memory could be pinned for it.
    pub pinned: bool,
}

/// Checks of the card that was asked for, and whether one works.
pub fn checks(args: &DoctorArgs) -> (Vec<Check>, Option<Working>) {
    let ordinal = match args.device {
        DeviceName::Cpu => return (Vec::new(), None),
        DeviceName::Auto => 0,
        DeviceName::Cuda(ordinal) => ordinal,
    };
    let asked = args.device != DeviceName::Auto;
    let Some(version) = cuda::driver_version() else {
        return (vec![no_driver(asked)], None);
    };
    let mut checks = vec![driver(version)];
    checks.extend(libraries());
    let card = match Card::open(ordinal) {
        Ok(card) => card,
        Err(error) => {
            checks.push(no_card(&error, asked));
            return (checks, None);
        }
    };
    let facts = match card.facts() {
        Ok(facts) => facts,
        Err(error) => {
            checks.push(no_card(&error, asked));
            return (checks, None);
        }
    };
    checks.push(device(&card, facts.capability));
    checks.extend(memory(&card, facts.processes));
    let measured = measure(&card);
    let working = Working {
        node: facts.node,
        pinned: measured.is_ok(),
    };
    // Asked again: a card that has just worked is not idle.
    let facts = card.facts().unwrap_or(facts);
    checks.push(pci(&facts));
    checks.push(link(measured, args.threshold));
    (checks, Some(working))
}

fn no_driver(asked: bool) -> Check {
    let detail = "no NVIDIA driver here (libcuda is not found)";
    match asked {
        true => Check::fail("driver", detail, GET_A_DRIVER),
        false => Check::warn(
            "driver",
            format!("{detail}: the processor computes"),
            GET_A_DRIVER,
        ),
    }
}

fn driver(version: Result<Version, DeviceError>) -> Check {
    let needed = Version::DRIVER_NEEDED;
    let remedy = "install NVIDIA's driver of series 580 or later";
    match version {
        Err(error) => Check::fail("driver", error.to_string(), remedy),
        Ok(found) if found < needed => {
            let detail = format!("supports CUDA up to {found}; {needed} is needed");
            Check::fail("driver", detail, remedy)
        }
        Ok(found) => Check::pass("driver", format!("supports CUDA {found}")),
    }
}

fn libraries() -> [Check; 2] {
    let products = match cuda::library_present("cublasLt") {
        true => Check::pass("cuBLASLt", "found"),
        false => Check::warn(
            "cuBLASLt",
            "libcublasLt is not found: prompts run on Djinn's own kernels, slower",
            "install CUDA's cuBLAS (libcublas-13-0), or name its folder in LD_LIBRARY_PATH",
        ),
    };
    let management = match cuda::management_present() {
        true => Check::pass("NVML", "found"),
        false => Check::warn(
            "NVML",
            "libnvidia-ml is not found: what others take of the card's memory is not seen",
            "it comes with the driver; in a container, ask for it \
             (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
        ),
    };
    [products, management]
}

/// Where `auto` found a driver and no card, the processor will do; where a card is there
/// and does not work, something is broken.
fn no_card(error: &DeviceError, asked: bool) -> Check {
    let remedy = "`nvidia-smi` shows the cards and who uses them; without one: --device cpu";
    match error {
        DeviceError::Setup(_) if !asked => Check::warn("device", error.to_string(), remedy),
        _ => Check::fail("device", error.to_string(), remedy),
    }
}

fn device(card: &Card, capability: Version) -> Check {
    let needed = Version::CAPABILITY_NEEDED;
    let detail = format!(
        "{} ({}), compute capability {capability}",
        card.label(),
        card.name()
    );
    if capability < needed {
        let detail = format!("{detail}; {needed} is needed");
        return Check::fail("device", detail, "an Ampere card or a later one");
    }
    Check::pass("device", detail)
}

fn memory(card: &Card, processes: Option<usize>) -> Option<Check> {
    let (free, total) = card.memory().ok()?;
    let others = match processes.unwrap_or(0).saturating_sub(1) {
        0 => String::new(),
        1 => ", another process runs there".to_owned(),
        n => format!(", {n} other processes run there"),
    };
    let detail = format!("{} of {} are free{others}", Size(free), Size(total));
    Some(if free < total / 2 {
        let remedy = "end what else runs there (`nvidia-smi` lists it), or give less --memory";
        Check::warn("card memory", detail, remedy)
    } else {
        Check::pass("card memory", detail)
    })
}

/// GB/s from pinned memory to the card.
fn measure(card: &Arc<Card>) -> Result<f64, DeviceError> {
    let _doing = Doing::new("measuring the link");
    Ok(cuda::measure_link(card, CHUNK, MEASURE)? / 1e9)
}

fn pci(facts: &CardFacts) -> Check {
    match &facts.link {
        None => Check::pass("PCIe", format!("{}: the system does not say", facts.bus_id)),
        Some(link) => connection(&facts.bus_id, link),
    }
}

fn connection(bus_id: &str, link: &PciLink) -> Check {
    let lanes = format!("{} of {} lanes", link.width, link.width_max);
    let speed = match link.speed == link.speed_max {
        true => link.speed.clone(),
        false => format!(
            "{} now, {} at most (an idle card may show less)",
            link.speed, link.speed_max
        ),
    };
    let detail = format!("{bus_id}: {lanes}, {speed}");
    if link.width < link.width_max {
        let remedy = "put the card into a slot that has all lanes, or give it them in the BIOS";
        return Check::warn("PCIe", detail, remedy);
    }
    Check::pass("PCIe", detail)
}

fn link(measured: Result<f64, DeviceError>, threshold: f64) -> Check {
    let slow = "`djinn bench link` shows more; look at the lanes above, at what else uses the \
                link, and at NUMA";
    match measured {
        Err(error) => Check::fail(
            "link",
            error.to_string(),
            "free memory, or lift the limit on locked memory (ulimit -l unlimited; docker run \
             --ulimit memlock=-1)",
        ),
        Ok(rate) => {
            let detail = format!(
                "{rate:.1} GB/s from pinned memory to the card, at least {threshold} wanted"
            );
            if rate < threshold {
                Check::fail("link", detail, slow)
            } else {
                Check::pass("link", detail)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn drivers() {
        let version = |major, minor| Ok(Version { major, minor });
        assert_eq!(driver(version(13, 0)).verdict, Verdict::Pass);
        assert_eq!(driver(version(13, 4)).verdict, Verdict::Pass);
        let old = driver(version(12, 8));
        assert_eq!(old.verdict, Verdict::Fail);
        assert!(old.detail.contains("12.8") && old.detail.contains("13.0"));
        assert_eq!(no_driver(false).verdict, Verdict::Warn);
        assert_eq!(no_driver(true).verdict, Verdict::Fail);
    }

    #[test]
    fn cards_that_cannot_be_had() {
        let hidden = DeviceError::Setup("cuda:0: the driver shows no card".into());
        assert_eq!(no_card(&hidden, false).verdict, Verdict::Warn);
        assert_eq!(no_card(&hidden, true).verdict, Verdict::Fail);
        let broken = DeviceError::Driver {
            what: "making a context",
            reason: "out of memory".into(),
        };
        assert_eq!(no_card(&broken, false).verdict, Verdict::Fail);
    }

    #[test]
    fn connections() {
        let link = |width, speed: &str| PciLink {
            speed: speed.into(),
            width,
            speed_max: "32.0 GT/s PCIe".into(),
            width_max: 16,
        };
        let check = |width, speed: &str| connection("0000:9b:00.0", &link(width, speed));
        assert_eq!(check(16, "32.0 GT/s PCIe").verdict, Verdict::Pass);
        let idle = check(16, "2.5 GT/s PCIe");
        assert_eq!(idle.verdict, Verdict::Pass);
        assert!(idle.detail.contains("idle"), "{}", idle.detail);
        assert_eq!(check(8, "32.0 GT/s PCIe").verdict, Verdict::Warn);
    }

    #[test]
    fn links() {
        assert_eq!(link(Ok(55.3), 20.0).verdict, Verdict::Pass);
        let slow = link(Ok(6.8), 20.0);
        assert_eq!(slow.verdict, Verdict::Fail);
        assert!(slow.detail.starts_with("6.8 GB/s"), "{}", slow.detail);
    }
}
