//! The host as the process sees it: files, memory, cores.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

/// A file's bytes, mapped read-only.
///
/// The file must not be shortened or rewritten while it is mapped: the pages are
/// the file's own, and reading past a new end would kill the process. Checkpoints
/// are written once, so this holds for them.
#[derive(Debug)]
pub struct MappedFile {
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
}

impl MappedFile {
    /// Maps a file.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(MappedFile { map: None });
        }
        // SAFETY: the mapping is read-only and private to this value; that the file
        // stays as it is while mapped is this type's documented condition.
        let map = unsafe { Mmap::map(&file)? };
        Ok(MappedFile { map: Some(map) })
    }

    /// The file's bytes; each page is read when first touched.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// Tells the kernel that these bytes will not be needed soon, so that they stop
    /// counting as this process's memory. Only whole pages inside the range are
    /// let go; reading them again reads the file again. A hint: failure is ignored.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(target_os = "linux")]
        if let Some(map) = &self.map {
            let page = rustix::param::page_size();
            let start = range.start.checked_next_multiple_of(page);
            let end = range.end.min(map.len()) / page * page;
            if let Some(start) = start.filter(|&start| start < end) {
                // SAFETY: dropping clean pages of a read-only file mapping changes
                // no byte of it: the next access reads the same from the file.
                let _ = unsafe {
                    map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        start,
                        end - start,
                    )
                };
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = range;
    }
}

/// How many threads this process can really run at once: the CPUs it may run on,
/// bounded by a container's quota.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of memory the process can still take without swapping: what the kernel
/// calls available, bounded by what the container's limit leaves. `u64::MAX` where
/// the system does not say.
pub fn available_memory() -> u64 {
    let kernel = read_kib("/proc/meminfo", "MemAvailable:").unwrap_or(u64::MAX);
    kernel.min(cgroup_left().unwrap_or(u64::MAX))
}

/// Bytes of memory the process holds now, where the system says.
pub fn rss_bytes() -> Option<u64> {
    read_kib("/proc/self/status", "VmRSS:")
}

/// The most bytes of memory the process has held, where the system says.
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

/// What the tightest of the process's memory cgroups leaves, if any limits it.
fn cgroup_left() -> Option<u64> {
    let membership = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    cgroup_files(&membership)
        .into_iter()
        .filter_map(|(limit, usage)| {
            let limit = read_number(&limit)?;
            Some(limit.saturating_sub(read_number(&usage).unwrap_or(0)))
        })
        .min()
}

fn read_number(path: &str) -> Option<u64> {
    // Version 2 writes `max` for no limit: not a number, so no limit here either.
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Limit and usage files of every memory cgroup from the process's own up to the
/// root, of version 2 (`0::/path`) and version 1 (`n:memory:/path`). A container
/// sees its own group at the root of the mount, whatever path it is told, so the
/// root is always among them.
fn cgroup_files(membership: &str) -> Vec<(String, String)> {
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
            files.push((format!("{folder}/{limit}"), format!("{folder}/{usage}")));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_mapped_file_has_its_bytes_before_and_after_release() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        let map = MappedFile::open(file.path()).unwrap();
        assert_eq!(map.bytes(), bytes);
        map.release(1..99_999);
        map.release(usize::MAX..usize::MAX);
        map.release(0..usize::MAX);
        assert_eq!(map.bytes(), bytes);
    }

    #[test]
    fn an_empty_file_is_no_bytes_and_a_missing_one_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let map = MappedFile::open(file.path()).unwrap();
        assert!(map.bytes().is_empty());
        map.release(0..10);
        assert!(MappedFile::open("/does/not/exist").is_err());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn releasing_gives_memory_back() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 << 20).unwrap();
        let map = MappedFile::open(file.path()).unwrap();
        let sum: u64 = map.bytes().iter().map(|&byte| u64::from(byte)).sum();
        assert_eq!(sum, 0);
        let before = rss_bytes().unwrap();
        map.release(0..64 << 20);
        assert!(rss_bytes().unwrap() + (48 << 20) < before);
    }

    #[test]
    fn figures_are_read_from_their_lines() {
        let text = "MemTotal: 10 kB\nMemAvailable:   24117248 kB\n";
        assert_eq!(parse_kib(text, "MemAvailable:"), Some(24_117_248 * 1024));
        assert_eq!(parse_kib(text, "VmRSS:"), None);
    }

    #[test]
    fn cgroups_of_both_versions_are_looked_up_to_the_root() {
        let files = cgroup_files("5:cpu,memory:/a/b\n1:name=systemd:/x\n0::/c\n");
        let limits: Vec<&str> = files.iter().map(|(limit, _)| limit.as_str()).collect();
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
    #[cfg(target_os = "linux")]
    fn the_host_says_something_sensible() {
        assert!(cores() >= 1);
        assert!(available_memory() > 1 << 20);
        assert!(peak_rss_bytes().unwrap() >= rss_bytes().unwrap() / 2);
    }
}
