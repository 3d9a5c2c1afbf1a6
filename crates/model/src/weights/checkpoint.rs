//! Model folders in the format of Hugging Face: `config.json` and one or more safetensors files.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};

use djinn_types::DType;
use serde_json::Value;

use super::files::FileWeights;
use super::safetensors::{Header, TensorEntry, header_bytes, read_header};
use super::slow_file::SlowFile;
use super::source::Extent;
use crate::config::{RawConfig, dtype_named, read_json};
use crate::error::{IndexProblem, ModelError};
use crate::program::Program;

/// A model folder with open files and parsed headers.
pub struct CheckpointFolder {
    config: RawConfig,
    files: Vec<SlowFile>,
    /// File and header entry of each tensor.
    tensors: HashMap<String, (usize, TensorEntry)>,
}

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

impl CheckpointFolder {
    /// Opens a model folder.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        if !folder.is_dir() {
            return Err(ModelError::NoFolder {
                path: folder.to_owned(),
            });
        }
        if !folder.join(CONFIG).is_file() {
            return Err(no_config(folder));
        }
        let mut checkpoint = CheckpointFolder {
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

    /// Returns the configuration.
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

    /// Opens every shard that the index names, and takes the listed tensors from each.
    fn open_shards(&mut self, folder: &Path) -> Result<(), ModelError> {
        let index = folder.join(INDEX);
        for (shard, names) in shards(&index, &read_json(&index)?)? {
            let fault = |problem: IndexProblem| ModelError::Index {
                path: index.clone(),
                problem,
            };
            let path = folder.join(&shard);
            if !path.is_file() {
                return Err(fault(IndexProblem::MissingShard { shard }));
            }
            let file = self.files.len();
            let mut header = self.open_file(path)?;
            for name in names {
                let Some(entry) = header.remove(&name) else {
                    return Err(fault(IndexProblem::MissingTensor {
                        tensor: name,
                        shard,
                    }));
                };
                self.tensors.insert(name, (file, entry));
            }
        }
        Ok(())
    }

    /// Finds every tensor of `program`, checks its shape, sets its dtype in the program, and
    /// returns the weights.
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
            let dtype = supported_dtype(&entry.dtype).ok_or_else(|| ModelError::DType {
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

    fn find(&self, name: &str) -> Result<(usize, &TensorEntry), ModelError> {
        aliases(name)
            .iter()
            .find_map(|alias| self.tensors.get(alias))
            .map(|(file, entry)| (*file, entry))
            .ok_or_else(|| ModelError::NoTensor {
                tensor: name.to_owned(),
                files: self.file_names(),
            })
    }

    /// Returns the names of the files for an error: all names of up to three files, the first and
    /// the last name of more.
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

/// Returns the names that checkpoints use for the tensor that a family calls `name`: with and
/// without the prefix of the base model, and in Mixtral's newer spelling.
fn aliases(name: &str) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    for prefix in ["model.", "transformer."] {
        names.extend(name.strip_prefix(prefix).map(str::to_owned));
        names.push(format!("{prefix}{name}"));
    }
    for i in 0..names.len() {
        if names[i].contains(".block_sparse_moe.") {
            names.push(names[i].replace(".block_sparse_moe.", ".mlp."));
        }
    }
    names
}

/// Returns the dtype with a name from a safetensors header, if Djinn computes with it.
fn supported_dtype(dtype: &str) -> Option<DType> {
    matches!(dtype, "F32" | "F16" | "BF16")
        .then(|| dtype_named(dtype))
        .flatten()
}

/// Returns the tensors of each shard according to the index, in order of shard names.
fn shards(path: &Path, index: &Value) -> Result<Vec<(String, Vec<String>)>, ModelError> {
    let fault = |problem: IndexProblem| ModelError::Index {
        path: path.to_owned(),
        problem,
    };
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        return Err(fault(IndexProblem::NoWeightMap));
    };
    let mut shards: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (tensor, shard) in map {
        let Some(shard) = shard.as_str() else {
            return Err(fault(IndexProblem::NotAFileName {
                tensor: tensor.clone(),
                found: shard.to_string(),
            }));
        };
        if !stays_inside(shard) {
            return Err(fault(IndexProblem::OutsideFolder {
                tensor: tensor.clone(),
                shard: shard.to_owned(),
            }));
        }
        shards.entry(shard).or_default().push(tensor.clone());
    }
    if shards.is_empty() {
        return Err(fault(IndexProblem::EmptyWeightMap));
    }
    Ok(shards
        .into_iter()
        .map(|(shard, tensors)| (shard.to_owned(), tensors))
        .collect())
}

/// Returns whether a file name from an index stays inside the model folder.
fn stays_inside(shard: &str) -> bool {
    let path = Path::new(shard);
    // Backslashes separate folders on other systems, so a shard's name must not contain one.
    !shard.is_empty()
        && !shard.contains(['\\', '\0'])
        && path
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

/// Returns the error for a folder without `config.json`. Some unsupported formats have no such
/// file.
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
        what: "model.safetensors or model.safetensors.index.json",
    })
}

/// Returns an error if the folder holds weights in an unsupported format.
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
