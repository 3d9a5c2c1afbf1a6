//! Vectors in files: read by what a file is, written by its name.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use djinn_wal::write_atomically;

use crate::{Steering, VectorsError, gguf, tensors};

/// The most bytes a file may have: a thousand blocks of any model there is.
const BYTES_MAX: u64 = 256 << 20;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One tensor `blocks.{b}.hook_resid_post` for each direction.
    Safetensors,
    /// As llama.cpp reads control vectors.
    Gguf,
}

impl Format {
    /// What a file of this name should be: a wrong name can be refused before any work.
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
        bytes_of(path)
            .and_then(|bytes| Steering::from_bytes(&bytes))
            .map_err(of_file(path))
    }

    /// Writes a file of the format its name says, whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), VectorsError> {
        let format = Format::for_path(path)?;
        let write =
            |bytes: Vec<u8>| write_atomically(path, &bytes).map_err(VectorsError::system("write"));
        self.to_bytes(format).and_then(write).map_err(of_file(path))
    }

    /// Reads the bytes of a file of either format.
    pub fn from_bytes(bytes: &[u8]) -> Result<Steering, VectorsError> {
        if bytes.starts_with(&gguf::MAGIC) {
            gguf::parse(bytes)
        } else {
            tensors::parse(bytes)
        }
    }

    /// The bytes of a file. GGUF has no place for block 0.
    pub fn to_bytes(&self, format: Format) -> Result<Vec<u8>, VectorsError> {
        match format {
            Format::Safetensors => Ok(tensors::to_bytes(self)),
            Format::Gguf => gguf::to_bytes(self),
        }
    }
}

fn of_file(path: &Path) -> impl Fn(VectorsError) -> VectorsError {
    |source| VectorsError::File {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

/// The block in a tensor's name: digits, and one way to write each number.
pub(crate) fn number(text: &str) -> Option<usize> {
    let number: usize = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// All of a file, unless it is too large: what its size says of a pipe is nothing.
fn bytes_of(path: &Path) -> Result<Vec<u8>, VectorsError> {
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

    use super::{BYTES_MAX, Format, number};
    use crate::{Method, Steering};

    fn example() -> Steering {
        let directions = BTreeMap::from([(2, vec![1.5, -0.0]), (10, vec![f32::MIN, 1e-40])]);
        Steering::new("m", Method::from("by hand"), directions).unwrap()
    }

    #[test]
    fn a_file_is_what_its_bytes_say() {
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

    #[test]
    fn a_failed_write_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("folder.gguf")).unwrap();
        for (name, expect) in [
            ("folder.gguf", "cannot write"),
            ("missing/v.gguf", "cannot write"),
            ("v.bin", "end it in .safetensors or .gguf"),
            ("v", "end it in .safetensors or .gguf"),
        ] {
            let error = example().write(&folder.path().join(name)).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(name) && error.contains(expect), "{error}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_vector_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.gguf");
        let check = |expect: &str| {
            let error = Steering::read(&path).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check("v.gguf: cannot read");
        let file = fs::File::create(&path).unwrap();
        check("v.gguf: neither GGUF nor safetensors");
        file.set_len(BYTES_MAX + 1).unwrap();
        check("v.gguf: too large");
    }

    #[test]
    fn a_block_is_written_in_one_way() {
        assert_eq!((number("0"), number("10")), (Some(0), Some(10)));
        for text in ["", "01", "+1", "-1", " 1", "1x", "99999999999999999999"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
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
                // Equal to the bit, the sign of a zero included.
                prop_assert_eq!(read.to_bytes(format).unwrap(), bytes);
            }
        }
    }
}
