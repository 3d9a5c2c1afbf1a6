//! The model an experiment is about.

use std::path::{Path, PathBuf};

use djinn_client::Client;
use djinn_hub::Resolved;
use djinn_model::{Model, Shape, shapes};
use serde_json::Value;

use crate::EvalError;

/// The name of the model that ships with Djinn.
const BUNDLED: &str = "bundled";

/// A model, as this machine and the server know it.
#[derive(Clone, Debug)]
pub struct Subject {
    /// As it was named.
    pub name: String,
    /// Where it lies here, if it does: a shape lies nowhere.
    pub folder: Option<PathBuf>,
    /// Its configuration, for programs that build it themselves.
    pub config: Value,
    /// What its weights are in, as PyTorch calls it.
    pub dtype: String,
    /// Bytes of its weights.
    pub weights_bytes: u64,
    /// What the server is told to load.
    register: String,
}

impl Subject {
    /// Finds a model here. One that is only on the server is known by its name alone.
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
            Err(_) => Ok(Subject {
                name: name.clone(),
                folder: None,
                config: Value::Null,
                dtype: dtype.unwrap_or_default().to_owned(),
                weights_bytes: 0,
                register: name.clone(),
            }),
        }
    }

    fn of_shape(reference: &str) -> Result<Self, EvalError> {
        let shape = Shape::parse(reference.trim_start_matches(shapes::PREFIX))?;
        let config = shape.config_json();
        let (program, _) = shape.build()?;
        Ok(Subject {
            name: reference.to_owned(),
            folder: None,
            dtype: config["torch_dtype"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            config,
            weights_bytes: program.weight_bytes(),
            register: reference.to_owned(),
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
        let config: Value = serde_json::from_str(&config)
            .map_err(|error| EvalError::Asked(format!("{}: {error}", path.display())))?;
        let dtype = torch_name(&model.program.tensors[0].dtype.to_string());
        if asked.is_some_and(|asked| asked != dtype) {
            let asked = asked.unwrap_or_default();
            return Err(EvalError::Asked(format!(
                "experiment.model.dtype: {name} has weights in {dtype}, and Djinn computes them as they \
                 are stored, not in {asked}"
            )));
        }
        Ok(Subject {
            name: name.to_owned(),
            config,
            dtype: dtype.to_owned(),
            weights_bytes: model.program.weight_bytes(),
            folder: Some(folder),
            register: text,
        })
    }

    /// What the server is told to load: where it cannot see the folder, the files are sent first.
    pub async fn reference(&self, client: &Client, in_process: bool) -> Result<String, EvalError> {
        match &self.folder {
            Some(folder) if !in_process => Ok(client.push(folder, |_| {}).await?.reference),
            _ => Ok(self.register.clone()),
        }
    }

    /// Whether its weights are made up, so that no two programs have the same.
    pub fn is_made_up(&self) -> bool {
        self.folder.is_none()
    }
}

/// A shape with the dtype that was asked for.
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
    fn a_shape_takes_the_dtype() {
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
