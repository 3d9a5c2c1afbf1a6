//! The model of an experiment: where it is stored, and how the server can load it.

use std::path::{Path, PathBuf};

use djinn_client::Client;
use djinn_hub::Resolved;
use djinn_model::{Model, Shape, shapes};
use serde_json::Value;

use crate::error::EvalError;

/// The name of the model that ships with Djinn.
const BUNDLED: &str = "bundled";

/// The model of an experiment, as this machine and the server refer to it.
#[derive(Clone, Debug)]
pub struct ModelSource {
    /// Name in the configuration.
    pub name: String,
    /// Folder on this machine; `None` for shapes and for models on the server only.
    pub folder: Option<PathBuf>,
    /// Contents of `config.json`, for baselines.
    pub config: Value,
    /// Data type of the weights, by its PyTorch name.
    pub dtype: String,
    /// Size of the weights in bytes; 0 if unknown.
    pub weights_bytes: u64,
    /// Reference under which the server loads the model.
    reference: String,
}

impl ModelSource {
    /// Finds the model on this machine. For a remote server, a model that is not found here is referred to by
    /// name.
    pub fn find(
        name: &str,
        dtype: Option<&str>,
        bundled: &Path,
        in_process: bool,
    ) -> Result<Self, EvalError> {
        if name == BUNDLED || name.is_empty() {
            return Self::of_folder(BUNDLED, bundled, dtype);
        }
        let name = &with_dtype(name, dtype);
        match djinn_hub::resolve(name) {
            Ok(Resolved::Folder(folder)) => Self::of_folder(name, &folder, dtype),
            Ok(Resolved::Shape(shape)) => Self::of_shape(&shape),
            Err(error) if in_process => Err(error.into()),
            Err(_) => Ok(ModelSource {
                name: name.clone(),
                folder: None,
                config: Value::Null,
                dtype: dtype.unwrap_or_default().to_owned(),
                weights_bytes: 0,
                reference: name.clone(),
            }),
        }
    }

    fn of_shape(reference: &str) -> Result<Self, EvalError> {
        let shape = Shape::parse(reference.trim_start_matches(shapes::PREFIX))?;
        let config = shape.config_json();
        let (program, _) = shape.build()?;
        Ok(ModelSource {
            name: reference.to_owned(),
            folder: None,
            dtype: config["torch_dtype"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            config,
            weights_bytes: program.weight_bytes(),
            reference: reference.to_owned(),
        })
    }

    fn of_folder(name: &str, folder: &Path, asked: Option<&str>) -> Result<Self, EvalError> {
        let folder = folder.canonicalize().map_err(|error| EvalError::System {
            what: folder.display().to_string(),
            error,
        })?;
        let text = folder.to_string_lossy().into_owned();
        let model = Model::open(&text)?;
        let path = folder.join("config.json");
        let config = std::fs::read_to_string(&path).map_err(|error| EvalError::System {
            what: path.display().to_string(),
            error,
        })?;
        let config: Value = serde_json::from_str(&config).map_err(|error| EvalError::System {
            what: path.display().to_string(),
            error: error.into(),
        })?;
        let dtype = torch_name(&model.program.tensors[0].dtype.to_string());
        if asked.is_some_and(|asked| asked != dtype) {
            let asked = asked.unwrap_or_default();
            return Err(EvalError::Setting {
                key: "experiment.model.dtype",
                reason: format!(
                    "{asked} was requested, but the weights of {name} are stored as {dtype}, and Djinn \
                     computes with the stored type; remove the key or set it to {dtype}"
                ),
            });
        }
        Ok(ModelSource {
            name: name.to_owned(),
            config,
            dtype: dtype.to_owned(),
            weights_bytes: model.program.weight_bytes(),
            folder: Some(folder),
            reference: text,
        })
    }

    /// Returns the reference under which the server loads the model. The files of a folder are first sent
    /// to a remote server.
    pub async fn upload(&self, client: &Client, in_process: bool) -> Result<String, EvalError> {
        match &self.folder {
            Some(folder) if !in_process => Ok(client.push(folder, |_| {}).await?.reference),
            _ => Ok(self.reference.clone()),
        }
    }

    /// Whether the weights are synthetic, so that baselines have other weights.
    pub fn is_synthetic(&self) -> bool {
        self.folder.is_none()
    }
}

/// Adds the data type to the name of a shape.
fn with_dtype(name: &str, dtype: Option<&str>) -> String {
    let short = match dtype {
        Some("float16") => "f16",
        Some("bfloat16") => "bf16",
        Some("float32") => "f32",
        _ => return name.to_owned(),
    };
    match name.starts_with(shapes::PREFIX) && !name.contains("dtype=") {
        true if name.contains('?') => format!("{name}&dtype={short}"),
        true => format!("{name}?dtype={short}"),
        false => name.to_owned(),
    }
}

fn torch_name(dtype: &str) -> &'static str {
    match dtype {
        "f16" => "float16",
        "bf16" => "bfloat16",
        _ => "float32",
    }
}

#[cfg(test)]
mod tests {
    use super::with_dtype;

    #[test]
    fn the_dtype_is_added_to_shapes_only() {
        let check = |name: &str, dtype: Option<&str>, expect: &str| {
            assert_eq!(with_dtype(name, dtype), expect);
        };
        check("shape:gpt2", Some("float16"), "shape:gpt2?dtype=f16");
        check(
            "shape:gpt2?layers=2",
            Some("float32"),
            "shape:gpt2?layers=2&dtype=f32",
        );
        check(
            "shape:gpt2?dtype=bf16",
            Some("float16"),
            "shape:gpt2?dtype=bf16",
        );
        check("org/name", Some("float16"), "org/name");
        check("shape:gpt2", None, "shape:gpt2");
    }
}
