//! Checks of the machine: processor, memory, swap, locked memory, NUMA and huge pages.

use std::fs;

use djinn_device::{cpu::Isa, host};
use djinn_types::Size;
use djinn_weights::MemorySettings;

use crate::{card::WorkingCard, check::MachineCheck};

/// Checks the machine, with the needs of a card if one works.
pub fn checks(card: Option<&WorkingCard>) -> Vec<MachineCheck> {
    let memory = read("/proc/meminfo");
    let mut checks = vec![
        processor(host::cores(), Isa::detect()),
        machine_memory(&memory, host::available_memory(), card.is_some()),
        swap(&memory, card.is_some()),
    ];
    if let Some(card) = card {
        checks.push(locked(&read("/proc/self/limits"), card.pinned));
    }
    checks.push(numa(
        &nodes(),
        &numbers(&value(&read("/proc/self/status"), "Cpus_allowed_list:")),
        card.and_then(|card| card.node),
    ));
    checks.push(huge_pages(&read(
        "/sys/kernel/mm/transparent_hugepage/enabled",
    )));
    checks
}

/// Text of a file; empty if the system has no such file.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Value after a key at the start of a line.
fn value(text: &str, key: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_default().trim().to_owned()
}

/// Value of /proc/meminfo in bytes.
fn bytes(meminfo: &str, key: &str) -> u64 {
    let value = value(meminfo, key);
    let kib = value.split_whitespace().next().and_then(|n| n.parse().ok());
    kib.map_or(0, |kib: u64| kib * 1024)
}

/// Numbers of a list in the kernel's format: `0-3,8`.
fn numbers(list: &str) -> Vec<usize> {
    let span = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.trim().parse::<usize>().ok()?..=to.trim().parse().ok()?)
    };
    list.split(',').filter_map(span).flatten().collect()
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn processor(cores: usize, isa: Isa) -> MachineCheck {
    let detail = format!("{cores} core{}, {isa}", plural(cores));
    match isa {
        Isa::Scalar => MachineCheck::warn(
            "processor",
            detail,
            "use a processor with AVX2, without which products are slow; a virtual machine may hide it",
        ),
        _ => MachineCheck::pass("processor", detail),
    }
}

fn machine_memory(meminfo: &str, available: u64, on_card: bool) -> MachineCheck {
    let (total, free) = (bytes(meminfo, "MemTotal:"), bytes(meminfo, "MemAvailable:"));
    let mut detail = format!("{} of {} are free", Size(free), Size(total));
    if available < free {
        detail += &format!(", the container's limit leaves {}", Size(available));
    }
    if on_card {
        let pinned = MemorySettings::default_budget(available);
        detail += &format!("; {} could be pinned", Size(pinned));
    }
    if available < total / 8 {
        let remedy = "end other programs, or raise the container's memory limit";
        return MachineCheck::warn("memory", detail, remedy);
    }
    MachineCheck::pass("memory", detail)
}

fn swap(meminfo: &str, on_card: bool) -> MachineCheck {
    let (total, free) = (bytes(meminfo, "SwapTotal:"), bytes(meminfo, "SwapFree:"));
    if total == 0 {
        return MachineCheck::pass("swap", "none");
    }
    let used = total.saturating_sub(free);
    let detail = format!("{} of {} in use", Size(used), Size(total));
    match (on_card, used) {
        (true, _) => MachineCheck::warn(
            "swap",
            detail,
            "lower --host-memory, or turn swap off (swapoff -a): pinned weights stay in memory, so \
             other programs are swapped out",
        ),
        (false, 0) => MachineCheck::pass("swap", detail),
        (false, _) => MachineCheck::warn(
            "swap",
            detail,
            "lower --memory: weights that are swapped out are read twice",
        ),
    }
}

fn locked(limits: &str, pinned: bool) -> MachineCheck {
    let line = value(limits, "Max locked memory");
    let limit = line.split_whitespace().next().unwrap_or("unlimited");
    let detail = match limit.parse() {
        Err(_) => return MachineCheck::pass("locked memory", limit),
        Ok(limit) => format!("limited to {}", Size(limit)),
    };
    match pinned {
        true => MachineCheck::pass(
            "locked memory",
            format!("{detail}, which does not limit this driver"),
        ),
        false => MachineCheck::warn(
            "locked memory",
            detail,
            "ulimit -l unlimited; in a container, docker run --ulimit memlock=-1",
        ),
    }
}

/// CPUs of every NUMA node.
fn nodes() -> Vec<(usize, Vec<usize>)> {
    let online = numbers(&read("/sys/devices/system/node/online"));
    let cpus = |node: usize| read(&format!("/sys/devices/system/node/node{node}/cpulist"));
    let of = |node: usize| (node, numbers(&cpus(node)));
    online.into_iter().map(of).collect()
}

fn numa(nodes: &[(usize, Vec<usize>)], allowed: &[usize], card: Option<usize>) -> MachineCheck {
    let ours: Vec<String> = nodes
        .iter()
        .filter(|(_, cpus)| cpus.iter().any(|cpu| allowed.contains(cpu)))
        .map(|(node, _)| node.to_string())
        .collect();
    let mut detail = format!("{} node{}", nodes.len().max(1), plural(nodes.len().max(1)));
    if nodes.len() < 2 {
        return MachineCheck::pass("NUMA", detail);
    }
    detail += &format!(
        ", this process runs on node{} {}",
        plural(ours.len()),
        ours.join(", ")
    );
    let Some(card) = card else {
        return MachineCheck::pass("NUMA", detail);
    };
    detail += &format!(", the card is near node {card}");
    if ours.contains(&card.to_string()) {
        return MachineCheck::pass("NUMA", detail);
    }
    let remedy = format!("numactl --cpunodebind={card} --membind={card} djinn …");
    MachineCheck::warn("NUMA", detail, remedy)
}

fn huge_pages(enabled: &str) -> MachineCheck {
    let chosen = enabled
        .split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    match chosen {
        None => MachineCheck::pass("huge pages", "not known"),
        Some("never") => MachineCheck::warn(
            "huge pages",
            "never",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, so that fewer pages are pinned",
        ),
        Some(chosen) => MachineCheck::pass("huge pages", chosen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::CheckVerdict::{Fail, Pass, Warn};

    const MEMORY: &str = "MemTotal: 1000 kB\nMemAvailable:  900 kB\nSwapTotal: 0 kB\n";

    #[test]
    fn lists_of_numbers() {
        assert_eq!(numbers("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(numbers("5"), [5]);
        assert!(numbers("").is_empty());
    }

    #[test]
    fn memory_and_the_limit_of_a_container() {
        let check = machine_memory(MEMORY, 900 << 10, false);
        assert_eq!(check.verdict, Pass);
        assert_eq!(check.detail, "921.6 kB of 1.0 MB are free");
        let check = machine_memory(MEMORY, 100 << 10, false);
        assert_eq!(check.verdict, Warn);
        assert!(check.detail.contains("leaves 102.4 kB"), "{}", check.detail);
    }

    #[test]
    fn swap_matters_most_with_a_card() {
        let with = |used: u64| format!("SwapTotal: 100 kB\nSwapFree: {} kB\n", 100 - used);
        assert_eq!(swap(MEMORY, true).verdict, Pass);
        assert_eq!(swap(&with(0), false).verdict, Pass);
        assert_eq!(swap(&with(0), true).verdict, Warn);
        assert_eq!(swap(&with(10), false).verdict, Warn);
    }

    #[test]
    fn a_limit_on_locked_memory_warns() {
        let limits = "Max locked memory         8388608              8388608    bytes\n";
        assert_eq!(locked(limits, true).verdict, Pass);
        let bound = locked(limits, false);
        assert_eq!(bound.verdict, Warn);
        assert_eq!(bound.detail, "limited to 8.4 MB");
        let none = "Max locked memory         unlimited            unlimited  bytes\n";
        assert_eq!(locked(none, false).detail, "unlimited");
    }

    #[test]
    fn a_card_of_another_node_warns() {
        let nodes = [(0, vec![0, 1]), (1, vec![2, 3])];
        assert_eq!(numa(&nodes[..1], &[0], None).detail, "1 node");
        assert_eq!(numa(&nodes, &[0, 1, 2, 3], Some(1)).verdict, Pass);
        let far = numa(&nodes, &[0, 1], Some(1));
        assert_eq!(far.verdict, Warn);
        assert!(far.remedy.unwrap().contains("--cpunodebind=1"));
        assert_eq!(numa(&nodes, &[0, 1], None).verdict, Pass);
        assert_ne!(numa(&[], &[], None).verdict, Fail);
    }

    #[test]
    fn huge_pages_are_read() {
        assert_eq!(huge_pages("always [madvise] never\n").detail, "madvise");
        assert_eq!(huge_pages("always madvise [never]\n").verdict, Warn);
        assert_eq!(huge_pages("").verdict, Pass);
    }
}
