//! Other Djinn processes of the same user on this machine, and memory that they have reserved.
//!
//! A process touches memory for KV pages when sessions need it, so the system counts that memory as free
//! until then. Each process therefore writes the bytes of its slabs to a file of its own. It locks the
//! file as long as it runs; a file without a lock belongs to a process that has ended. Host memory for
//! pages of waiting sessions does not count: its size is what is free, not what is promised.

use std::{
    fmt,
    fs::{self, DirBuilder, File, TryLockError},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// Attempts to create the file of this process while another one looks at a file of the same name.
const ATTEMPTS: usize = 100;

/// Smallest change of the reserved bytes that is written to the file.
const STEP_BYTES: u64 = 16 << 20;

/// Bytes of all slabs of this process.
static RESERVED: AtomicU64 = AtomicU64::new(0);
/// File of this process, once it is announced.
static ANNOUNCED: OnceLock<Mutex<Announcement>> = OnceLock::new();

/// Another Djinn process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Number of the process.
    pub process: u32,
    /// Bytes that it has reserved and not touched yet.
    pub untouched: u64,
    /// Names of its models.
    pub models: String,
    /// Whether it has the memory limits of this process.
    pub shares_limits: bool,
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Neighbour {
            process, models, ..
        } = self;
        match models.as_str() {
            "" => write!(f, "djinn process {process}"),
            models => write!(f, "djinn process {process} with {models}"),
        }
    }
}

/// File of this process.
struct Announcement {
    /// The file; `None` if the system has no place for it.
    file: Option<File>,
    models: String,
    /// Reserved bytes in the file.
    written: u64,
}

impl Announcement {
    fn write(&mut self, reserved: u64) -> io::Result<()> {
        self.written = reserved;
        let Some(file) = &self.file else {
            return Ok(());
        };
        let text = format!("{reserved}\n{}\n", self.models);
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)
    }
}

/// Bytes of a slab, which count as reserved until the value is dropped or the system has them back.
#[derive(Debug)]
pub(crate) struct ReservedBytes {
    bytes: u64,
    is_counted: AtomicBool,
}

impl ReservedBytes {
    pub fn new(bytes: u64) -> Self {
        let reserved = ReservedBytes {
            bytes,
            is_counted: AtomicBool::new(false),
        };
        reserved.count(true);
        reserved
    }

    /// Sets whether the bytes count.
    pub fn count(&self, counts: bool) {
        match (self.is_counted.swap(counts, Ordering::Relaxed), counts) {
            (false, true) => RESERVED.fetch_add(self.bytes, Ordering::Relaxed),
            (true, false) => RESERVED.fetch_sub(self.bytes, Ordering::Relaxed),
            _ => return,
        };
        update();
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.count(false);
    }
}

/// Tells other Djinn processes of this user from now on how much memory this process has reserved, with the
/// names of its models. A system that has no place for the file is ignored: processes then see only the
/// memory that others have touched.
pub fn announce(models: &str) {
    let announcement = ANNOUNCED.get_or_init(|| {
        let file = folder().and_then(|folder| create(&folder, std::process::id()));
        Mutex::new(Announcement {
            file: file.ok(),
            models: String::new(),
            written: 0,
        })
    });
    let mut announcement = announcement.lock().unwrap_or_else(PoisonError::into_inner);
    // The file has a line for the names.
    announcement.models = models.replace('\n', " ");
    let _ = announcement.write(RESERVED.load(Ordering::Relaxed));
}

/// Writes the reserved bytes if they have changed much.
fn update() {
    let Some(announcement) = ANNOUNCED.get() else {
        return;
    };
    let mut announcement = announcement.lock().unwrap_or_else(PoisonError::into_inner);
    let reserved = RESERVED.load(Ordering::Relaxed);
    if announcement.written.abs_diff(reserved) >= STEP_BYTES || reserved == 0 {
        let _ = announcement.write(reserved);
    }
}

/// Other Djinn processes of this user that have announced themselves.
pub fn neighbours() -> Vec<Neighbour> {
    folder().map_or_else(|_| Vec::new(), |folder| list(&folder, std::process::id()))
}

/// Folder of the files: private to the user.
fn folder() -> io::Result<PathBuf> {
    let user = fs::metadata("/proc/self")?.uid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let folder = match runtime.filter(|folder| folder.is_dir()) {
        Some(runtime) => runtime.join("djinn"),
        None => std::env::temp_dir().join(format!("djinn-{user}")),
    };
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(&folder)?;
    match found.is_dir() && found.uid() == user {
        true => Ok(folder),
        false => Err(ErrorKind::PermissionDenied.into()),
    }
}

/// Creates the file of a process and locks it.
fn create(folder: &Path, process: u32) -> io::Result<File> {
    let path = folder.join(process.to_string());
    for _ in 0..ATTEMPTS {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false);
        let file = file.mode(0o600).open(&path)?;
        match file.try_lock() {
            // Another process may have removed the file before it was locked.
            Ok(()) if file.metadata()?.nlink() > 0 => return Ok(file),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    // A process of another container may have the same number and the same folder.
    Err(ErrorKind::ResourceBusy.into())
}

/// Reads the files of all processes but one, and removes those of ended processes.
fn list(folder: &Path, own: u32) -> Vec<Neighbour> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let others = processes.filter(|&process| process != own);
    others.filter_map(|process| read(folder, process)).collect()
}

fn read(folder: &Path, process: u32) -> Option<Neighbour> {
    let path = folder.join(process.to_string());
    let file = File::options().read(true).write(true).open(&path).ok()?;
    if file.try_lock().is_ok() {
        // The process has ended. The lock is held until the file is removed. If another process has removed
        // it, the name may belong to a new one.
        if file.metadata().ok()?.nlink() > 0 {
            let _ = fs::remove_file(&path);
        }
        return None;
    }
    let text = fs::read_to_string(&path).ok()?;
    let (reserved, models) = parse(&text)?;
    let touched = super::read_kib(&format!("/proc/{process}/status"), "RssAnon:")?;
    Some(Neighbour {
        process,
        untouched: reserved.saturating_sub(touched),
        models: models.to_owned(),
        shares_limits: groups(&process.to_string()) == groups("self"),
    })
}

/// Control groups of a process.
fn groups(process: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{process}/cgroup")).ok()
}

fn parse(text: &str) -> Option<(u64, &str)> {
    let mut lines = text.lines();
    let reserved = lines.next()?.parse().ok()?;
    Some((reserved, lines.next()?))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::FileExt};

    use super::{create, list, parse};

    #[test]
    fn files_of_running_processes_count_and_others_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        // This process stands for another one that has touched little of what it reserved.
        let process = std::process::id();
        let file = create(folder.path(), process).unwrap();
        let huge = 1u64 << 60;
        file.write_all_at(format!("{huge}\na, b\n").as_bytes(), 0)
            .unwrap();
        fs::write(folder.path().join("1"), "5\nended\n").unwrap();
        fs::write(folder.path().join("notes"), "").unwrap();
        let found = list(folder.path(), 0);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].process, found[0].models.as_str()),
            (process, "a, b")
        );
        assert!(found[0].untouched > huge / 2 && found[0].untouched < huge);
        assert!(found[0].to_string().ends_with("with a, b"));
        assert!(!folder.path().join("1").exists(), "its process has ended");
        assert!(list(folder.path(), process).is_empty(), "not its own");
        drop(file);
        assert!(list(folder.path(), 0).is_empty());
    }

    #[test]
    fn a_file_that_is_being_written_is_ignored() {
        assert_eq!(parse("12\nx\n"), Some((12, "x")));
        assert_eq!(parse("12\n\n"), Some((12, "")));
        for text in ["", "12", "x\ny", "-1\nx"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
