//! The library that makes a server's disks fail, and the words that control it.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::error::ChaosError;

/// Source of the library.
const SOURCE: &str = include_str!("../shim.c");
/// Bytes of one control word.
const WORD_BYTES: u64 = 4;

/// A fault of a disk. The value is the position of its control word in `shim.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// Reads of weights fail.
    WeightsError = 0,
    /// Each read of weights waits for the given number of milliseconds.
    WeightsStall = 1,
    /// Writes below the state folder fail: the disk is full.
    StateFull = 2,
    /// The given number of syncs below the state folder fail.
    SyncFailure = 3,
    /// Writes below the spill folder fail: the disk is full.
    SpillFull = 4,
}

impl DiskFault {
    /// All faults.
    pub const ALL: [DiskFault; 5] = [
        DiskFault::WeightsError,
        DiskFault::WeightsStall,
        DiskFault::StateFull,
        DiskFault::SyncFailure,
        DiskFault::SpillFull,
    ];
}

/// Compiled library with its control file.
#[derive(Debug)]
pub struct FaultShim {
    library: PathBuf,
    control_path: PathBuf,
    control: File,
    state: PathBuf,
    spill: PathBuf,
}

impl FaultShim {
    /// Compiles the library with `cc` into `folder`. `state` and `spill` are the folders whose
    /// disks can fail.
    pub fn build(folder: &Path, state: &Path, spill: &Path) -> Result<Self, ChaosError> {
        let (source, library) = (folder.join("shim.c"), folder.join("shim.so"));
        std::fs::write(&source, SOURCE)?;
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-shared", "-fPIC", "-o"]);
        let output = cc.arg(&library).arg(&source).arg("-ldl").output();
        let output = output.map_err(|error| ChaosError::Compiler(error.to_string()))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(ChaosError::Compiler(text));
        }
        let control_path = folder.join("control");
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let control = options.open(&control_path)?;
        control.set_len(2 * DiskFault::ALL.len() as u64 * WORD_BYTES)?;
        Ok(FaultShim {
            library,
            control_path,
            control,
            state: state.to_owned(),
            spill: spill.to_owned(),
        })
    }

    /// Environment variables of a process whose disks can fail.
    pub fn environment(&self) -> [(&'static str, &Path); 4] {
        [
            ("LD_PRELOAD", &self.library),
            ("CHAOS_CONTROL", &self.control_path),
            ("CHAOS_STATE", &self.state),
            ("CHAOS_SPILL", &self.spill),
        ]
    }

    /// Sets a fault; zero ends it.
    pub fn set(&self, fault: DiskFault, value: u32) -> io::Result<()> {
        let at = fault as u64 * WORD_BYTES;
        self.control.write_all_at(&value.to_ne_bytes(), at)
    }

    /// Number of calls that a fault has hit.
    pub fn hits(&self, fault: DiskFault) -> io::Result<u32> {
        let at = (DiskFault::ALL.len() as u64 + fault as u64) * WORD_BYTES;
        let mut word = [0; WORD_BYTES as usize];
        self.control.read_exact_at(&mut word, at)?;
        Ok(u32::from_ne_bytes(word))
    }
}
