//! Files of steering vectors. The content decides how a file is read; the extension decides how a
//! file is written.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use djinn_wal::write_atomically;

use crate::error::VectorsError;
use crate::steering::Steering;
use crate::{gguf, tensors};

/// Largest size of a file in bytes, enough for a thousand blocks of any known model.
const BYTES_MAX: u64 = 256 << 20;

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Safetensors, with a tensor `blocks.{b}.hook_resid_post` for each direction.
    Safetensors,
    /// GGUF, in the format of llama.cpp's control vectors.
    Gguf,
}

impl Format {
    /// Returns the format that the extension of a file name requests.
    pub fn for_path(path: &Path) -> Result<Format, VectorsError> {
        let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "safetensors" => Ok(Format::Safetensors),
            "gguf" => Ok(Format::Gguf),
            _ => Err(of_file(path)(VectorsError::Extension)),
        }
    }
}

impl Steering {
    /// Reads a file of either format.
    pub fn read(path: &Path) -> Result<Steering, VectorsError> {
        read_bytes(path)
            .and_then(|bytes| Steering::from_bytes(&bytes))
            .map_err(of_file(path))
    }

    /// Writes a file atomically, in the format of its extension.
    pub fn write(&self, path: &Path) -> Result<(), VectorsError> {
        let format = Format::for_path(path)?;
        let write =
            |bytes: Vec<u8>| write_atomically(path, &bytes).map_err(VectorsError::system("write"));
        self.to_bytes(format).and_then(write).map_err(of_file(path))
    }

    /// Parses the content of a file of either format.
    pub fn from_bytes(bytes: &[u8]) -> Result<Steering, VectorsError> {
        if bytes.starts_with(&gguf::MAGIC) {
            gguf::parse(bytes)
        } else {
            tensors::parse(bytes)
        }
    }

    /// Returns the content of a file. GGUF cannot store a direction for block 0.
    pub fn to_bytes(&self, format: Format) -> Result<Vec<u8>, VectorsError> {
        match format {
            Format::Safetensors => Ok(tensors::to_bytes(self)),
            Format::Gguf => gguf::to_bytes(self),
        }
    }
}

/// Returns a function that adds the path of a file to an error.
fn of_file(path: &Path) -> impl Fn(VectorsError) -> VectorsError {
    |source| VectorsError::File {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

/// Reads a whole file, unless it is too large. The limit applies to the bytes read, because a
/// pipe reports no size.
fn read_bytes(path: &Path) -> Result<Vec<u8>, VectorsError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(VectorsError::system("read"))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(VectorsError::TooLarge);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use proptest::prelude::*;

    use super::{BYTES_MAX, Format, Steering, VectorsError};
    use crate::steering::Method;

    fn example() -> Steering {
        let directions = BTreeMap::from([(2, vec![1.5, -0.0]), (10, vec![f32::MIN, 1e-40])]);
        Steering::new("m", Method::from("by hand"), directions).unwrap()
    }

    #[test]
    fn the_content_decides_how_a_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a.gguf", "b.Safetensors", "c"].map(|name| folder.path().join(name));
        example().write(&a).unwrap();
        example().write(&b).unwrap();
        fs::rename(&a, &c).unwrap();
        fs::rename(&b, &a).unwrap();
        assert_eq!(Steering::read(&a).unwrap(), example());
        assert_eq!(Steering::read(&c).unwrap(), example());
        example().write(&a).unwrap();
        assert!(fs::read(&a).unwrap().starts_with(b"GGUF"), "replaced");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    /// Returns the cause of an error about a file, which must name the file.
    fn cause(error: VectorsError, name: &str) -> VectorsError {
        match error {
            VectorsError::File { path, source } => {
                assert!(path.ends_with(name), "{}", path.display());
                *source
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn failed_writes_leave_no_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("folder.gguf")).unwrap();
        let error = |name: &str| {
            let error = example().write(&folder.path().join(name)).unwrap_err();
            cause(error, name)
        };
        for name in ["folder.gguf", "missing/v.gguf"] {
            let error = error(name);
            assert!(
                matches!(error, VectorsError::System { doing: "write", .. }),
                "{error}"
            );
        }
        for name in ["v.bin", "v"] {
            let error = error(name);
            assert!(matches!(error, VectorsError::Extension), "{error}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn files_that_are_not_vectors_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.gguf");
        let error = || cause(Steering::read(&path).unwrap_err(), "v.gguf");
        let missing = error();
        assert!(
            matches!(missing, VectorsError::System { doing: "read", .. }),
            "{missing}"
        );
        let file = fs::File::create(&path).unwrap();
        let empty = error();
        assert!(matches!(empty, VectorsError::Safetensors(_)), "{empty}");
        file.set_len(BYTES_MAX + 1).unwrap();
        let large = error();
        assert!(matches!(large, VectorsError::TooLarge), "{large}");
    }

    proptest! {
        #[test]
        fn written_vectors_are_read_back(
            width in 1..70_usize,
            blocks in prop::collection::btree_set(1..200_usize, 1..6),
            bits in any::<[u32; 8]>(),
            model in ".{0,20}",
            method in prop_oneof![Just("mean"), Just("pca"), Just("")],
        ) {
            let finite = |x: f32| if x.is_finite() { x } else { -0.0 };
            let numbers = |b: usize| (b..b + width).map(|i| finite(f32::from_bits(bits[i % 8])));
            let directions = blocks.into_iter().map(|b| (b, numbers(b).collect())).collect();
            let steering = Steering::new(&model, Method::from(method), directions).unwrap();
            for format in [Format::Safetensors, Format::Gguf] {
                let bytes = steering.to_bytes(format).unwrap();
                let read = Steering::from_bytes(&bytes).unwrap();
                prop_assert_eq!(&read, &steering);
                // Both files are equal in every bit, including the sign of zero.
                prop_assert_eq!(read.to_bytes(format).unwrap(), bytes);
            }
        }
    }
}
