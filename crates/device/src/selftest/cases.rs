//! Plain operations in every dtype and in difficult shapes.

use super::pair::{CaseFn, DevicePair, FLOATS, ReportFn};
use crate::{
    Attention, Device, Draw, Edit, HostRows, KvLayer, NormParams, Phase, Reduction, Result,
    Rotation, Rows, Stream, Weight,
};
use djinn_types::{Activation, DType, NormKind, Order, RopeStyle};

pub(super) const ALL: [CaseFn; 12] = [
    lookups,
    norms,
    products,
    ropes,
    attention,
    rounding,
    elementwise,
    routing,
    sampling,
    paging,
    edits,
    reductions,
];

fn lookups(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
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

fn norms(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
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
                    let params = NormParams {
                        kind,
                        eps: 1e-5,
                        weight,
                        bias,
                    };
                    pair.check("norm", what, out, report, |device| {
                        device.norm(params, x, out)
                    })?;
                }
            }
        }
    }
    Ok(())
}

fn products(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
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

fn ropes(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
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
            let rotation = Rotation {
                table,
                d_head,
                style,
            };
            pair.check("rope", what, x, report, |device| device.rope(x, rotation))?;
        }
    }
    Ok(())
}

/// Rows of two sessions, and the parameters of their attention.
struct TwoSessions {
    rows: Rows,
    kv: KvLayer,
    how: Attention,
    count: usize,
    keys: usize,
}

fn attending(pair: &mut DevicePair<'_>, dtype: DType, shape: [usize; 4]) -> Result<TwoSessions> {
    let [heads, kv_heads, d_head, keys] = shape;
    let (page_tokens, window) = (16, keys / 2 + 1);
    let table_pages = keys.div_ceil(page_tokens);
    // The rows are each session's last positions. Pages alternate between the sessions.
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
    Ok(TwoSessions {
        rows,
        kv,
        how,
        count: 2 * fresh,
        keys,
    })
}

fn attention(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    for dtype in FLOATS {
        for shape in [
            [1, 1, 4, 1],
            [4, 2, 32, 37],
            [6, 1, 80, 64],
            [8, 8, 128, 701],
        ] {
            pair.start();
            let TwoSessions {
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
            // Attention sees the appended keys.
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

/// Checks that both devices round keys and values to the same numbers: ties, subnormal numbers,
/// overflows, infinities and NaN.
fn rounding(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    let (page_tokens, d_head, count) = (16, 40, 32);
    let difficult = [
        1.0 + 1.0 / 2048.0,
        1.0 + 3.0 / 2048.0,
        1.0 + 1.0 / 256.0,
        1.0 + 3.0 / 256.0,
        65_519.9,
        -65_520.0,
        f32::MAX,
        3.0e-8,
        1.5 * 2.0_f32.powi(-24),
        f32::from_bits(1),
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    for dtype in FLOATS {
        pair.start();
        let positions: Vec<i32> = (0..count).collect();
        let rows = Rows {
            positions: pair.ids(count as usize, 1, &positions)?,
            sequences: pair.ids(count as usize, 1, &vec![0; count as usize])?,
            tables: pair.ids(1, 2, &[1, 0])?,
            phase: Phase::Prompt,
        };
        let kv = KvLayer {
            offset: 0,
            page_bytes: 0,
            pages: 2,
            page_tokens,
            kv_heads: 1,
            d_head,
            dtype,
        };
        // Two pages side by side are a matrix: keys of page 0, values of page 0, and so on.
        let pages = pair.floats(dtype, 4 * page_tokens, d_head, 0)?;
        let kv = KvLayer {
            offset: pages.offset,
            page_bytes: kv.layer_bytes(),
            ..kv
        };
        let k = pair.floats(DType::F32, count as usize, d_head, 3)?;
        let v = pair.floats(DType::F32, count as usize, d_head, 1)?;
        for (i, x) in difficult.into_iter().enumerate() {
            pair.upload(k.rows(i, 1).cols(i, 1), &x.to_le_bytes())?;
            pair.upload(v.rows(31 - i, 1).cols(39 - i, 1), &x.to_le_bytes())?;
        }
        let numbers: Vec<i32> = (0..4 * page_tokens as i32).collect();
        let ids = pair.ids(numbers.len(), 1, &numbers)?;
        let out = pair.poisoned(numbers.len(), d_head, 0)?;
        pair.check_numbers(
            "append",
            format!("{dtype} rounding"),
            out,
            report,
            |device| {
                device.append(k, v, rows, kv)?;
                device.gather(pages, ids, out, false)
            },
        )?;
    }
    Ok(())
}

fn elementwise(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    use Activation::{Gelu, GeluTanh, Relu, Silu};
    for (rows, cols) in [(1, 1), (3, 255), (40, 1000)] {
        for f in [Silu, Gelu, GeluTanh, Relu] {
            pair.start();
            let x = pair.floats(DType::F32, rows, cols, 3)?;
            let up = pair.floats(DType::F32, rows, cols, 2)?;
            // Scales the inputs so that exponentials overflow.
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

fn routing(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
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
            pair.check_ids("route", what + ", ids", ids, report, |_| Ok(()))?;
        }
    }
    Ok(())
}

fn edits(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
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
                Edit::AddMatched {
                    operand,
                    factor: -0.8,
                },
                Edit::Clamp {
                    low: -0.25,
                    high: 0.5,
                },
            ];
            for edit in changes {
                let x = pair.floats(DType::F32, rows, cols, 2)?;
                let name = format!("{edit:?}");
                let name = name.split([' ', '(']).next().unwrap_or_default();
                let what = format!("{name} [{rows}, {cols}] by [{operand_rows}]");
                // Projecting one column out of itself leaves only rounding errors.
                if cols == 1 && matches!(edit, Edit::ProjectOut(_)) {
                    continue;
                }
                pair.check("edit", what, x, report, |device| device.edit(x, edit))?;
            }
        }
    }
    Ok(())
}

fn reductions(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    for (rows, cols) in [(1, 1), (3, 33), (70, 1000), (9, 32_000)] {
        pair.start();
        let x = pair.floats(DType::F32, rows, cols, 3)?;
        let what = format!("[{rows}, {cols}]");
        let lengths = pair.poisoned(rows, 1, 1)?;
        pair.check("norm of rows", what.clone(), lengths, report, |device| {
            device.reduce(x, Reduction::Norm, lengths)
        })?;
        // The sum continues from existing values and must be equal to the bit.
        let sum = pair.floats(DType::F32, 2, cols, 1)?;
        pair.check_bits("sum of rows", what, sum, report, |device| {
            device.reduce(x, Reduction::Sum, sum)
        })?;
        // Gives the first row several equal largest elements.
        for col in [0, cols / 2, cols - 1] {
            pair.upload(x.rows(0, 1).cols(col, 1), &2f32.to_le_bytes())?;
        }
        for count in [1, 5, 64].map(|count: usize| count.min(cols)) {
            let what = format!("{count} of [{rows}, {cols}]");
            let found = pair.poisoned(rows, 2 * count, 3)?;
            pair.check_bits("largest", what.clone(), found, report, |device| {
                device.reduce(x, Reduction::Largest, found)
            })?;
            pair.check("likeliest", what.clone(), found, report, |device| {
                device.reduce(x, Reduction::Likeliest, found)
            })?;
            let shares = found.cols(count, count);
            pair.check("shares", what, shares, report, |_| Ok(()))?;
        }
    }
    Ok(())
}

/// Checks copies to host memory and back.
fn paging(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    for (rows, cols) in [(1, 1), (3, 1000), (64, 4096)] {
        pair.start();
        let x = pair.floats(DType::F32, rows, cols, 0)?;
        let span = x.span();
        let what = format!("{} bytes", span.bytes);
        pair.check("copy out and in", what, x, report, |device| {
            let host = device.host_slab(3 * span.bytes)?;
            host.seal()?;
            let written = device.record(Stream::Compute)?;
            device.wait(Stream::PageOut, &written)?;
            device.copy_out(Stream::PageOut, span, &host, span.bytes)?;
            let sent = device.record(Stream::PageOut)?;
            device.wait(Stream::Compute, &sent)?;
            device.edit(x, Edit::Zero)?;
            let erased = device.record(Stream::Compute)?;
            device.wait(Stream::PageIn, &erased)?;
            device.copy_in(Stream::PageIn, &host, span.bytes, span)?;
            let back = device.record(Stream::PageIn)?;
            // The host slab is dropped at the end of this closure.
            device.wait_here(&back)
        })?;
        // Copies every third row of host memory to every second row, and then to the row that follows.
        let from = pair.floats(DType::F32, rows, cols, 0)?;
        let to = pair.poisoned(2 * rows, cols, 0)?;
        let row = from.rows(0, 1).span();
        let what = format!("{rows} rows of {} bytes", row.bytes);
        pair.check(
            "copy rows in, then on the device",
            what,
            to,
            report,
            |device| {
                let host = device.host_slab(3 * rows as u64 * row.bytes)?;
                host.seal()?;
                let written = device.record(Stream::Compute)?;
                device.wait(Stream::PageOut, &written)?;
                for (at, part) in (0..).zip((0..rows).map(|at| from.rows(at, 1).span())) {
                    device.copy_out(Stream::PageOut, part, &host, 3 * at * row.bytes)?;
                }
                let sent = device.record(Stream::PageOut)?;
                device.wait(Stream::PageIn, &sent)?;
                let all = HostRows {
                    from: 0,
                    first: to.rows(0, 1).span(),
                    stride: 3 * row.bytes,
                    slab_stride: 2 * row.bytes,
                    count: rows,
                };
                device.copy_in_rows(Stream::PageIn, &host, all)?;
                let back = device.record(Stream::PageIn)?;
                device.wait(Stream::Compute, &back)?;
                for at in 0..rows {
                    let [even, odd] = [2 * at, 2 * at + 1].map(|row| to.rows(row, 1).span());
                    device.copy(even, odd)?;
                }
                device.synchronize(Stream::Compute)?;
                assert!(
                    device.is_past(&back)?,
                    "the compute stream waited for the event"
                );
                Ok(())
            },
        )?;
    }
    Ok(())
}

/// Checks that both devices sample the same element.
fn sampling(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    let with = |temperature, top_k, top_p, min_p| Draw {
        temperature,
        top_k,
        top_p,
        min_p,
        at: 0,
    };
    let ways = [
        Draw::LARGEST,
        with(1.0, 0, 1.0, 0.0),
        with(0.1, 0, 1.0, 0.0),
        with(0.7, 40, 1.0, 0.0),
        with(0.3, 0, 0.9, 0.0),
        with(1.3, 0, 1.0, 0.2),
        with(0.2, 1000, 0.95, 0.01),
        with(0.01, 1, 0.5, 1.0),
    ];
    for (rows, cols) in [(1, 1), (8, 200), (16, 32_000), (8, 151_936)] {
        for way in ways {
            pair.start();
            let x = pair.floats(DType::F32, rows, cols, 3)?;
            // One row has ties among its largest elements, one has only equal elements, one
            // contains NaN.
            let place = |row: usize, col: usize| x.rows(row, 1).cols(col, 1);
            if rows > 4 {
                for col in [3, 77, 150] {
                    pair.upload(place(1, col), &2f32.to_le_bytes())?;
                }
                pair.upload(x.rows(2, 1), &vec![0; 4 * cols])?;
                pair.upload(place(3, 199), &f32::NAN.to_le_bytes())?;
                pair.upload(place(4, 0), &f32::NEG_INFINITY.to_le_bytes())?;
            }
            let draws: Vec<i32> = (0..rows)
                .flat_map(|_| {
                    let at = pair.number();
                    Draw { at, ..way }.words()
                })
                .collect();
            let draws = pair.ids(rows, Draw::WORDS, &draws)?;
            let ids = pair.place(DType::I32, rows, 1, 0);
            let Draw {
                temperature: t,
                top_k: k,
                top_p: p,
                min_p: m,
                ..
            } = way;
            let what = format!("[{rows}, {cols}] temperature {t} top {k} {p} {m}");
            pair.check_ids("sample", what, ids, report, |device| {
                device.sample(x, draws, ids)
            })?;
        }
    }
    Ok(())
}
