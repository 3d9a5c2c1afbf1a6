//! Every family with 16-bit weights, for which devices have their fastest kernels: results are as
//! close to those of transformers with 32-bit weights as rounding allows, and do not depend on
//! memory, chunk size and other sessions of the batch.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::{Path, PathBuf};

use common::{
    Bits, FAMILIES, How, bits, family, golden, ids, largest_difference, request, run, tensors,
};
use djinn_engine::{Blueprint, EngineError, Request, Settings, Tier};
use djinn_types::DType;
use djinn_weights::{MemorySettings, PlanError};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use tempfile::TempDir;

/// Writes a copy of a family's checkpoint with 16-bit weights.
fn rounded(name: &str, dtype: DType) -> (TempDir, PathBuf) {
    let temp = TempDir::new().unwrap();
    let folder = temp.path().join(name);
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(family(name).join("config.json"), folder.join("config.json")).unwrap();
    let file = std::fs::read(family(name).join("model.safetensors")).unwrap();
    let whole = SafeTensors::deserialize(&file).unwrap();
    let rounded: Vec<_> = whole
        .tensors()
        .into_iter()
        .map(|(name, tensor)| (name, tensor.shape().to_vec(), halved(tensor.data(), dtype)))
        .collect();
    let stored = match dtype {
        DType::F16 => Dtype::F16,
        _ => Dtype::BF16,
    };
    let views = rounded
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(stored, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    (temp, folder)
}

fn halved(bytes: &[u8], dtype: DType) -> Vec<u8> {
    let numbers = bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    let half = |x: f32| match dtype {
        DType::F16 => f16::from_f32(x).to_le_bytes(),
        _ => bf16::from_f32(x).to_le_bytes(),
    };
    numbers.flat_map(half).collect()
}

/// Largest allowed difference from the logits of 32-bit weights, relative to the largest logit.
fn bound(name: &str, dtype: DType) -> f32 {
    let whole = match dtype {
        DType::F16 => 5e-3,
        _ => 4e-2,
    };
    // If rounding selects another expert at one position, all later positions see it.
    if name == "mixtral" {
        4.0 * whole
    } else {
        whole
    }
}

#[test]
fn half_precision_logits_are_close_to_single_precision() {
    for name in FAMILIES {
        let golden = golden(&family(name));
        let expect = &golden["logits"].data;
        let largest = expect.iter().fold(0f32, |most, x| most.max(x.abs()));
        for dtype in [DType::F16, DType::Bf16] {
            let (_temp, folder) = rounded(name, dtype);
            let asked = request(&folder, &ids(&golden["input_ids"]), &["logits"], 0);
            let transcript = run(&folder, vec![asked], How::default()).remove(0);
            let found = &tensors(&transcript)["logits"];
            let share = largest_difference(found, expect, name == "mixtral") / largest;
            println!("{name} {dtype}: off by {share:.1e} of the largest logit");
            assert!(share <= bound(name, dtype), "{name} {dtype}: {share}");
        }
    }
}

/// Creates sixteen requests of different lengths. Some capture logits; the others allow the fast
/// paths.
fn unlike(folder: &Path) -> Vec<Request> {
    let session = |i: usize| {
        let prompt: Vec<u32> = (0..3 + 13 * i)
            .map(|t| ((t * 7 + i * 31) % 290) as u32)
            .collect();
        let captures: &[&str] = if i % 4 == 1 { &["logits"] } else { &[] };
        request(folder, &prompt, captures, 4 + i % 3)
    };
    (0..16).map(session).collect()
}

fn all_bits(folder: &Path, requests: &[Request], how: How) -> Vec<Bits> {
    let transcripts = run(folder, requests.to_vec(), how);
    transcripts.iter().map(bits).collect()
}

/// Returns memory budgets from the minimum to nearly the whole model.
fn budgets(folder: &Path, requests: &[Request]) -> Vec<u64> {
    let draw = |budget| {
        let model = common::open(folder);
        let settings = Settings::for_requests(&model, requests, Settings::ROWS).unwrap();
        Blueprint::draw(
            &model,
            &*How::default().backend(),
            settings,
            from_host(budget),
        )
    };
    let Err(EngineError::Plan(PlanError::Budget { least, .. })) = draw(0) else {
        panic!("{folder:?}: a budget of 0 was accepted")
    };
    let all = draw(u64::MAX).unwrap().footprint().total();
    (0..5)
        .map(|step| least + (all - least) * step / 5)
        .collect()
}

fn from_host(budget: u64) -> MemorySettings {
    MemorySettings {
        budget,
        tier: Some(Tier::Host),
        ..MemorySettings::default()
    }
}

#[test]
fn bits_do_not_depend_on_memory_chunk_or_batch() {
    for name in FAMILIES {
        for dtype in [DType::F16, DType::Bf16] {
            let (_temp, folder) = rounded(name, dtype);
            let requests = unlike(&folder);
            let alone = requests.iter().map(|request| {
                let one = std::slice::from_ref(request);
                all_bits(&folder, one, How::default()).remove(0)
            });
            let expect: Vec<Bits> = alone.collect();
            for rows in [16, 45, 512] {
                let how = How {
                    rows,
                    ..How::default()
                };
                let found = all_bits(&folder, &requests, how);
                assert!(
                    found == expect,
                    "{name} {dtype}: sixteen sessions in {rows} rows"
                );
            }
            for budget in budgets(&folder, &requests) {
                for prefetch in [true, false] {
                    let memory = MemorySettings {
                        prefetch,
                        ..from_host(budget)
                    };
                    let how = How {
                        memory,
                        ..How::default()
                    };
                    let found = all_bits(&folder, &requests, how);
                    assert!(
                        found == expect,
                        "{name} {dtype}: budget {budget}, prefetch {prefetch}"
                    );
                }
            }
        }
    }
}
