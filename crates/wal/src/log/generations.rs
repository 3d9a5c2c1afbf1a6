//! Files of a log's folder: one per generation, and files that were set aside after damage.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::contents::DamagedRange;
use super::replay::{Replay, replay};
use super::{format, tail};
use crate::{WalError, disk};

/// Lists the generations in a folder, the oldest first.
pub(super) fn list(folder: &Path) -> Result<Vec<u64>, WalError> {
    let mut generations = files(folder, ".djinn")?;
    generations.sort_unstable();
    Ok(generations)
}

/// Removes files whose creation a crash interrupted. No record is in them alone.
pub(super) fn remove_unfinished(folder: &Path) -> Result<(), WalError> {
    for generation in files(folder, ".tmp")? {
        // A leftover file is harmless.
        let _ = fs::remove_file(folder.join(tail::unfinished_name(generation)));
    }
    Ok(())
}

/// Removes the files of generations that a newer one has replaced.
pub(super) fn remove(folder: &Path, generations: impl IntoIterator<Item = u64>) {
    for generation in generations {
        // If this fails, the next open tries again.
        let _ = fs::remove_file(folder.join(tail::file_name(generation)));
    }
}

/// Lists the generations of the files with an ending.
fn files(folder: &Path, ending: &str) -> Result<Vec<u64>, WalError> {
    let list = || WalError::system("list the folder", folder);
    let mut generations = Vec::new();
    for entry in fs::read_dir(folder).map_err(list())? {
        let name = entry.map_err(list())?.file_name();
        generations.extend(parse(&name.to_string_lossy(), ending));
    }
    Ok(generations)
}

/// Parses the generation in a file name. The largest generation is invalid, because no generation
/// could follow it.
pub(super) fn parse(name: &str, ending: &str) -> Option<u64> {
    let digits = name.strip_prefix("log-")?.strip_suffix(ending)?;
    let generation = u64::from_str_radix(digits, 16).ok()?;
    (digits.len() == 16 && generation < u64::MAX).then_some(generation)
}

/// Newest readable generation of a folder.
#[derive(Debug, Default)]
pub(super) struct Newest {
    /// File, generation and content; `None` if no generation has readable content.
    pub(super) found: Option<(File, u64, Replay)>,
    /// Damage of the file and of newer, unreadable files.
    pub(super) damage: Vec<DamagedRange>,
}

/// Reads the newest generation that has a valid header or a valid record. Changes nothing.
pub(super) fn newest(
    folder: &Path,
    generations: &[u64],
    options: &fs::OpenOptions,
) -> Result<Newest, WalError> {
    let mut newest = Newest::default();
    for &generation in generations.iter().rev() {
        let path = folder.join(tail::file_name(generation));
        let file = options
            .open(&path)
            .map_err(WalError::system("open", &path))?;
        let replay = replay(&file, &path, generation)?;
        if !replay.header_intact && replay.sequence == 0 {
            let bytes = disk::size(&file, &path)?;
            newest.damage.push(DamagedRange {
                path,
                offset: 0,
                bytes,
                first: 0,
                lost: None,
                before: 0,
            });
            continue;
        }
        newest.damage.extend(ranges(&path, &replay));
        newest.found = Some((file, generation, replay));
        break;
    }
    Ok(newest)
}

/// Lists the damaged ranges of a file.
fn ranges(path: &Path, replay: &Replay) -> impl Iterator<Item = DamagedRange> {
    let header = (!replay.header_intact).then(|| DamagedRange {
        path: path.to_owned(),
        offset: 0,
        bytes: format::HEADER_BYTES as u64,
        first: 0,
        lost: Some(0),
        before: 0,
    });
    let gaps = replay.gaps.iter().map(|gap| DamagedRange {
        path: path.to_owned(),
        offset: gap.bytes.start,
        bytes: gap.bytes.end - gap.bytes.start,
        first: gap.sequence,
        lost: gap.lost,
        before: gap.before,
    });
    header.into_iter().chain(gaps)
}

/// Keeps a generation under the name `log-GENERATION.damaged-N`, with the first free number. The
/// file keeps its old name too. Returns the new name; a file that already has such a name gets no
/// second one.
pub(super) fn set_aside(folder: &Path, generation: u64) -> Result<PathBuf, WalError> {
    let path = folder.join(tail::file_name(generation));
    let original = fs::metadata(&path).map_err(WalError::system("inspect", &path))?;
    let mut number = 1u64;
    loop {
        let aside = folder.join(format!("log-{generation:016x}.damaged-{number}"));
        match fs::symlink_metadata(&aside) {
            Ok(found) if (found.dev(), found.ino()) == (original.dev(), original.ino()) => {
                return Ok(aside);
            }
            Ok(_) => number += 1,
            Err(_) => {
                let kept = disk::keep_copy(&path, &aside);
                kept.map_err(WalError::system("copy", &path))?;
                disk::sync_folder(folder)?;
                return Ok(aside);
            }
        }
    }
}
