//! Benchmark `operations`: every operation at the shapes of a model.

use djinn_device::{
    ALIGN, Attention, Backend, Device, DeviceError, Draw, KvLayer, NormParams, PassLimits, Phase,
    Rows, Span, Stream, View, Weight,
};
use djinn_model::{Model, program::Dims};
use djinn_types::text::table;
use djinn_types::{Activation, DType, NormKind, Order};
use serde_json::json;

use crate::{BenchError, BenchReport, sample::median};

/// Bytes over which operands rotate: more than a card's cache holds.
const SPREAD: u64 = 1 << 30;
/// Number of measurements of each operation.
const REPEATS: usize = 5;
/// Largest number of rows that are measured as generated tokens, and also as the end of a prompt.
const FEW_ROWS: usize = 64;
/// Tokens of a KV page.
const PAGE_TOKENS: usize = 16;

/// Options of the benchmark `operations`.
pub struct OperationOptions {
    /// Numbers of rows to measure each operation with.
    pub rows: Vec<usize>,
    /// Keys that each generated token attends to.
    pub context: usize,
}

/// Time of one operation at one shape.
struct OperationMeasurement {
    what: String,
    seconds: f64,
    bytes: f64,
    flops: f64,
}

/// Times operations at the shapes of a model.
pub fn operations(
    options: &OperationOptions,
    backend: &dyn Backend,
    model: &Model,
) -> Result<BenchReport, BenchError> {
    let dims = &model.program.dims;
    let dtype = model.program.tensors.iter().map(|t| t.dtype).next();
    let bench = OperationBench::new(options, backend, dims, dtype.unwrap_or(DType::F16))?;
    let mut measured = Vec::new();
    for &rows in &options.rows {
        for phase in phases(rows) {
            measured.extend(bench.products(dims, rows, phase)?);
            measured.push(bench.attention(dims, rows, options.context, phase)?);
        }
        measured.extend(bench.elementwise(dims, rows)?);
    }
    // Sampling runs last, since its logits overwrite the weights.
    for &rows in options.rows.iter().filter(|rows| **rows <= FEW_ROWS) {
        measured.extend(bench.sampling(dims, rows)?);
    }
    let json: Vec<_> = measured
        .iter()
        .map(|m| json!({"what": m.what, "seconds": m.seconds, "bytes": m.bytes, "flops": m.flops}))
        .collect();
    let line = |m: &OperationMeasurement| {
        vec![
            m.what.clone(),
            format!("{:.1} µs", m.seconds * 1e6),
            rate(m.bytes / m.seconds, "B/s"),
            rate(m.flops / m.seconds, "FLOP/s"),
        ]
    };
    let lines: Vec<Vec<String>> = measured.iter().map(line).collect();
    let head = ["operation", "time", "memory", "arithmetic"];
    let device = bench.device.info().detail;
    let text = format!("{device}\n{}", table(&head, &lines));
    Ok(BenchReport::new(
        text,
        json!({"device": device, "operations": json}),
    ))
}

/// Phases in which a pass has this number of rows.
fn phases(rows: usize) -> Vec<Phase> {
    match rows {
        ..=FEW_ROWS => vec![Phase::Generated, Phase::Prompt],
        _ => vec![Phase::Prompt],
    }
}

/// Rate in units of 10⁹ or 10¹².
fn rate(per_s: f64, unit: &str) -> String {
    match per_s {
        rate if rate < 1e12 => format!("{:.1} G{unit}", rate / 1e9),
        rate => format!("{:.2} T{unit}", rate / 1e12),
    }
}

/// Device with memory for operands of every shape.
struct OperationBench {
    device: std::sync::Arc<dyn Device>,
    dtype: DType,
    /// Offset of the operands that rotate.
    weights: u64,
}

impl OperationBench {
    fn new(
        options: &OperationOptions,
        backend: &dyn Backend,
        dims: &Dims,
        dtype: DType,
    ) -> Result<Self, BenchError> {
        let rows = options.rows.iter().copied().max().unwrap_or(1);
        let context = options.context.max(rows).next_multiple_of(PAGE_TOKENS);
        let width = dims.d_mlp.max(dims.d_model);
        let scratch = PassLimits {
            rows,
            width,
            generated: rows.min(FEW_ROWS),
            heads: dims.heads,
            d_head: dims.d_head,
            keys: context,
        };
        let activations = 8 * rows as u64 * width as u64 * 4;
        let weights = activations.next_multiple_of(ALIGN) + (1 << 20);
        let pages = (rows.min(FEW_ROWS) * context * 2 * dims.kv_heads * dims.d_head * 2) as u64;
        let slab = weights + SPREAD + (2 * width * width * 2) as u64 + pages;
        let device = backend.open(slab, scratch)?;
        let bench = OperationBench {
            device,
            dtype,
            weights,
        };
        bench.fill(slab)?;
        Ok(bench)
    }

    /// Fills memory with numbers near one: a card's clock depends on the values it multiplies.
    fn fill(&self, bytes: u64) -> Result<(), BenchError> {
        let chunk = 64u64 << 20;
        let mut state = 1u32;
        for offset in (0..bytes).step_by(chunk as usize) {
            let span = Span {
                offset,
                bytes: chunk.min(bytes - offset),
            };
            self.device.load(span, &mut |bytes| {
                for pair in bytes.chunks_exact_mut(2) {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // These exponents are of numbers near one in f16 and in bf16.
                    let bits = (state >> 16) as u16 & 0x83ff | 0x2c00;
                    pair.copy_from_slice(&bits.to_le_bytes());
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Matrix of activations with this index.
    fn activation(&self, number: u64, rows: usize, cols: usize) -> View {
        let bytes = (rows * cols * 4) as u64;
        View::new(
            number * bytes.next_multiple_of(ALIGN),
            DType::F32,
            rows,
            cols,
        )
    }

    /// Measures the median time of one launch of many.
    fn time(
        &self,
        what: String,
        bytes: f64,
        flops: f64,
        mut run: impl FnMut(u64) -> Result<(), DeviceError>,
    ) -> Result<OperationMeasurement, BenchError> {
        let launches = ((2e10 / bytes.max(1.0)) as u64).clamp(4, 200);
        let mut times = Vec::new();
        for turn in 0..=REPEATS as u64 {
            let from = self.device.record(Stream::Compute)?;
            for i in 0..launches {
                run(turn * launches + i)?;
            }
            let to = self.device.record(Stream::Compute)?;
            self.device.wait_here(&to)?;
            times.push(self.device.seconds_between(&from, &to)? / launches as f64);
        }
        Ok(OperationMeasurement {
            what,
            // The first measurement warms up.
            seconds: median(&mut times[1..].to_vec()),
            bytes,
            flops,
        })
    }

    fn products(
        &self,
        dims: &Dims,
        rows: usize,
        phase: Phase,
    ) -> Result<Vec<OperationMeasurement>, BenchError> {
        let shapes = [
            (dims.d_model, dims.d_model),
            (dims.d_model, dims.d_mlp),
            (dims.d_mlp, dims.d_model),
        ];
        let one = |(inputs, outputs): (usize, usize)| {
            let size = self.dtype.bytes();
            let bytes = ((inputs * outputs * size) as u64).next_multiple_of(ALIGN);
            let count = (SPREAD / bytes).max(1);
            let x = self.activation(0, rows, inputs);
            // Lies behind the inputs, which are at most three times as wide.
            let out = self.activation(4, rows, outputs);
            let flops = 2.0 * (rows * inputs * outputs) as f64;
            let what = format!("linear {phase:?} [{rows}, {inputs}] to {outputs}");
            let weight = |i: u64| Weight {
                view: View::new(
                    self.weights + i % count * bytes,
                    self.dtype,
                    outputs,
                    inputs,
                ),
                order: Order::OutIn,
            };
            self.device.warm_up(weight(0))?;
            self.time(what, bytes as f64, flops, |i| {
                self.device.linear(x, weight(i), None, out, phase)
            })
        };
        shapes.into_iter().map(one).collect()
    }

    /// Uploads a matrix of ids to an offset of the slab.
    fn ids(&self, offset: u64, cols: usize, ids: &[i32]) -> Result<View, BenchError> {
        let view = View::new(offset, DType::I32, ids.len() / cols, cols);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.device.upload(Stream::Compute, view.span(), &bytes)?;
        Ok(view)
    }

    fn attention(
        &self,
        dims: &Dims,
        rows: usize,
        context: usize,
        phase: Phase,
    ) -> Result<OperationMeasurement, BenchError> {
        let prompt = phase == Phase::Prompt;
        // Few rows of a prompt are its end; many rows are all of it.
        let keys = if rows > FEW_ROWS {
            rows
        } else {
            context.max(rows)
        };
        let (sessions, pages) = (if prompt { 1 } else { rows }, keys.div_ceil(PAGE_TOKENS));
        let (heads, d_head) = (dims.heads, dims.d_head);
        let mut kv = KvLayer {
            offset: self.weights,
            page_bytes: 0,
            pages: sessions * pages,
            page_tokens: PAGE_TOKENS,
            kv_heads: dims.kv_heads,
            d_head,
            dtype: self.dtype,
        };
        kv.page_bytes = kv.layer_bytes();
        let row = |r: usize| match phase {
            Phase::Prompt => (0, keys - rows + r),
            Phase::Generated => (r, keys - 1),
        };
        let positions: Vec<i32> = (0..rows).map(|r| row(r).1 as i32).collect();
        let sequences: Vec<i32> = (0..rows).map(|r| row(r).0 as i32).collect();
        let tables: Vec<i32> = (0..(sessions * pages) as i32).collect();
        // Attention uses two of the eight activations; the ids lie in the last.
        let ids_at = |number: u64| self.activation(7, rows, dims.d_mlp).offset + (number << 18);
        let rows_of = Rows {
            positions: self.ids(ids_at(0), 1, &positions)?,
            sequences: self.ids(ids_at(1), 1, &sequences)?,
            tables: self.ids(ids_at(2), pages, &tables)?,
            phase,
        };
        let how = Attention {
            heads,
            scale: 0.1,
            window: None,
        };
        let q = self.activation(0, rows, heads * d_head);
        let out = self.activation(1, rows, heads * d_head);
        let bytes = (sessions as u64 * pages as u64 * kv.page_bytes) as f64;
        let pairs = if rows > FEW_ROWS {
            rows * rows / 2
        } else {
            rows * keys
        };
        let flops = 4.0 * (pairs * heads * d_head) as f64;
        let what = format!("attend {phase:?} {rows} rows, {keys} keys");
        self.time(what, bytes, flops, |_| {
            self.device.attend(q, rows_of, kv, how, out)
        })
    }

    /// Times greedy sampling, sampling from all tokens, and sampling with filters.
    fn sampling(&self, dims: &Dims, rows: usize) -> Result<Vec<OperationMeasurement>, BenchError> {
        let logits = View::new(self.weights, DType::F32, rows, dims.vocab);
        let mut state = 1u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as f32 / (1 << 24) as f32
        };
        // The values are spread as a model's logits are.
        let numbers = (0..rows * dims.vocab)
            .flat_map(|_| (12.0 * (uniform() + uniform() + uniform() - 1.5)).to_le_bytes());
        let bytes: Vec<u8> = numbers.collect();
        self.device.upload(Stream::Compute, logits.span(), &bytes)?;
        let draw = |temperature, top_k, top_p| Draw {
            temperature,
            top_k,
            top_p,
            min_p: 0.0,
            at: 1 << 63,
        };
        let ways = [
            ("the largest", Draw::LARGEST),
            ("any", draw(1.0, 0, 1.0)),
            ("one of 40, top 0.9", draw(1.0, 40, 0.9)),
        ];
        let draws = View::new(logits.span().end(), DType::I32, rows, Draw::WORDS);
        let chosen = View::new(draws.span().end(), DType::I32, rows, 1);
        let one = |(name, draw): (&str, Draw)| {
            let words = draw.words().repeat(rows);
            let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.device.upload(Stream::Compute, draws.span(), &words)?;
            let what = format!("sample [{rows}, {}] {name}", dims.vocab);
            self.time(what, logits.span().bytes as f64, 0.0, |_| {
                self.device.sample(logits, draws, chosen)
            })
        };
        ways.into_iter().map(one).collect()
    }

    fn elementwise(
        &self,
        dims: &Dims,
        rows: usize,
    ) -> Result<Vec<OperationMeasurement>, BenchError> {
        let [x, y, out] = [0, 1, 2].map(|i| self.activation(i, rows, dims.d_model));
        let [gate, up, post] = [0, 1, 2].map(|i| self.activation(i, rows, dims.d_mlp));
        let weight = View::new(self.weights, self.dtype, 1, dims.d_model);
        let bytes = |view: View, times: usize| (times * view.rows * view.cols * 4) as f64;
        let norm = format!("sum and norm [{rows}, {}]", dims.d_model);
        let gated = format!("gate [{rows}, {}]", dims.d_mlp);
        Ok(vec![
            self.time(norm, bytes(x, 4), 0.0, |_| {
                let params = NormParams {
                    kind: NormKind::Rms,
                    eps: 1e-5,
                    weight,
                    bias: None,
                };
                self.device.add_norm(y, x, params, out)
            })?,
            self.time(gated, bytes(gate, 3), 0.0, |_| {
                self.device.gate(Activation::Silu, gate, up, post)
            })?,
        ])
    }
}
