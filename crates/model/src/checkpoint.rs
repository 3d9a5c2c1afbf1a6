//! A checkpoint as it lies on disk after a Hugging Face download: `config.json` and
//! one or many safetensors files.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use crate::slow_file::SlowFile;
use serde_json::Value;

use crate::config::{dtype_named, read_json};
use crate::families::aliases;
use crate::program::Program;
use crate::safetensors::{Entry, Header, header_bytes, read_header};
use crate::weights::{Extent, FileWeights};
use crate::{ModelError, RawConfig};

/// A folder whose files are open and whose headers have been read.
pub struct Checkpoint {
    config: RawConfig,
    files: Vec<SlowFile>,
    /// Each tensor's file and place.
    tensors: HashMap<String, (usize, Entry)>,
}

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

impl Checkpoint {
    /// Opens a folder.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        if !folder.is_dir() {
            return Err(ModelError::NoFolder {
                path: folder.to_owned(),
            });
        }
        if !folder.join(CONFIG).is_file() {
            return Err(no_config(folder));
        }
        let mut checkpoint = Checkpoint {
            config: RawConfig::read(&folder.join(CONFIG))?,
            files: Vec::new(),
            tensors: HashMap::new(),
        };
        if folder.join(SINGLE).is_file() {
            let header = checkpoint.open_file(folder.join(SINGLE))?;
            checkpoint.tensors = header
                .into_iter()
                .map(|(name, entry)| (name, (0, entry)))
                .collect();
        } else if folder.join(INDEX).is_file() {
            checkpoint.open_shards(folder)?;
        } else {
            return Err(no_weights(folder));
        }
        Ok(checkpoint)
    }

    /// The configuration.
    pub fn config(&self) -> &RawConfig {
        &self.config
    }

    /// Opens a file and reads its header.
    fn open_file(&mut self, path: PathBuf) -> Result<Header, ModelError> {
        let fault = |source| ModelError::Io {
            path: path.clone(),
            source,
        };
        let file = SlowFile::open(&path).map_err(fault)?;
        let len = file.bytes();
        let mut first = vec![0; len.min(8) as usize];
        file.read(0, &mut first).map_err(fault)?;
        let mut start = vec![0; header_bytes(&path, &first, len)? as usize];
        file.read(0, &mut start).map_err(fault)?;
        let header = read_header(&path, &start, len)?;
        self.files.push(file);
        Ok(header)
    }

    /// Opens every shard the index names and takes from each what the index says.
    fn open_shards(&mut self, folder: &Path) -> Result<(), ModelError> {
        let index = folder.join(INDEX);
        for (shard, names) in shards(&index, &read_json(&index)?)? {
            let fault = |problem: String| ModelError::Index {
                path: index.clone(),
                problem,
            };
            let path = folder.join(&shard);
            if !path.is_file() {
                return Err(fault(format!("shard '{shard}' is not in the folder")));
            }
            let file = self.files.len();
            let mut header = self.open_file(path)?;
            for name in names {
                let Some(entry) = header.remove(&name) else {
                    return Err(fault(format!(
                        "tensor '{name}' should be in '{shard}', which does not have it"
                    )));
                };
                self.tensors.insert(name, (file, entry));
            }
        }
        Ok(())
    }

    /// Finds every tensor of a program, checks its shape, takes over its dtype, and
    /// gives what reads them.
    pub fn resolve(self, program: &mut Program) -> Result<FileWeights, ModelError> {
        let mut extents = Vec::with_capacity(program.tensors.len());
        for spec in &mut program.tensors {
            let (file, entry) = self.find(&spec.name)?;
            let path = || self.files[file].path().to_owned();
            if entry.shape != spec.shape {
                return Err(ModelError::Shape {
                    path: path(),
                    tensor: spec.name.clone(),
                    expected: spec.shape.clone(),
                    found: entry.shape.clone(),
                });
            }
            let dtype = stored(&entry.dtype).ok_or_else(|| ModelError::DType {
                path: path(),
                tensor: spec.name.clone(),
                found: entry.dtype.clone(),
            })?;
            spec.dtype = dtype;
            extents.push(Extent {
                file,
                offset: entry.range.start,
                bytes: entry.range.end - entry.range.start,
            });
        }
        Ok(FileWeights::new(self.files, extents))
    }

    fn find(&self, name: &str) -> Result<(usize, &Entry), ModelError> {
        aliases(name)
            .iter()
            .find_map(|alias| self.tensors.get(alias))
            .map(|(file, entry)| (*file, entry))
            .ok_or_else(|| ModelError::NoTensor {
                tensor: name.to_owned(),
                files: self.file_names(),
            })
    }

    /// The files, for an error: all of a few, the first and last of many.
    fn file_names(&self) -> String {
        let name = |file: &SlowFile| file.path().display().to_string();
        match &self.files[..] {
            [first, _, .., last] if self.files.len() > 3 => format!(
                "{} to {} ({} files)",
                name(first),
                name(last),
                self.files.len()
            ),
            files => files.iter().map(name).collect::<Vec<_>>().join(", "),
        }
    }
}

/// The dtypes that are computed.
fn stored(dtype: &str) -> Option<djinn_types::DType> {
    matches!(dtype, "F32" | "F16" | "BF16")
        .then(|| dtype_named(dtype))
        .flatten()
}

/// The index by shard, in order of shard names: which tensors to take from each.
fn shards(path: &Path, index: &Value) -> Result<Vec<(String, Vec<String>)>, ModelError> {
    let fault = |problem: String| ModelError::Index {
        path: path.to_owned(),
        problem,
    };
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        return Err(fault("no 'weight_map' of tensors to shards".to_owned()));
    };
    let mut shards: std::collections::BTreeMap<&str, Vec<String>> = Default::default();
    for (tensor, shard) in map {
        let Some(shard) = shard.as_str() else {
            return Err(fault(format!(
                "tensor '{tensor}': expected a file name, found {shard}"
            )));
        };
        if !stays_inside(shard) {
            return Err(fault(format!(
                "tensor '{tensor}': shard '{shard}' is outside the folder"
            )));
        }
        shards.entry(shard).or_default().push(tensor.clone());
    }
    if shards.is_empty() {
        return Err(fault("'weight_map' is empty".to_owned()));
    }
    Ok(shards
        .into_iter()
        .map(|(shard, tensors)| (shard.to_owned(), tensors))
        .collect())
}

/// Whether a name from an index, joined to the folder, stays in it.
fn stays_inside(shard: &str) -> bool {
    let path = Path::new(shard);
    // Backslashes part folders elsewhere, so they never belong in a shard's name.
    !shard.is_empty()
        && !shard.contains(['\\', '\0'])
        && path
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

/// A folder without `config.json`: perhaps it is of a kind that has none.
fn no_config(folder: &Path) -> ModelError {
    match other_format(folder) {
        Some(error @ ModelError::Format { .. }) => error,
        _ => ModelError::NoFile {
            folder: folder.to_owned(),
            what: CONFIG,
        },
    }
}

fn no_weights(folder: &Path) -> ModelError {
    other_format(folder).unwrap_or(ModelError::NoFile {
        folder: folder.to_owned(),
        what: "model.safetensors and no model.safetensors.index.json",
    })
}

/// Weights in a format that is not read.
fn other_format(folder: &Path) -> Option<ModelError> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    let ends = |ending: &str| names.iter().find(|name| name.ends_with(ending));
    let (found, advice) = if let Some(name) = ends(".gguf") {
        (name, "download the model's safetensors files instead")
    } else {
        let name = ends(".bin").or(ends(".pt")).or(ends(".pth"))?;
        (name, "convert them to safetensors")
    };
    Some(ModelError::Format {
        folder: folder.to_owned(),
        found: found.clone(),
        advice,
    })
}
