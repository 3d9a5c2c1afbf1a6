//! Reading and writing of safetensors files, as f32.

use std::{
    collections::BTreeMap,
    fs,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::EngineError;

/// A tensor of f32 numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensor {
    /// Sizes of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Numbers in row-major order.
    pub data: Vec<f32>,
}

/// Reads every tensor of a file, converted to f32.
pub fn read_tensors(path: &Path) -> Result<BTreeMap<String, Tensor>, EngineError> {
    let bytes = read(path)?;
    let file = parse(path, &bytes)?;
    let tensors = file.tensors().into_iter();
    tensors
        .map(|(name, view)| Ok((name.clone(), convert(path, &name, &view)?)))
        .collect()
}

/// Reads one tensor of a file, converted to f32: the tensor `name`, else the only tensor, else
/// the tensor `fallback`. Returns its name too.
pub(crate) fn read_tensor(
    path: &Path,
    name: Option<&str>,
    fallback: &str,
) -> Result<(String, Tensor), EngineError> {
    let bytes = read(path)?;
    let file = parse(path, &bytes)?;
    let names = file.names();
    let name = match (name, &names[..]) {
        (Some(name), _) => name,
        (None, [only]) => only,
        (None, _) => fallback,
    };
    let view = file.tensor(name).map_err(|_| EngineError::File {
        path: path.to_owned(),
        reason: format!("the file has no tensor '{name}'; select one with #NAME"),
    })?;
    Ok((name.to_owned(), convert(path, name, &view)?))
}

fn read(path: &Path) -> Result<Vec<u8>, EngineError> {
    fs::read(path).map_err(|e| EngineError::File {
        path: path.to_owned(),
        reason: e.to_string(),
    })
}

fn parse<'b>(path: &Path, bytes: &'b [u8]) -> Result<SafeTensors<'b>, EngineError> {
    SafeTensors::deserialize(bytes).map_err(|e| EngineError::File {
        path: path.to_owned(),
        reason: format!("not a safetensors file: {e}"),
    })
}

fn convert(path: &Path, name: &str, view: &TensorView<'_>) -> Result<Tensor, EngineError> {
    let data = to_f32(view).ok_or_else(|| EngineError::File {
        path: path.to_owned(),
        reason: format!(
            "tensor '{name}' has type {:?}; supported are F32, F64, F16, BF16 and I64",
            view.dtype()
        ),
    })?;
    let shape = view.shape().to_vec();
    Ok(Tensor { shape, data })
}

fn to_f32(view: &TensorView<'_>) -> Option<Vec<f32>> {
    let bytes = view.data();
    Some(match view.dtype() {
        Dtype::F32 => each(bytes, f32::from_le_bytes),
        Dtype::F64 => each(bytes, |b| f64::from_le_bytes(b) as f32),
        Dtype::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f32()),
        Dtype::BF16 => each(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        Dtype::I64 => each(bytes, |b| i64::from_le_bytes(b) as f32),
        _ => return None,
    })
}

fn each<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().map(|&chunk| read(chunk)).collect()
}

/// Checks that a file can be written, before the work whose results go there.
pub fn check_writable(path: &Path) -> Result<(), EngineError> {
    let probe = match target(path) {
        WriteTarget::File(path) => {
            let beside = beside(&path);
            fs::File::create_new(&beside).and_then(|_| fs::remove_file(&beside))
        }
        WriteTarget::Folder => Err(ErrorKind::IsADirectory.into()),
        // Opening a pipe would affect its reader.
        WriteTarget::Other => Ok(()),
    };
    probe.map_err(|e| EngineError::File {
        path: path.to_owned(),
        reason: format!("the file cannot be written: {e}"),
    })
}

/// Kind of path to write to.
enum WriteTarget {
    /// A regular file, which may not exist yet; links are followed.
    File(PathBuf),
    Folder,
    /// A device or a pipe, which is written directly because it cannot be renamed.
    Other,
}

fn target(path: &Path) -> WriteTarget {
    match fs::canonicalize(path) {
        Ok(path) if path.is_dir() => WriteTarget::Folder,
        Ok(path) if path.is_file() => WriteTarget::File(path),
        Ok(_) => WriteTarget::Other,
        Err(_) => WriteTarget::File(path.to_owned()),
    }
}

/// Returns the temporary path of a file that is being written.
fn beside(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.{}.part", path.display(), std::process::id()))
}

/// Writes tensors and lists of ids to a file atomically.
pub fn write_tensors(
    path: &Path,
    tensors: &BTreeMap<String, Tensor>,
    ids: &BTreeMap<String, Vec<u32>>,
) -> Result<(), EngineError> {
    let error = |reason: String| EngineError::File {
        path: path.to_owned(),
        reason,
    };
    let floats = tensors.iter().map(|(name, t)| {
        (
            name,
            Dtype::F32,
            t.shape.clone(),
            le_bytes(&t.data, |x| x.to_le_bytes()),
        )
    });
    let ints = ids.iter().map(|(name, ids)| {
        let bytes = le_bytes(ids, |&id| i64::from(id).to_le_bytes());
        (name, Dtype::I64, vec![ids.len()], bytes)
    });
    let owned: Vec<_> = floats.chain(ints).collect();
    let views = owned
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            Ok((*name, TensorView::new(*dtype, shape.clone(), bytes)?))
        })
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(|e| error(e.to_string()))?;
    let bytes = safetensors::serialize(views, None).map_err(|e| error(e.to_string()))?;
    write_whole(path, &bytes).map_err(|e| error(e.to_string()))
}

fn le_bytes<T, const N: usize>(values: &[T], write: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(write).collect()
}

/// Writes a file atomically, or writes to a device or pipe directly.
fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    match target(path) {
        WriteTarget::File(path) => djinn_wal::write_atomically(&path, bytes),
        WriteTarget::Folder => Err(ErrorKind::IsADirectory.into()),
        WriteTarget::Other => fs::OpenOptions::new()
            .write(true)
            .open(path)?
            .write_all(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Tensor, read_tensors, write_tensors};

    #[test]
    fn written_tensors_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.safetensors");
        let tensor = Tensor {
            shape: vec![2, 3],
            data: vec![1.0, -2.5, f32::MIN_POSITIVE, 0.0, 1e30, -0.0],
        };
        let tensors = BTreeMap::from([("a".to_owned(), tensor.clone())]);
        let ids = BTreeMap::from([("ids".to_owned(), vec![0, 7, u32::MAX])]);
        write_tensors(&path, &tensors, &ids).unwrap();
        let read = read_tensors(&path).unwrap();
        assert_eq!(read["a"], tensor);
        assert_eq!(read["ids"].shape, [3]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing/t.safetensors");
        let error = write_tensors(&path, &BTreeMap::new(), &BTreeMap::new()).unwrap_err();
        assert!(
            error.to_string().contains("missing/t.safetensors"),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
