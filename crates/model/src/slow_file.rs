//! Files of the slow tier: read past the page cache, and watched for changes.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use djinn_types::IO_BLOCK;

/// A file that is read while it must stay as it was when it was opened.
///
/// Reads go past the page cache where the file system allows it (direct I/O), so
/// that what the process reads takes no memory but its own. Where it does not, the
/// pages are dropped after each read.
#[derive(Debug)]
pub struct SlowFile {
    path: PathBuf,
    /// `None` where the file system has no direct I/O.
    direct: Option<File>,
    cached: File,
    stamp: Stamp,
}

/// What changes when a file's content does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Stamp {
            bytes: meta.len(),
            modified_s: meta.mtime(),
            modified_ns: meta.mtime_nsec(),
        }
    }
}

impl SlowFile {
    /// Opens a file for reading.
    pub fn open(path: &Path) -> io::Result<Self> {
        let cached = File::open(path)?;
        // Rows of a table lie far apart: what comes after one is not wanted.
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fadvise(&cached, 0, None, rustix::fs::Advice::Random);
        let stamp = Stamp::of(&cached.metadata()?);
        Ok(SlowFile {
            path: path.to_owned(),
            direct: open_direct(path, &cached),
            cached,
            stamp,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How long it was when it was opened.
    pub fn bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// Whether reads go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Fills `dst` from `offset` on; what would lie beyond the file's end is left as
    /// it is. Fastest where offset, address and length are multiples of [`IO_BLOCK`].
    /// Fails, naming file and offset, if the file is no longer what was opened.
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> io::Result<()> {
        let wanted = self.bytes().saturating_sub(offset).min(dst.len() as u64) as usize;
        let result = match &self.direct {
            Some(file) if is_aligned(offset, dst) => fill(file, offset, dst, wanted, IO_BLOCK),
            _ => fill(&self.cached, offset, &mut dst[..wanted], wanted, 1).inspect(|()| {
                drop_pages(&self.cached, offset, wanted);
            }),
        };
        self.checked(result, offset, wanted)
    }

    /// The same through the page cache, where what is read stays: for what is read once
    /// and kept elsewhere, and may well be there already.
    pub fn read_cached(&self, offset: u64, dst: &mut [u8]) -> io::Result<()> {
        let wanted = self.bytes().saturating_sub(offset).min(dst.len() as u64) as usize;
        let result = fill(&self.cached, offset, &mut dst[..wanted], wanted, 1);
        self.checked(result, offset, wanted)
    }

    /// What a read came to: an error that says where, if the file is no longer the same.
    fn checked(&self, result: io::Result<()>, offset: u64, wanted: usize) -> io::Result<()> {
        // Looked at after the read: a change before it or during it is seen.
        result
            .and_then(|()| self.check_unchanged())
            .map_err(|error| {
                let path = self.path.display();
                let what = format!("{path}: reading {wanted} bytes at offset {offset}: {error}");
                io::Error::new(error.kind(), what)
            })
    }

    fn check_unchanged(&self) -> io::Result<()> {
        let now = Stamp::of(&self.cached.metadata()?);
        if now != self.stamp {
            return Err(io::Error::other("the file was changed while in use"));
        }
        Ok(())
    }
}

/// The same file without the page cache, if that works.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path, cached: &File) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;

    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let direct = File::options()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .ok()?;
    let (a, b) = (direct.metadata().ok()?, cached.metadata().ok()?);
    // Some file systems accept the flag and refuse the read.
    let mut probe = vec![0; 2 * IO_BLOCK as usize];
    let start = probe.as_ptr().align_offset(IO_BLOCK as usize);
    let works = direct.read_at(&mut probe[start..start + IO_BLOCK as usize], 0);
    (works.is_ok() && (a.dev(), a.ino()) == (b.dev(), b.ino())).then_some(direct)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Path, _: &File) -> Option<File> {
    None
}

fn is_aligned(offset: u64, dst: &[u8]) -> bool {
    [offset, dst.as_ptr().addr() as u64, dst.len() as u64]
        .iter()
        .all(|n| n.is_multiple_of(IO_BLOCK))
}

/// Reads until `wanted` bytes are there. A direct read asks for whole blocks (`unit`),
/// so it may ask for more than the file has.
fn fill(file: &File, offset: u64, dst: &mut [u8], wanted: usize, unit: u64) -> io::Result<()> {
    let mut done = 0;
    while done < wanted {
        let read = match file.read_at(&mut dst[done..], offset + done as u64) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        done += read;
        // In whole blocks, only the end of the file gives part of one.
        if read == 0 || !(done as u64).is_multiple_of(unit) {
            break;
        }
    }
    if done < wanted {
        let reason = format!("the file ended {} bytes early", wanted - done);
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
    }
    Ok(())
}

/// Lets go of what a read left in the page cache: of whole pages, since parts of one
/// would stay. A hint: failure is ignored.
fn drop_pages(file: &File, offset: u64, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let start = offset / IO_BLOCK * IO_BLOCK;
        let end = (offset + bytes as u64).next_multiple_of(IO_BLOCK);
        // No length at all would mean everything.
        if let Some(length) = std::num::NonZeroU64::new(end - start) {
            let _ = rustix::fs::fadvise(file, start, Some(length), rustix::fs::Advice::DontNeed);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, bytes);
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 3 * IO_BLOCK as usize + 1234;

    fn content() -> Vec<u8> {
        (0..BYTES as u32).map(|i| (i * 7 % 251) as u8).collect()
    }

    fn written() -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&content()).unwrap();
        file
    }

    proptest! {
        #[test]
        fn reads_what_is_there(
            offset in 0u64..BYTES as u64 + 100, length in 0usize..20_000, blocks in any::<bool>(),
            cached in any::<bool>(),
        ) {
            let temp = written();
            let file = SlowFile::open(temp.path()).unwrap();
            let content = content();
            let (offset, length) = if blocks {
                (offset / IO_BLOCK * IO_BLOCK, length.next_multiple_of(IO_BLOCK as usize))
            } else {
                (offset, length)
            };
            let mut memory = vec![0xAA; length + 2 * IO_BLOCK as usize];
            let start = if blocks { memory.as_ptr().align_offset(IO_BLOCK as usize) } else { 0 };
            let to = &mut memory[start..start + length];
            if cached { file.read_cached(offset, to) } else { file.read(offset, to) }.unwrap();
            for (i, byte) in memory[start..start + length].iter().enumerate() {
                let expect = content.get(offset as usize + i).copied();
                prop_assert_eq!(*byte, expect.unwrap_or(*byte), "byte {}", i);
            }
            prop_assert!(memory[start + length..].iter().all(|&byte| byte == 0xAA));
        }
    }

    fn refusal(change: impl FnOnce(&Path)) -> String {
        let temp = written();
        let file = SlowFile::open(temp.path()).unwrap();
        file.read(0, &mut [0; 100]).unwrap();
        // Clocks of file systems tick in milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(20));
        change(temp.path());
        let error = file
            .read(IO_BLOCK, &mut [0; IO_BLOCK as usize])
            .unwrap_err();
        error
            .to_string()
            .replace(&temp.path().display().to_string(), "FILE")
    }

    #[test]
    fn a_file_that_changes_is_refused_by_name_and_offset() {
        let shortened = refusal(|path| {
            let file = File::options().write(true).open(path).unwrap();
            file.set_len(IO_BLOCK + 10).unwrap();
        });
        assert!(
            shortened
                .starts_with("FILE: reading 4096 bytes at offset 4096: the file ended 4086 bytes"),
            "{shortened}"
        );
        let overwritten = refusal(|path| {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(&[0; 100], 0).unwrap();
        });
        assert_eq!(
            overwritten,
            "FILE: reading 4096 bytes at offset 4096: the file was changed while in use"
        );
    }

    #[test]
    fn a_file_replaced_by_another_is_still_the_old_one() {
        let temp = written();
        let file = SlowFile::open(temp.path()).unwrap();
        let other = temp.path().with_extension("new");
        std::fs::write(&other, vec![1; BYTES]).unwrap();
        std::fs::rename(&other, temp.path()).unwrap();
        let mut bytes = vec![0; BYTES];
        file.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, content());
    }
}
