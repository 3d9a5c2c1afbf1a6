//! Checks of a card: driver, libraries, the card itself, and the link to it.

use std::time::Duration;

use djinn_device::{
    DeviceError, DeviceName,
    cuda::{self, Card, CardFacts, PciLink, Version},
};
use djinn_types::Size;

use crate::{check::MachineCheck, options::DoctorOptions};

/// Bytes of a copy while the link is measured.
const CHUNK: u64 = 64 << 20;
/// Duration of a measurement of the link.
const MEASURE: Duration = Duration::from_millis(300);
/// Remedy for a missing driver.
const GET_A_DRIVER: &str = "for a card: install NVIDIA's driver, series 580 or later; in a \
                            container, start it with the card (docker run --gpus all)";

/// Facts about a working card that checks of the machine need.
pub struct WorkingCard {
    /// NUMA node of the card, if the machine has several.
    pub node: Option<usize>,
    /// Whether memory could be pinned for the card.
    pub pinned: bool,
}

/// Checks the card that options name. Returns facts about it if it works.
pub fn checks(
    options: DoctorOptions,
    progress: &mut dyn FnMut(&str),
) -> (Vec<MachineCheck>, Option<WorkingCard>) {
    let ordinal = match options.device {
        DeviceName::Cpu => return (Vec::new(), None),
        DeviceName::Auto => 0,
        DeviceName::Cuda(ordinal) => ordinal,
    };
    let named = options.device != DeviceName::Auto;
    let Some(version) = cuda::driver_version() else {
        return (vec![no_driver(named)], None);
    };
    let mut checks = vec![driver(version)];
    checks.extend(libraries());
    let card = match Card::open(ordinal) {
        Ok(card) => card,
        Err(error) => {
            checks.push(no_card(&error, named));
            return (checks, None);
        }
    };
    let facts = match card.facts() {
        Ok(facts) => facts,
        Err(error) => {
            checks.push(no_card(&error, named));
            return (checks, None);
        }
    };
    checks.push(device(&card, facts.capability));
    checks.extend(memory(&card, facts.processes));
    progress("measuring the link");
    let measured = cuda::measure_link(&card, CHUNK, MEASURE).map(|rate| rate / 1e9);
    let working = WorkingCard {
        node: facts.node,
        pinned: measured.is_ok(),
    };
    // The facts are read again, because an idle card reports a slower link.
    let facts = card.facts().unwrap_or(facts);
    checks.push(pci(&facts));
    checks.push(link(measured, options.threshold));
    (checks, Some(working))
}

fn no_driver(named: bool) -> MachineCheck {
    let detail = "no NVIDIA driver (libcuda is not found)";
    match named {
        true => MachineCheck::fail("driver", detail, GET_A_DRIVER),
        false => MachineCheck::warn(
            "driver",
            format!("{detail}: the processor computes"),
            GET_A_DRIVER,
        ),
    }
}

fn driver(version: Result<Version, DeviceError>) -> MachineCheck {
    let needed = Version::DRIVER_NEEDED;
    let remedy = "install NVIDIA's driver of series 580 or later";
    match version {
        Err(error) => MachineCheck::fail("driver", error.to_string(), remedy),
        Ok(found) if found < needed => {
            let detail = format!("supports CUDA up to {found}; {needed} is needed");
            MachineCheck::fail("driver", detail, remedy)
        }
        Ok(found) => MachineCheck::pass("driver", format!("supports CUDA {found}")),
    }
}

fn libraries() -> [MachineCheck; 2] {
    let products = match cuda::library_present("cublasLt") {
        true => MachineCheck::pass("cuBLASLt", "found"),
        false => MachineCheck::warn(
            "cuBLASLt",
            "libcublasLt is not found: prompts run on slower kernels of Djinn",
            "install CUDA's cuBLAS (libcublas-13-0), or name its folder in LD_LIBRARY_PATH",
        ),
    };
    let management = match cuda::management_present() {
        true => MachineCheck::pass("NVML", "found"),
        false => MachineCheck::warn(
            "NVML",
            "libnvidia-ml is not found: memory that other programs use on the card is not counted",
            "install it with the driver; in a container, set \
             NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
    };
    [products, management]
}

/// Check of a card that cannot be opened. A machine without cards only warns, unless the
/// user named a card. A card that does not work fails.
fn no_card(error: &DeviceError, named: bool) -> MachineCheck {
    let remedy = "list the cards with `nvidia-smi`; without a card, use --device cpu";
    match error {
        DeviceError::Setup(_) if !named => MachineCheck::warn("device", error.to_string(), remedy),
        _ => MachineCheck::fail("device", error.to_string(), remedy),
    }
}

fn device(card: &Card, capability: Version) -> MachineCheck {
    let needed = Version::CAPABILITY_NEEDED;
    let detail = format!(
        "{} ({}), compute capability {capability}",
        card.label(),
        card.name()
    );
    if capability < needed {
        let detail = format!("{detail}; {needed} is needed");
        return MachineCheck::fail("device", detail, "use an Ampere card or a later one");
    }
    MachineCheck::pass("device", detail)
}

fn memory(card: &Card, processes: Option<usize>) -> Option<MachineCheck> {
    let (free, total) = card.memory().ok()?;
    let others = match processes.unwrap_or(0).saturating_sub(1) {
        0 => String::new(),
        1 => ", one other process uses the card".to_owned(),
        n => format!(", {n} other processes use the card"),
    };
    let detail = format!("{} of {} are free{others}", Size(free), Size(total));
    Some(if free < total / 2 {
        let remedy = "end other programs on the card (`nvidia-smi` lists them), or lower --memory";
        MachineCheck::warn("card memory", detail, remedy)
    } else {
        MachineCheck::pass("card memory", detail)
    })
}

fn pci(facts: &CardFacts) -> MachineCheck {
    match &facts.link {
        None => MachineCheck::pass(
            "PCIe",
            format!("{}: speed and width are not known", facts.bus_id),
        ),
        Some(link) => connection(&facts.bus_id, link),
    }
}

fn connection(bus_id: &str, link: &PciLink) -> MachineCheck {
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
        let remedy = "move the card to a slot with all lanes, or assign them in the BIOS";
        return MachineCheck::warn("PCIe", detail, remedy);
    }
    MachineCheck::pass("PCIe", detail)
}

fn link(measured: Result<f64, DeviceError>, threshold: f64) -> MachineCheck {
    let slow = "measure more with `djinn bench link`; check the PCIe lanes above, other programs \
                that use the link, and NUMA";
    match measured {
        Err(error) => MachineCheck::fail(
            "link",
            error.to_string(),
            "free memory, or lift the limit on locked memory (ulimit -l unlimited; docker run \
             --ulimit memlock=-1)",
        ),
        Ok(rate) => {
            let detail = format!(
                "{rate:.1} GB/s from pinned memory to the card; the threshold is {threshold} GB/s"
            );
            if rate < threshold {
                MachineCheck::fail("link", detail, slow)
            } else {
                MachineCheck::pass("link", detail)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::CheckVerdict;

    #[test]
    fn drivers() {
        let version = |major, minor| Ok(Version { major, minor });
        assert_eq!(driver(version(13, 0)).verdict, CheckVerdict::Pass);
        assert_eq!(driver(version(13, 4)).verdict, CheckVerdict::Pass);
        let old = driver(version(12, 8));
        assert_eq!(old.verdict, CheckVerdict::Fail);
        assert!(old.detail.contains("12.8") && old.detail.contains("13.0"));
        assert_eq!(no_driver(false).verdict, CheckVerdict::Warn);
        assert_eq!(no_driver(true).verdict, CheckVerdict::Fail);
    }

    #[test]
    fn cards_that_cannot_be_opened() {
        let hidden = DeviceError::Setup("cuda:0: the driver shows no card".into());
        assert_eq!(no_card(&hidden, false).verdict, CheckVerdict::Warn);
        assert_eq!(no_card(&hidden, true).verdict, CheckVerdict::Fail);
        let broken = DeviceError::Driver {
            what: "making a context",
            code: 2,
            reason: "out of memory".into(),
        };
        assert_eq!(no_card(&broken, false).verdict, CheckVerdict::Fail);
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
        assert_eq!(check(16, "32.0 GT/s PCIe").verdict, CheckVerdict::Pass);
        let idle = check(16, "2.5 GT/s PCIe");
        assert_eq!(idle.verdict, CheckVerdict::Pass);
        assert!(idle.detail.contains("idle"), "{}", idle.detail);
        assert_eq!(check(8, "32.0 GT/s PCIe").verdict, CheckVerdict::Warn);
    }

    #[test]
    fn links() {
        assert_eq!(link(Ok(55.3), 20.0).verdict, CheckVerdict::Pass);
        let slow = link(Ok(6.8), 20.0);
        assert_eq!(slow.verdict, CheckVerdict::Fail);
        assert!(slow.detail.starts_with("6.8 GB/s"), "{}", slow.detail);
    }
}
