//! Tests that attention gives the same bits on every device, in any batch of rows.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use djinn_device::{Attention, KvLayer, Phase, Rows, View};
use djinn_types::DType;
use proptest::prelude::*;
use support::{FLOATS, Image, Refusal, assert_near, devices};

/// A batch in which the rows are the last tokens of several sessions.
struct Case {
    image: Image,
    q: View,
    k: View,
    v: View,
    rows: Rows,
    kv: KvLayer,
    how: Attention,
    out: View,
    /// Session and position of each row.
    placed: Vec<(usize, usize)>,
    keys_max: usize,
}

#[derive(Clone, Debug)]
struct Shape {
    seed: u64,
    /// Number of tokens before the batch and in the batch, for each session.
    sessions: Vec<(usize, usize)>,
    page_tokens: usize,
    kv_heads: usize,
    group: usize,
    d_head: usize,
    window: Option<usize>,
    dtype: DType,
}

fn case(shape: &Shape) -> Case {
    let Shape {
        page_tokens,
        kv_heads,
        group,
        d_head,
        dtype,
        ..
    } = *shape;
    let mut image = Image::new(shape.seed);
    let placed: Vec<(usize, usize)> = shape
        .sessions
        .iter()
        .enumerate()
        .flat_map(|(session, &(before, new))| (before..before + new).map(move |p| (session, p)))
        .collect();
    let keys_max = placed.iter().map(|&(_, p)| p + 1).max().unwrap();
    let pages_max = keys_max.div_ceil(page_tokens);
    let pages = pages_max * shape.sessions.len();
    let (count, heads) = (placed.len(), kv_heads * group);
    let q = image.f32(count, heads * d_head);
    let (k, v) = (
        image.f32(count, kv_heads * d_head),
        image.f32(count, kv_heads * d_head),
    );
    // Pages are assigned in a scrambled order.
    let sessions = shape.sessions.len();
    let table = move |s: usize, i: usize| (pages - 1 - (i * sessions + s)) as i32;
    let rows = Rows {
        positions: image.ids(count, 1, |r, _| placed[r].1 as i32),
        sequences: image.ids(count, 1, |r, _| placed[r].0 as i32),
        tables: image.ids(sessions, pages_max, table),
        phase: Phase::Prompt,
    };
    let layer = 2 * kv_heads * page_tokens * d_head;
    let content = image.floats(dtype, pages, layer + 3);
    let kv = KvLayer {
        offset: content.offset,
        page_bytes: (content.stride * dtype.bytes()) as u64,
        pages,
        page_tokens,
        kv_heads,
        d_head,
        dtype,
    };
    let out = image.room(DType::F32, count, heads * d_head);
    let how = Attention {
        heads,
        scale: 0.4,
        window: shape.window,
    };
    Case {
        image,
        q,
        k,
        v,
        rows,
        kv,
        how,
        out,
        placed,
        keys_max,
    }
}

impl Case {
    /// Key or value vector of a token, as a view of one row.
    fn vector(&self, row: usize, key: usize, head: usize, half: usize) -> View {
        let (kv, session) = (&self.kv, self.placed[row].0);
        let page = self
            .image
            .get(self.rows.tables, session, key / kv.page_tokens) as u64;
        let token = (half * kv.kv_heads + head) * kv.page_tokens + key % kv.page_tokens;
        let offset =
            kv.offset + page * kv.page_bytes + (token * kv.d_head * kv.dtype.bytes()) as u64;
        View::new(offset, kv.dtype, 1, kv.d_head)
    }

    fn keys(&self, row: usize) -> std::ops::Range<usize> {
        let end = self.placed[row].1 + 1;
        end - self.how.window.unwrap_or(end).min(end)..end
    }

    /// Reference pattern of a row and head.
    fn pattern(&self, image: &Image, row: usize, head: usize) -> Vec<f64> {
        let d = self.kv.d_head;
        let q = image.row(self.q.cols(head * d, d), row);
        let kv_head = head * self.kv.kv_heads / self.how.heads;
        let scores: Vec<f64> = self
            .keys(row)
            .map(|key| {
                let k = image.row(self.vector(row, key, kv_head, 0), 0);
                q.iter().zip(&k).map(|(a, b)| a * b).sum::<f64>() * f64::from(self.how.scale)
            })
            .collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
        scores.iter().map(|s| (s - most).exp() / sum).collect()
    }
}

fn check(shape: &Shape) {
    let case = case(shape);
    let Case {
        q,
        k,
        v,
        rows,
        kv,
        how,
        out,
        ..
    } = case;
    let region = View::new(
        kv.offset,
        DType::Bf16,
        1,
        (kv.pages * kv.page_bytes as usize) / 2,
    );
    let appended = case
        .image
        .after(&[region], |device| device.append(k, v, rows, kv));
    check_appended(&case, &appended);

    let attended = appended.after(&[out], |device| device.attend(q, rows, kv, how, out));
    let mut image = attended.clone();
    let pattern = image.room(DType::F32, out.rows * how.heads, case.keys_max + 2);
    let mixed = image.room(DType::F32, out.rows, out.cols);
    let image = image.after(&[pattern], |device| {
        device.pattern(q, rows, kv, how, pattern)
    });
    let image = image.after(&[mixed], |device| device.mix(pattern, rows, kv, how, mixed));
    check_values(&case, &image, pattern);
    for r in 0..out.rows {
        for c in 0..out.cols {
            assert_eq!(
                image.bits(out, r, c),
                image.bits(mixed, r, c),
                "pattern, mix at {r}, {c}"
            );
        }
    }
    let devices = devices();
    for r in [0, out.rows / 2, out.rows - 1] {
        let alone = appended.on(&devices[devices.len() - 1], |device| {
            device.attend(q.rows(r, 1), rows.rows(r, 1), kv, how, out.rows(r, 1))
        });
        for c in 0..out.cols {
            assert_eq!(
                alone.bits(out, r, c),
                attended.bits(out, r, c),
                "row {r} alone"
            );
        }
    }
}

fn check_appended(case: &Case, image: &Image) {
    let d = case.kv.d_head;
    for (row, &(_, position)) in case.placed.iter().enumerate() {
        for head in 0..case.kv.kv_heads {
            for (half, source) in [case.k, case.v].into_iter().enumerate() {
                let vector = case.vector(row, position, head, half);
                for c in 0..d {
                    let want = image.get(source, row, head * d + c);
                    let got = image.get(vector, 0, c);
                    let tolerance = if case.kv.dtype == DType::F32 {
                        0.0
                    } else {
                        0.01
                    };
                    assert!(
                        (got - want).abs() <= tolerance,
                        "row {row}: {got}, not {want}"
                    );
                }
            }
        }
    }
}

fn check_values(case: &Case, image: &Image, pattern: View) {
    let d = case.kv.d_head;
    for row in 0..case.out.rows {
        for head in 0..case.how.heads {
            let want = case.pattern(image, row, head);
            let (keys, got) = (
                case.keys(row),
                image.row(pattern, row * case.how.heads + head),
            );
            for (key, &p) in got.iter().enumerate() {
                if keys.contains(&key) {
                    assert_near(p, want[key - keys.start], 1.0, "pattern");
                } else {
                    assert!(p == 0.0, "row {row} sees key {key}: {p}");
                }
            }
            let kv_head = head * case.kv.kv_heads / case.how.heads;
            for c in 0..d {
                let z: f64 = keys
                    .clone()
                    .map(|key| got[key] * image.get(case.vector(row, key, kv_head, 1), 0, c))
                    .sum();
                assert_near(image.get(case.out, row, head * d + c), z, 2.0, "mixed");
            }
        }
    }
}

fn shapes() -> impl Strategy<Value = Shape> {
    (
        any::<u64>(),
        prop::collection::vec((0usize..50, 1usize..10), 1..4),
        1usize..20,
        1usize..4,
        1usize..5,
        1usize..80,
        prop::option::of(1usize..40),
        0usize..3,
    )
        .prop_map(
            |(seed, sessions, page_tokens, kv_heads, group, d_head, window, dtype)| Shape {
                seed,
                sessions,
                page_tokens,
                kv_heads,
                group,
                d_head,
                window,
                dtype: FLOATS[dtype],
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn attention_is_exact_to_the_bit(shape in shapes()) {
        check(&shape);
    }
}

#[test]
fn a_prompt_is_read_in_tiles() {
    let shape = Shape {
        seed: 11,
        sessions: vec![(0, 61), (3, 1)],
        page_tokens: 16,
        kv_heads: 2,
        group: 3,
        d_head: 64,
        window: None,
        dtype: DType::F32,
    };
    check(&shape);
    check(&Shape {
        window: Some(9),
        ..shape
    });
}

#[test]
fn one_long_session_is_shared_by_the_threads() {
    check(&Shape {
        seed: 12,
        sessions: vec![(300, 1)],
        page_tokens: 16,
        kv_heads: 1,
        group: 8,
        d_head: 32,
        window: None,
        dtype: DType::Bf16,
    });
}

#[test]
fn unseen_values_do_not_change_a_row() {
    // Unwritten page content is NaN, and so is everything past a row.
    let shape = Shape {
        seed: 13,
        sessions: vec![(0, 13), (5, 9)],
        page_tokens: 8,
        kv_heads: 1,
        group: 2,
        d_head: 24,
        window: Some(4),
        dtype: DType::F32,
    };
    let Case {
        mut image,
        q,
        k,
        v,
        rows,
        kv,
        how,
        out,
        ..
    } = case(&shape);
    let region = kv.offset as usize..kv.offset as usize + kv.pages * kv.page_bytes as usize;
    image.bytes[region].fill(0xff);
    let devices = devices();
    for device in devices.iter() {
        let after = image.on(device, |device| {
            device.append(k, v, rows, kv)?;
            device.attend(q, rows, kv, how, out)
        });
        // The second session's first keys are unwritten, and its first rows see them.
        for r in (0..13).chain(16..22) {
            assert!(after.row(out, r).iter().all(|x| x.is_finite()), "row {r}");
        }
        assert!(after.row(out, 13).iter().all(|x| x.is_nan()));
    }
}

#[test]
fn mismatched_operands_are_refused() {
    let shape = Shape {
        seed: 1,
        sessions: vec![(3, 2)],
        page_tokens: 4,
        kv_heads: 2,
        group: 2,
        d_head: 8,
        window: None,
        dtype: DType::F32,
    };
    let Case {
        mut image,
        q,
        k,
        v,
        rows,
        kv,
        how,
        out,
        ..
    } = case(&shape);
    let refused = |image: &Image, rows, kv, how, out: View, expect: Refusal| {
        let error = image.error(|device| device.attend(q, rows, kv, how, out));
        assert_eq!(error, expect);
    };
    refused(
        &image,
        rows,
        kv,
        Attention { heads: 3, ..how },
        out,
        Refusal::Shape("attend"),
    );
    refused(
        &image,
        rows,
        KvLayer { kv_heads: 3, ..kv },
        how,
        out,
        Refusal::Shape("attend"),
    );
    refused(
        &image,
        rows,
        KvLayer { pages: 1, ..kv },
        how,
        out,
        Refusal::Shape("attend"),
    );
    refused(
        &image,
        rows,
        KvLayer {
            pages: 1 << 40,
            ..kv
        },
        how,
        out,
        Refusal::OutOfSlab("attend"),
    );
    refused(
        &image,
        rows,
        KvLayer {
            page_bytes: 8,
            ..kv
        },
        how,
        out,
        Refusal::Shape("attend"),
    );
    refused(
        &image,
        rows,
        KvLayer {
            page_tokens: 0,
            ..kv
        },
        how,
        out,
        Refusal::Shape("attend"),
    );
    refused(
        &image,
        rows,
        kv,
        Attention {
            window: Some(0),
            ..how
        },
        out,
        Refusal::Shape("attend"),
    );
    refused(
        &image,
        rows,
        kv,
        how,
        View {
            offset: q.offset,
            ..out
        },
        Refusal::Shape("attend"),
    );
    refused(
        &image,
        rows,
        kv,
        how,
        View {
            offset: kv.offset,
            ..out
        },
        Refusal::Shape("attend"),
    );
    let error =
        image.error(|device| device.pattern(q, rows, kv, how, View::new(0, DType::F32, 8, 4)));
    assert_eq!(error, Refusal::Shape("pattern"));
    let error = image.error(|device| {
        device.append(
            k,
            v,
            rows,
            KvLayer {
                offset: k.offset,
                ..kv
            },
        )
    });
    assert_eq!(error, Refusal::Shape("append"));

    for (view, bad) in [
        (rows.positions, 1 << 20),
        (rows.positions, -1),
        (rows.sequences, 1),
        (rows.sequences, -7),
    ] {
        let before = image.clone();
        let at = view.rows(1, 1).offset as usize;
        image.bytes[at..at + 4].copy_from_slice(&i32::to_le_bytes(bad));
        refused(&image, rows, kv, how, out, Refusal::Shape("attend"));
        let error = image.error(|device| device.append(k, v, rows, kv));
        assert_eq!(error, Refusal::Shape("append"));
        image = before;
    }
    let at = rows.tables.offset as usize;
    image.bytes[at..at + 4].copy_from_slice(&i32::to_le_bytes(99));
    refused(&image, rows, kv, how, out, Refusal::Shape("attend"));
}
