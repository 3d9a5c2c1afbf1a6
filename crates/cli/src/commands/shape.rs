//! `djinn shape`

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use djinn_model::{
    Model, Shape, Weights,
    program::{Program, TensorId},
    shapes,
};
use djinn_terminal::{Failure, say, say_json};
use djinn_types::{Size, text::table};
use serde_json::{Map, json};

use crate::{args::ShapeArgs, progress::Writing};

/// Bytes generated and written at once.
const CHUNK: usize = 8 << 20;

/// Lists shapes, or writes one.
pub fn shape(args: &ShapeArgs) -> Result<(), Failure> {
    match (&args.shape, &args.out) {
        (Some(shape), Some(out)) => write(shape, out),
        _ => list(args.json),
    }
}

fn list(as_json: bool) -> Result<(), Failure> {
    let models = shapes::names()
        .map(|name| Ok((name, Model::open(&format!("{}{name}", shapes::PREFIX))?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    if as_json {
        let rows = models.iter().map(|(name, model)| {
            let program = &model.program;
            json!({
                "shape": name, "family": program.family, "blocks": program.dims.blocks,
                "parameters": program.parameters(), "bytes": program.weight_bytes(),
            })
        });
        return say_json(&rows.collect());
    }
    let rows: Vec<Vec<String>> = models
        .iter()
        .map(|(name, model)| {
            let program = &model.program;
            vec![
                format!("{}{name}", shapes::PREFIX),
                program.family.to_owned(),
                program.dims.blocks.to_string(),
                format!("{:.2} B", program.parameters() as f64 / 1e9),
                Size(program.weight_bytes()).to_string(),
            ]
        })
        .collect();
    let header = ["shape", "family", "blocks", "parameters", "weights"];
    say(&table(&header, &rows))
}

/// Writes a shape as a checkpoint: all or nothing.
fn write(reference: &str, out: &Path) -> Result<(), Failure> {
    let reference = reference.strip_prefix(shapes::PREFIX).unwrap_or(reference);
    let shape = Shape::parse(reference)?;
    let (program, weights) = shape.build()?;
    if out.exists() {
        let out = out.display();
        return Err(Failure::Message(format!(
            "{out} exists already: name a new folder"
        )));
    }
    let part = beside(out);
    let fault = |error: Failure| match error {
        Failure::Message(error) => Failure::Message(format!("{}: {error}", out.display())),
        other => other,
    };
    fs::create_dir(&part).map_err(|error| fault(error.into()))?;
    let written =
        write_files(&shape, &program, &weights, &part).and_then(|()| Ok(fs::rename(&part, out)?));
    if let Err(error) = written {
        // An incomplete checkpoint is removed.
        let _ = fs::remove_dir_all(&part);
        return Err(fault(error));
    }
    let bytes = Size(program.weight_bytes());
    say(&format!(
        "{} of weights written to {}\n",
        bytes,
        out.display()
    ))
}

/// Temporary folder of this process, beside the final one.
fn beside(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    name.into()
}

fn write_files(
    shape: &Shape,
    program: &Program,
    weights: &dyn Weights,
    folder: &Path,
) -> Result<(), Failure> {
    let config = format!("{:#}\n", shape.config_json());
    fs::write(folder.join("config.json"), config)?;
    let mut out = BufWriter::new(File::create(folder.join("model.safetensors"))?);
    let header = header(program);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    let bar = Writing::new(shape.name, program.weight_bytes());
    let mut buffer = vec![0; CHUNK];
    for (id, tensor) in program.tensors.iter().enumerate() {
        let bytes = tensor.bytes();
        for offset in (0..bytes).step_by(CHUNK) {
            let part = &mut buffer[..(bytes - offset).min(CHUNK as u64) as usize];
            weights.read_tensor(TensorId(id), offset, part)?;
            out.write_all(part)?;
            bar.advance(part.len() as u64);
        }
    }
    out.flush()?;
    Ok(out.get_ref().sync_all()?)
}

/// Header of a safetensors file, padded so that tensors start at a multiple of eight bytes.
fn header(program: &Program) -> String {
    let mut tensors = Map::new();
    let mut start = 0;
    for tensor in &program.tensors {
        let end = start + tensor.bytes();
        let dtype = tensor.dtype.to_string().to_uppercase();
        let entry = json!({ "dtype": dtype, "shape": tensor.shape, "data_offsets": [start, end] });
        tensors.insert(tensor.name.clone(), entry);
        start = end;
    }
    tensors.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let text = serde_json::Value::Object(tensors).to_string();
    let padded = text.len().next_multiple_of(8);
    format!("{text:<padded$}")
}
