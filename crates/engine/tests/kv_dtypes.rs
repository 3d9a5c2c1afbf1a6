//! Every family with every type of keys and values: a session gives the same bits in any batch,
//! chunk, memory and instruction set, and when its pages were in host memory and on disk.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::Path;

use common::{
    Bits, FAMILIES, How, KV_DTYPES, bits, family, golden, ids, open,
    paging::{Random, load_with_disk_in, random_request, result_of, tight},
    request, run, with_kv,
};
use djinn_device::cpu::Isa;
use djinn_engine::{Blueprint, EngineError, Request, Settings, Tier};
use djinn_types::{DType, KvDtype};
use djinn_weights::{MemorySettings, PlanError};

/// Requests of unlike lengths, half of them with captures. The longest one has four pages.
fn unlike(folder: &Path) -> Vec<Request> {
    let tokens = ids(&golden(folder)["input_ids"]);
    let session = |i: usize| {
        let prompt: Vec<u32> = tokens
            .iter()
            .cycle()
            .skip(i)
            .take(3 + 15 * i)
            .copied()
            .collect();
        let captures: &[&str] = if i % 2 == 1 { &["logits"] } else { &[] };
        request(folder, &prompt, captures, 4 + i)
    };
    (0..4).map(session).collect()
}

/// Results of the requests when each runs alone.
fn alone(folder: &Path, requests: &[Request], how: How) -> Vec<Bits> {
    let one = |request: &Request| bits(&run(folder, vec![request.clone()], how)[0]);
    requests.iter().map(one).collect()
}

fn together(folder: &Path, requests: &[Request], how: How) -> Vec<Bits> {
    let transcripts = run(folder, requests.to_vec(), how);
    transcripts.iter().map(bits).collect()
}

/// Smallest memory budget with weights that stream from host memory.
fn least(folder: &Path, requests: &[Request], how: How) -> MemorySettings {
    let model = open(folder);
    let settings = Settings::for_requests(&model, requests, how.rows).unwrap();
    let memory = MemorySettings {
        budget: 0,
        tier: Some(Tier::Host),
        ..how.memory
    };
    let drawn = Blueprint::draw(&model, &*how.backend(), settings, memory);
    let Err(EngineError::Plan(PlanError::Budget { least, .. })) = drawn else {
        panic!("{folder:?}: a budget of 0 was accepted")
    };
    MemorySettings {
        budget: least,
        ..memory
    }
}

#[test]
fn bits_do_not_depend_on_batch_chunk_memory_or_instruction_set() {
    for name in FAMILIES {
        let folder = family(name);
        let requests = unlike(&folder);
        let expect = KV_DTYPES.map(|kv_dtype| {
            let how = with_kv(kv_dtype);
            let expect = alone(&folder, &requests, how);
            let streamed = How {
                memory: least(&folder, &requests, how),
                ..how
            };
            let scalar = How {
                threads: Some(2),
                isa: Some(Isa::Scalar),
                ..how
            };
            for how in [How { rows: 7, ..how }, how, streamed, scalar] {
                let found = together(&folder, &requests, how);
                let (rows, budget, isa) = (how.rows, how.memory.budget, how.isa);
                assert!(
                    found == expect,
                    "{name} {kv_dtype}: {rows} rows, budget {budget}, {isa:?}"
                );
            }
            expect
        });
        // Each type rounds keys and values in its own way.
        assert!(
            expect[0] != expect[1] && expect[0] != expect[2] && expect[1] != expect[2],
            "{name}"
        );
    }
}

#[test]
fn bits_do_not_depend_on_paging() {
    for name in FAMILIES {
        let folder = family(name);
        let tokens = ids(&golden(&folder)["input_ids"]);
        let mut random = Random(3);
        let requests: Vec<Request> = (0..9)
            .map(|_| random_request(&folder, &tokens, &mut random))
            .collect();
        for kv_dtype in KV_DTYPES {
            let how = with_kv(kv_dtype);
            let expect: Vec<_> = requests
                .iter()
                .map(|request| result_of(&run(&folder, vec![request.clone()], how)[0]))
                .collect();
            let disk = tempfile::tempdir().unwrap();
            let settings = tight(&folder, &requests, 4, 3);
            let mut engine = load_with_disk_in(&folder, settings, 0, disk.path(), how.memory);
            let open = |request: &Request| engine.open(request.clone()).unwrap();
            let sessions: Vec<_> = requests.iter().map(open).collect();
            while !engine.is_idle() {
                engine.step().unwrap();
                engine.check_integrity();
            }
            for (id, expect) in sessions.into_iter().zip(expect) {
                let found = result_of(&engine.close(id).unwrap());
                assert!(found == expect, "{name} {kv_dtype}: {id}");
            }
            let paged = engine.paging_stats().unwrap();
            assert!(paged.copied_out.bytes > 0, "{name} {kv_dtype}");
        }
    }
}

#[test]
fn sixteen_bits_take_half_the_pages_of_thirty_two() {
    let folder = family("llama3");
    let drawn = |kv_dtype| {
        let model = open(&folder);
        let settings = Settings::for_sessions(&model.program, 2, 64, 64).unwrap();
        let how = with_kv(kv_dtype);
        Blueprint::draw(&model, &*how.backend(), settings, how.memory).unwrap()
    };
    let all = drawn(KvDtype::F32);
    for (choice, dtype) in [
        (KvDtype::Auto, DType::F16),
        (KvDtype::F16, DType::F16),
        (KvDtype::Bf16, DType::Bf16),
    ] {
        let half = drawn(choice);
        assert_eq!(half.kv_dtype(), dtype);
        assert_eq!(2 * half.page_bytes(), all.page_bytes(), "{choice}");
        assert_eq!(2 * half.footprint().kv, all.footprint().kv, "{choice}");
    }
}
