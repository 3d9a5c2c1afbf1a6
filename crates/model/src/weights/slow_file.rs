//! Files of weights that are read with direct I/O and checked for changes.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use djinn_types::IO_BLOCK;

/// A file that must not change while it is open.
///
/// Reads use direct I/O if the file system supports it, so they take no memory of the page
/// cache. Otherwise the cached pages are dropped after each read.
#[derive(Debug)]
pub struct SlowFile {
    path: PathBuf,
    /// Handle for direct I/O; `None` if the file system does not support it.
    direct: Option<File>,
    cached: File,
    stamp: FileStamp,
}

/// Size and modification time of a file. Both change with its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    bytes: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl FileStamp {
    fn of(meta: &Metadata) -> Self {
        FileStamp {
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
        // Rows of a table lie far apart, so readahead would read unused bytes.
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fadvise(&cached, 0, None, rustix::fs::Advice::Random);
        let stamp = FileStamp::of(&cached.metadata()?);
        Ok(SlowFile {
            path: path.to_owned(),
            direct: open_direct(path, &cached),
            cached,
            stamp,
        })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size in bytes at the time the file was opened.
    pub fn bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// Returns whether reads use direct I/O.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Fills `dst`, starting at `offset`. Bytes of `dst` beyond the end of the file keep their
    /// value. Direct I/O needs offset, address and length in multiples of [`IO_BLOCK`]. Fails if
    /// the file has changed since it was opened; the error names the file and the offset.
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

    /// Fills `dst` as [`SlowFile::read`] does, but through the page cache, and leaves the pages
    /// in the cache.
    pub fn read_cached(&self, offset: u64, dst: &mut [u8]) -> io::Result<()> {
        let wanted = self.bytes().saturating_sub(offset).min(dst.len() as u64) as usize;
        let result = fill(&self.cached, offset, &mut dst[..wanted], wanted, 1);
        self.checked(result, offset, wanted)
    }

    /// Returns the result of a read, or an error if the file has changed.
    fn checked(&self, result: io::Result<()>, offset: u64, wanted: usize) -> io::Result<()> {
        // The check follows the read, to detect changes before and during the read.
        result
            .and_then(|()| self.check_unchanged())
            .map_err(|error| {
                let path = self.path.display();
                let what =
                    format!("{path}: cannot read {wanted} bytes at offset {offset}: {error}");
                io::Error::new(error.kind(), what)
            })
    }

    fn check_unchanged(&self) -> io::Result<()> {
        let now = FileStamp::of(&self.cached.metadata()?);
        if now != self.stamp {
            return Err(io::Error::other(
                "the file changed while it was in use; load the model again",
            ));
        }
        Ok(())
    }
}

/// Opens the file for direct I/O; returns `None` if the file system does not support it.
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
    // Some file systems accept the flag and then refuse reads.
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

/// Reads until `dst` holds `wanted` bytes. A direct read requests whole blocks of `unit` bytes,
/// which may be more than the file has.
fn fill(file: &File, offset: u64, dst: &mut [u8], wanted: usize, unit: u64) -> io::Result<()> {
    let mut done = 0;
    while done < wanted {
        let read = match file.read_at(&mut dst[done..], offset + done as u64) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        done += read;
        // A direct read returns part of a block only at the end of the file.
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

/// Drops the cached pages of a read: only whole pages, because the kernel keeps partial ones. The
/// call is a hint, so this function ignores errors.
fn drop_pages(file: &File, offset: u64, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let start = offset / IO_BLOCK * IO_BLOCK;
        let end = (offset + bytes as u64).next_multiple_of(IO_BLOCK);
        // A length of zero means the whole file.
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
        fn reads_return_the_content(
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

    /// Returns the error of a read after `change`, and the path of the file.
    fn error_after(change: impl FnOnce(&Path)) -> (io::Error, String) {
        let temp = written();
        let file = SlowFile::open(temp.path()).unwrap();
        file.read(0, &mut [0; 100]).unwrap();
        // File systems count modification times in milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(20));
        change(temp.path());
        let error = file
            .read(IO_BLOCK, &mut [0; IO_BLOCK as usize])
            .unwrap_err();
        (error, temp.path().display().to_string())
    }

    #[test]
    fn reads_of_a_changed_file_fail_and_name_it() {
        let (error, path) = error_after(|path| {
            let file = File::options().write(true).open(path).unwrap();
            file.set_len(IO_BLOCK + 10).unwrap();
        });
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(error.to_string().starts_with(&path), "{error}");
        let (error, path) = error_after(|path| {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(&[0; 100], 0).unwrap();
        });
        assert_eq!(error.kind(), io::ErrorKind::Other);
        assert!(error.to_string().starts_with(&path), "{error}");
    }

    #[test]
    fn an_open_file_survives_its_replacement() {
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
