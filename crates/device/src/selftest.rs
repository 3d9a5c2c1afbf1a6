//! Every operation of one device against another, on fresh random input of awkward
//! shapes: what a new backend, a new card or a new driver has to pass.

use half::{bf16, f16};

use crate::{
    Activation, Attention, DType, Device, Edit, KvLayer, NormKind, Order, Phase, Result, RopeStyle,
    Rows, Span, Stream, View, Weight,
};

/// Bytes of slab a self-test needs of each device.
pub const SLAB_BYTES: u64 = 64 << 20;

/// How one case went.
#[derive(Clone, Debug)]
pub struct Case {
    /// The operation.
    pub op: &'static str,
    /// Dtype, shape and whatever else was special.
    pub what: String,
    /// `‖found − expected‖ / ‖expected‖`; infinite where something is not a number.
    pub error: f64,
    /// The largest error that passes.
    pub limit: f64,
}

impl Case {
    /// Whether it passed.
    pub fn passed(&self) -> bool {
        self.error <= self.limit
    }
}

/// Sums of f32 in another order, exponentials of another library.
const LIMIT: f64 = 2e-6;
const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Runs every case and reports each as it ends.
pub fn selftest(
    reference: &dyn Device,
    device: &dyn Device,
    seed: u64,
    report: &mut dyn FnMut(Case),
) -> Result<()> {
    let mut pair = Pair {
        both: [reference, device],
        random: seed,
        end: 0,
    };
    for test in [
        lookups,
        norms,
        products,
        ropes,
        attention,
        elementwise,
        routing,
        edits,
    ] {
        test(&mut pair, report)?;
    }
    Ok(())
}

type Report<'a> = &'a mut dyn FnMut(Case);

/// Two devices with the same bytes in their slabs.
struct Pair<'a> {
    both: [&'a dyn Device; 2],
    random: u64,
    /// Bytes of the slab in use by this case.
    end: u64,
}

impl Pair<'_> {
    /// The next case may use the whole slab again.
    fn start(&mut self) {
        self.end = 0;
    }

    fn number(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Between −1 and 1.
    fn float(&mut self) -> f32 {
        (self.number() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn below(&mut self, limit: usize) -> i32 {
        (self.number() % limit as u64) as i32
    }

    /// A place for a matrix, off any alignment but its elements' own, with gaps between
    /// rows where `gap` says so.
    fn place(&mut self, dtype: DType, rows: usize, cols: usize, gap: usize) -> View {
        let size = dtype.bytes() as u64;
        let offset = self.end.next_multiple_of(64) + size;
        let view = View {
            offset,
            dtype,
            rows,
            cols,
            stride: cols + gap,
        };
        self.end = offset + (rows * (cols + gap)) as u64 * size;
        assert!(self.end <= SLAB_BYTES, "a case fits the slab");
        view
    }

    fn upload(&self, view: View, bytes: &[u8]) -> Result<()> {
        let span = Span {
            offset: view.offset,
            bytes: bytes.len() as u64,
        };
        self.both
            .iter()
            .try_for_each(|device| device.upload(Stream::Compute, span, bytes))
    }

    /// Random numbers, in every element and gap.
    fn floats(&mut self, dtype: DType, rows: usize, cols: usize, gap: usize) -> Result<View> {
        let view = self.place(dtype, rows, cols, gap);
        let mut bytes = Vec::new();
        for _ in 0..rows * view.stride {
            let x = self.float();
            match dtype {
                DType::F16 => bytes.extend(f16::from_f32(x).to_le_bytes()),
                DType::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
                _ => bytes.extend(x.to_le_bytes()),
            }
        }
        self.upload(view, &bytes)?;
        Ok(view)
    }

    fn ids(&mut self, rows: usize, cols: usize, ids: &[i32]) -> Result<View> {
        let view = self.place(DType::I32, rows, cols, 0);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.upload(view, &bytes)?;
        Ok(view)
    }

    /// An output full of what must not be left there.
    fn poisoned(&mut self, rows: usize, cols: usize, gap: usize) -> Result<View> {
        let view = self.place(DType::F32, rows, cols, gap);
        let poison = f32::NAN.to_le_bytes().repeat(rows * view.stride);
        self.upload(view, &poison)?;
        Ok(view)
    }

    /// Runs an operation on both and compares what they left in a view.
    fn check(
        &self,
        op: &'static str,
        what: String,
        out: View,
        report: Report<'_>,
        run: impl Fn(&dyn Device) -> Result<()>,
    ) -> Result<()> {
        let mut left = [const { Vec::new() }; 2];
        for (device, left) in self.both.iter().zip(&mut left) {
            run(*device)?;
            *left = vec![0.0; out.rows * out.cols];
            device.download(out, left)?;
        }
        let error = difference(&left[0], &left[1]);
        let limit = LIMIT;
        report(Case {
            op,
            what,
            error,
            limit,
        });
        Ok(())
    }
}

fn difference(expect: &[f32], found: &[f32]) -> f64 {
    let wide = |x: &f32| f64::from(*x);
    let pairs = || expect.iter().map(wide).zip(found.iter().map(wide));
    if !pairs().all(|(a, b)| a.is_finite() && b.is_finite()) {
        return f64::INFINITY;
    }
    let off: f64 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
    let all: f64 = pairs().map(|(a, _)| a.powi(2)).sum();
    if off == 0.0 { 0.0 } else { (off / all).sqrt() }
}

fn lookups(pair: &mut Pair<'_>, report: Report<'_>) -> Result<()> {
    for dtype in FLOATS {
        for (rows, cols) in [(1, 1), (5, 17), (33, 256), (7, 1000)] {
            pair.start();
            let table = pair.floats(dtype, 50, cols, 3)?;
            let numbers: Vec<i32> = (0..rows).map(|_| pair.below(50)).collect();
            let ids = pair.ids(rows, 1, &numbers)?;
            let out = pair.floats(DType::F32, rows, cols, 2)?;
            for accumulate in [false, true] {
                let what = format!("{dtype} [{rows}, {cols}] accumulate {accumulate}");
                pair.check("gather", what, out, report, |device| {
                    device.gather(table, ids, out, accumulate)
                })?;
            }
        }
    }
    for (rows, cols) in [(1, 1), (6, 33), (20, 300)] {
        pair.start();
        let src = pair.floats(DType::F32, rows, cols, 1)?;
        let numbers: Vec<i32> = (0..rows as i32).map(|i| 2 * i).collect();
        let ids = pair.ids(rows, 1, &numbers)?;
        let weights = pair.floats(DType::F32, rows, 1, 0)?;
        let out = pair.floats(DType::F32, 2 * rows, cols, 1)?;
        let what = format!("[{rows}, {cols}]");
        pair.check("scatter_add", what, out, report, |device| {
            device.scatter_add(src, ids, weights, out)
        })?;
        let (first, stride, width) = (cols / 3, cols.div_ceil(2), cols / 4 + 1);
        let groups = if first + stride + width <= cols { 2 } else { 1 };
        let width = width.min(cols - first);
        let part = pair.poisoned(rows, groups * width, 1)?;
        let what = format!("[{rows}, {cols}] {groups} groups of {width}");
        pair.check("split", what, part, report, |device| {
            device.split(src, first, stride, width, part)
        })?;
    }
    Ok(())
}

fn norms(pair: &mut Pair<'_>, report: Report<'_>) -> Result<()> {
    for dtype in FLOATS {
        for kind in [NormKind::Rms, NormKind::Layer] {
            for (rows, cols) in [(1, 2), (3, 31), (17, 128), (2, 4099)] {
                pair.start();
                let x = pair.floats(DType::F32, rows, cols, 5)?;
                let weight = pair.floats(dtype, 1, cols, 0)?;
                let bias = pair.floats(dtype, 1, cols, 0)?;
                for bias in [None, Some(bias)] {
                    let out = pair.poisoned(rows, cols, 1)?;
                    let what = format!("{kind:?} {dtype} [{rows}, {cols}] bias {}", bias.is_some());
                    pair.check("norm", what, out, report, |device| {
                        device.norm(kind, 1e-5, x, weight, bias, out)
                    })?;
                }
            }
        }
    }
    Ok(())
}

fn products(pair: &mut Pair<'_>, report: Report<'_>) -> Result<()> {
    let shapes = [
        (1, 1, 1),
        (1, 4096, 11),
        (2, 65, 33),
        (7, 1001, 129),
        (33, 128, 64),
        (130, 300, 257),
    ];
    for dtype in FLOATS {
        for order in [Order::OutIn, Order::InOut] {
            for (rows, inputs, outputs) in shapes {
                pair.start();
                let x = pair.floats(DType::F32, rows, inputs, 3)?;
                let (r, c) = match order {
                    Order::OutIn => (outputs, inputs),
                    Order::InOut => (inputs, outputs),
                };
                let view = pair.floats(dtype, r, c, 0)?;
                let weight = Weight { view, order };
                let bias = pair.floats(dtype, 1, outputs, 0)?;
                for bias in [None, Some(bias)] {
                    let out = pair.poisoned(rows, outputs, 2)?;
                    let shape = format!("[{rows}, {inputs}] to {outputs}");
                    let what = format!("{order:?} {dtype} {shape} bias {}", bias.is_some());
                    pair.check("linear", what, out, report, |device| {
                        device.linear(x, weight, bias, out, Phase::Prompt)
                    })?;
                }
            }
        }
    }
    Ok(())
}

fn ropes(pair: &mut Pair<'_>, report: Report<'_>) -> Result<()> {
    for style in [RopeStyle::Halves, RopeStyle::Interleaved] {
        for (rows, heads, d_head, pairs) in [(1, 1, 2, 1), (5, 3, 32, 8), (9, 8, 128, 64)] {
            pair.start();
            let numbers: Vec<i32> = (0..rows).map(|_| pair.below(5000)).collect();
            let positions = pair.ids(rows, 1, &numbers)?;
            let frequencies = pair.floats(DType::F32, 1, pairs, 0)?;
            let table = pair.poisoned(rows, 2 * pairs, 0)?;
            let what = format!("[{rows}] {pairs} pairs");
            pair.check("rope_table", what, table, report, |device| {
                device.rope_table(positions, frequencies, 1.1, table)
            })?;
            let x = pair.floats(DType::F32, rows, heads * d_head, 4)?;
            let what = format!("{style:?} [{rows}, {heads} x {d_head}] {pairs} pairs");
            pair.check("rope", what, x, report, |device| {
                device.rope(x, table, d_head, style)
            })?;
        }
    }
    Ok(())
}

/// Rows of two sessions at some positions, and how they attend.
struct Attending {
    rows: Rows,
    kv: KvLayer,
    how: Attention,
    count: usize,
    keys: usize,
}

fn attending(pair: &mut Pair<'_>, dtype: DType, shape: [usize; 4]) -> Result<Attending> {
    let [heads, kv_heads, d_head, keys] = shape;
    let (page_tokens, window) = (16, keys / 2 + 1);
    let table_pages = keys.div_ceil(page_tokens);
    // Each session's rows are its last few positions; pages are dealt in turns.
    let fresh = keys.min(5);
    let positions: Vec<i32> = (0..2 * fresh)
        .map(|i| (keys - fresh + i % fresh) as i32)
        .collect();
    let sequences: Vec<i32> = (0..2 * fresh).map(|i| (i / fresh) as i32).collect();
    let dealt = (0..2 * table_pages).map(|i| (2 * (i % table_pages) + i / table_pages) as i32);
    let rows = Rows {
        positions: pair.ids(2 * fresh, 1, &positions)?,
        sequences: pair.ids(2 * fresh, 1, &sequences)?,
        tables: pair.ids(2, table_pages, &dealt.collect::<Vec<_>>())?,
        phase: Phase::Prompt,
    };
    let mut kv = KvLayer {
        offset: 0,
        page_bytes: 0,
        pages: 2 * table_pages,
        page_tokens,
        kv_heads,
        d_head,
        dtype,
    };
    kv.page_bytes = kv.layer_bytes() + 64;
    let elements = kv.page_bytes as usize * kv.pages / dtype.bytes();
    kv.offset = pair.floats(dtype, 1, elements, 0)?.offset;
    let how = Attention {
        heads,
        scale: 0.3,
        window: (!keys.is_multiple_of(2)).then_some(window),
    };
    Ok(Attending {
        rows,
        kv,
        how,
        count: 2 * fresh,
        keys,
    })
}

fn attention(pair: &mut Pair<'_>, report: Report<'_>) -> Result<()> {
    for dtype in FLOATS {
        for shape in [
            [1, 1, 4, 1],
            [4, 2, 32, 37],
            [6, 1, 80, 64],
            [8, 8, 128, 701],
        ] {
            pair.start();
            let Attending {
                rows,
                kv,
                how,
                count,
                keys,
            } = attending(pair, dtype, shape)?;
            let [heads, kv_heads, d_head, _] = shape;
            let what = format!(
                "{dtype} {heads}/{kv_heads} x {d_head}, {keys} keys, {:?}",
                how.window
            );
            let k = pair.floats(DType::F32, count, kv_heads * d_head, 1)?;
            let v = pair.floats(DType::F32, count, kv_heads * d_head, 1)?;
            let q = pair.floats(DType::F32, count, heads * d_head, 1)?;
            let out = pair.poisoned(count, heads * d_head, 1)?;
            // What was appended is seen by what attends.
            pair.check("attend", what.clone(), out, report, |device| {
                device.append(k, v, rows, kv)?;
                device.attend(q, rows, kv, how, out)
            })?;
            let pattern = pair.poisoned(count * heads, keys, 0)?;
            pair.check("pattern", what.clone(), pattern, report, |device| {
                device.pattern(q, rows, kv, how, pattern)
            })?;
            let mixed = pair.poisoned(count, heads * d_head, 1)?;
            pair.check("mix", what, mixed, report, |device| {
                device.mix(pattern, rows, kv, how, mixed)
            })?;
        }
    }
    Ok(())
}

fn elementwise(pair: &mut Pair<'_>, report: Report<'_>) -> Result<()> {
    use Activation::{Gelu, GeluTanh, Relu, Silu};
    for (rows, cols) in [(1, 1), (3, 255), (40, 1000)] {
        for f in [Silu, Gelu, GeluTanh, Relu] {
            pair.start();
            let x = pair.floats(DType::F32, rows, cols, 3)?;
            let up = pair.floats(DType::F32, rows, cols, 2)?;
            // Far from nought, where exponentials overflow.
            let wide = |device: &dyn Device| device.edit(x, Edit::Scale(60.0));
            pair.both.iter().try_for_each(|device| wide(*device))?;
            let out = pair.poisoned(rows, cols, 1)?;
            let what = format!("{f:?} [{rows}, {cols}]");
            pair.check("activate", what.clone(), out, report, |device| {
                device.activate(f, x, out)
            })?;
            let out = pair.poisoned(rows, cols, 1)?;
            pair.check("gate", what, out, report, |device| {
                device.gate(f, x, up, out)
            })?;
        }
        pair.start();
        let x = pair.floats(DType::F32, rows, cols, 3)?;
        let out = pair.floats(DType::F32, rows, cols, 1)?;
        let what = format!("[{rows}, {cols}]");
        pair.check("add", what, out, report, |device| device.add(x, out))?;
    }
    Ok(())
}

fn routing(pair: &mut Pair<'_>, report: Report<'_>) -> Result<()> {
    for (rows, experts, chosen) in [(1, 2, 1), (5, 8, 2), (300, 64, 6)] {
        for renormalise in [false, true] {
            pair.start();
            let logits = pair.floats(DType::F32, rows, experts, 1)?;
            let ids = pair.place(DType::I32, rows, chosen, 0);
            let weights = pair.poisoned(rows, chosen, 0)?;
            let what = format!("[{rows}] {chosen} of {experts} renormalise {renormalise}");
            pair.check("route", what.clone(), weights, report, |device| {
                device.route(logits, renormalise, ids, weights)
            })?;
            let mut found = [const { Vec::new() }; 2];
            for (device, found) in pair.both.iter().zip(&mut found) {
                *found = vec![0; rows * chosen];
                device.download_ids(ids, found)?;
            }
            let error = if found[0] == found[1] {
                0.0
            } else {
                f64::INFINITY
            };
            report(Case {
                op: "route",
                what: what + ", ids",
                error,
                limit: 0.0,
            });
        }
    }
    Ok(())
}

fn edits(pair: &mut Pair<'_>, report: Report<'_>) -> Result<()> {
    for (rows, cols) in [(1, 1), (4, 77), (19, 1024)] {
        for operand_rows in [1, rows] {
            pair.start();
            let operand = pair.floats(DType::F32, operand_rows, cols, 0)?;
            let changes = [
                Edit::Scale(0.7),
                Edit::Zero,
                Edit::Add {
                    operand,
                    factor: 1.5,
                },
                Edit::Replace(operand),
                Edit::ProjectOut(operand),
            ];
            for edit in changes {
                let x = pair.floats(DType::F32, rows, cols, 2)?;
                let name = format!("{edit:?}");
                let name = name.split([' ', '(']).next().unwrap_or_default();
                let what = format!("{name} [{rows}, {cols}] by [{operand_rows}]");
                // One column taken out of itself leaves rounding alone.
                if cols == 1 && matches!(edit, Edit::ProjectOut(_)) {
                    continue;
                }
                pair.check("edit", what, x, report, |device| device.edit(x, edit))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{SLAB_BYTES, selftest};
    use crate::cpu::{CpuDevice, CpuOptions, Isa};

    fn cpu(isa: Option<Isa>) -> CpuDevice {
        let options = CpuOptions {
            threads: Some(1),
            slab_bytes: SLAB_BYTES,
            isa,
        };
        CpuDevice::new(options).unwrap()
    }

    #[test]
    fn instruction_sets_agree_to_the_bit() {
        let (reference, device) = (cpu(Some(Isa::Scalar)), cpu(None));
        let mut cases = 0;
        selftest(&reference, &device, 1, &mut |case| {
            assert_eq!(case.error, 0.0, "{} {}", case.op, case.what);
            cases += 1;
        })
        .unwrap();
        assert!(cases > 150, "{cases}");
    }
}
