//! Memory and cores of the host, as the process sees them.

use std::path::Path;

mod borrows;
mod buffer;
mod huge_pages;
mod neighbours;
mod rows;
mod slab;

pub(crate) use borrows::{Access, SpanBorrows};
pub use buffer::Buffer;
pub use huge_pages::vec_in_huge_pages;
pub(crate) use neighbours::ReservedBytes;
pub use neighbours::{Neighbour, announce, neighbours};
pub use rows::HostRows;
pub use slab::{Fill, HostSlab};
pub(crate) use slab::{HostRegistration, PlainMemory};

/// Number of threads that this process can run at once: the CPUs it may run on, bounded by a
/// container's quota.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of memory that the process can still allocate without swapping: the kernel's available
/// memory, bounded by the rest of the container's limit, without the memory that other Djinn processes
/// have reserved. `u64::MAX` if the system does not report any.
pub fn available_memory() -> u64 {
    let kernel = read_kib("/proc/meminfo", "MemAvailable:").unwrap_or(u64::MAX);
    let group = cgroup_left().unwrap_or(u64::MAX);
    let neighbours = neighbours();
    let all = neighbours.iter().map(|other| other.untouched).sum();
    let in_group = neighbours.iter().filter(|other| other.shares_limits);
    let in_group = in_group.map(|other| other.untouched).sum();
    kernel
        .saturating_sub(all)
        .min(group.saturating_sub(in_group))
}

/// Total memory of the machine in bytes; `None` if the system does not report it.
pub fn all_memory() -> Option<u64> {
    read_kib("/proc/meminfo", "MemTotal:")
}

/// Resident memory of the process in bytes; `None` if the system does not report it.
pub fn rss_bytes() -> Option<u64> {
    read_kib("/proc/self/status", "VmRSS:")
}

/// Peak resident memory of the process in bytes; `None` if the system does not report it.
pub fn peak_rss_bytes() -> Option<u64> {
    read_kib("/proc/self/status", "VmHWM:")
}

fn read_kib(path: &str, key: &str) -> Option<u64> {
    parse_kib(&std::fs::read_to_string(path).ok()?, key)
}

fn parse_kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Bytes left in the tightest of the process's memory cgroups, if any has a limit. A cgroup
/// counts inactive file pages as used, but the kernel reclaims them on demand.
fn cgroup_left() -> Option<u64> {
    let membership = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    cgroup_files(&membership)
        .into_iter()
        .filter_map(|group| {
            let limit = read_number(&group.limit)?;
            let usage = read_number(&group.usage).unwrap_or(0);
            let stat = std::fs::read_to_string(&group.stat).unwrap_or_default();
            let unused_files = inactive_file(&stat);
            Some(limit.saturating_sub(usage.saturating_sub(unused_files)))
        })
        .min()
}

/// Bytes of inactive file pages of the cgroup and its descendants.
fn inactive_file(stat: &str) -> u64 {
    let value = |key: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().parse().ok()
    };
    // Cgroup version 1 reports both values; only the total includes the descendants.
    let total = value("total_inactive_file ");
    total.or_else(|| value("inactive_file ")).unwrap_or(0)
}

fn read_number(path: &str) -> Option<u64> {
    // Cgroup version 2 writes `max` for no limit. This word is not a number and gives `None`.
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Files of a memory cgroup.
struct CgroupFiles {
    limit: String,
    usage: String,
    stat: String,
}

/// Files of every memory cgroup from the process's own up to the root, of version 2
/// (`0::/path`) and version 1 (`n:memory:/path`). The root is always included, because a
/// container sees its own group at the root of the mount, whatever path it reports.
fn cgroup_files(membership: &str) -> Vec<CgroupFiles> {
    let mut files = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (mount, limit, usage) = if id == "0" && controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max", "memory.current")
        } else if controllers.split(',').any(|name| name == "memory") {
            (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            )
        } else {
            continue;
        };
        for group in Path::new(path).ancestors() {
            let group = group.to_string_lossy();
            let folder = format!("{mount}{}", group.trim_end_matches('/'));
            files.push(CgroupFiles {
                limit: format!("{folder}/{limit}"),
                usage: format!("{folder}/{usage}"),
                stat: format!("{folder}/memory.stat"),
            });
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_their_lines() {
        let text = "MemTotal: 10 kB\nMemAvailable:   24117248 kB\n";
        assert_eq!(parse_kib(text, "MemAvailable:"), Some(24_117_248 * 1024));
        assert_eq!(parse_kib(text, "VmRSS:"), None);
    }

    #[test]
    fn cgroups_of_both_versions_are_found_up_to_the_root() {
        let files = cgroup_files("5:cpu,memory:/a/b\n1:name=systemd:/x\n0::/c\n");
        let limits: Vec<&str> = files.iter().map(|group| group.limit.as_str()).collect();
        assert_eq!(
            limits,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/c/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
    }

    #[test]
    fn inactive_file_pages_are_found() {
        assert_eq!(inactive_file("anon 5\ninactive_file 4096\n"), 4096);
        let both = "inactive_file 1\ntotal_inactive_file 70\n";
        assert_eq!(inactive_file(both), 70);
        assert_eq!(inactive_file("anon 5\n"), 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_host_reports_plausible_numbers() {
        assert!(cores() >= 1);
        assert!(available_memory() > 1 << 20);
        assert!(peak_rss_bytes().unwrap() >= rss_bytes().unwrap() / 2);
    }
}
