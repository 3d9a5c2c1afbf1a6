//! Reference interpreter of programs: whole sequences, f64 sums, no KV pages. The tests compare
//! it with golden outputs.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use djinn_model::Model;
use djinn_model::program::{Buf, Op, TensorId};
use djinn_model::safetensors::{TensorEntry, read_header};
use djinn_types::{Activation, DType, NormKind, Order, RopeStyle};

/// Golden outputs of a model.
pub struct Golden {
    bytes: Vec<u8>,
    header: HashMap<String, TensorEntry>,
}

impl Golden {
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("a golden file");
        let header = read_header(path, &bytes, bytes.len() as u64).expect("a golden header");
        Golden { bytes, header }
    }

    fn slice(&self, name: &str) -> Option<&[u8]> {
        let range = &self.header.get(name)?.range;
        Some(&self.bytes[range.start as usize..range.end as usize])
    }

    pub fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let (words, _) = self.slice(name)?.as_chunks();
        Some(words.iter().map(|&word| f32::from_le_bytes(word)).collect())
    }

    pub fn ids(&self, name: &str) -> Vec<usize> {
        let (words, _) = self.slice(name).expect("golden ids").as_chunks();
        words
            .iter()
            .map(|&word| i64::from_le_bytes(word) as usize)
            .collect()
    }
}

pub fn assert_close(family: &str, name: &str, found: &[f32], expect: &[f32]) {
    assert_eq!(found.len(), expect.len(), "{family} {name}");
    let size = expect.iter().map(|x| x.abs()).fold(0.0, f32::max);
    let worst = found
        .iter()
        .zip(expect)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(
        worst <= 2e-5 * size.max(1.0),
        "{family} {name}: off by {worst} of {size}"
    );
}

/// Runs a program; returns the values at every hook.
pub fn run(model: &Model, ids: &[usize]) -> BTreeMap<String, Vec<f32>> {
    let mut run = Interpreter {
        model,
        ids,
        bufs: HashMap::new(),
        seen: BTreeMap::new(),
    };
    for op in model.program.ops() {
        run.step(op);
    }
    run.seen
}

struct Interpreter<'a> {
    model: &'a Model,
    ids: &'a [usize],
    bufs: HashMap<Buf, Vec<f32>>,
    seen: BTreeMap<String, Vec<f32>>,
}

impl Interpreter<'_> {
    fn tensor(&self, id: TensorId) -> Vec<f32> {
        let spec = self.model.program.tensor(id);
        let mut bytes = vec![0; spec.bytes() as usize];
        self.model
            .weights
            .read_tensor(id, 0, &mut bytes)
            .expect("readable");
        match spec.dtype {
            DType::F32 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|&word| f32::from_le_bytes(word))
                .collect(),
            DType::F16 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|&word| half::f16::from_le_bytes(word).to_f32())
                .collect(),
            other => panic!("no golden model is {other}"),
        }
    }

    fn width(&self, buf: Buf) -> usize {
        self.model.program.width(buf)
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Embed { table, to } => {
                let ids = self.ids.to_vec();
                self.gather(table, &ids, to, false);
            }
            Op::EmbedPositions { table, to } => {
                let positions: Vec<usize> = (0..self.ids.len()).collect();
                self.gather(table, &positions, to, true);
            }
            Op::Norm {
                kind,
                eps,
                width,
                weight,
                bias,
                from,
                to,
            } => {
                let bias = bias.map(|id| self.tensor(id));
                let x = norm(
                    kind,
                    eps,
                    width,
                    &self.bufs[&from],
                    &self.tensor(weight),
                    bias,
                );
                self.bufs.insert(to, x);
            }
            Op::Linear {
                weight,
                order,
                bias,
                from,
                to,
            } => {
                let bias = bias.map(|id| self.tensor(id));
                let y = self.linear(&self.bufs[&from], self.width(to), weight, order, bias);
                self.bufs.insert(to, y);
            }
            Op::Split {
                from,
                first,
                stride,
                width,
                to,
            } => {
                let (wide, narrow) = (self.width(from), self.width(to));
                let y = self.bufs[&from]
                    .chunks(wide)
                    .flat_map(|row| {
                        (0..narrow).map(move |c| row[first + c / width * stride + c % width])
                    })
                    .collect();
                self.bufs.insert(to, y);
            }
            Op::Rope { buf } => self.rope(buf),
            Op::Attend { scale, window, .. } => self.attend(scale, window),
            Op::Activate { f, from, to } => {
                let y = self.bufs[&from].iter().map(|&x| activate(f, x)).collect();
                self.bufs.insert(to, y);
            }
            Op::Gate { f, gate, up, to } => {
                let pairs = self.bufs[&gate].iter().zip(&self.bufs[&up]);
                let y = pairs.map(|(&g, &u)| activate(f, g) * u).collect();
                self.bufs.insert(to, y);
            }
            Op::Add { from, to } => {
                let x = self.bufs[&from].clone();
                let y = self
                    .bufs
                    .get_mut(&to)
                    .expect("an earlier operation writes the buffer");
                y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
            }
            Op::Experts { .. } => self.experts(op),
            Op::Hook { site, buf } => {
                self.seen.insert(site.to_string(), self.bufs[&buf].clone());
            }
        }
    }

    fn gather(&mut self, table: TensorId, rows: &[usize], to: Buf, accumulate: bool) {
        let (table, width) = (self.tensor(table), self.width(to));
        let mut y: Vec<f32> = rows
            .iter()
            .flat_map(|r| table[r * width..][..width].to_vec())
            .collect();
        if accumulate {
            y.iter_mut().zip(&self.bufs[&to]).for_each(|(y, x)| *y += x);
        }
        self.bufs.insert(to, y);
    }

    fn linear(
        &self,
        x: &[f32],
        outputs: usize,
        weight: TensorId,
        order: Order,
        bias: Option<Vec<f32>>,
    ) -> Vec<f32> {
        let w = self.tensor(weight);
        let inputs = w.len() / outputs;
        let at = |o: usize, i: usize| match order {
            Order::OutIn => w[o * inputs + i],
            Order::InOut => w[i * outputs + o],
        };
        let row = |row: &[f32]| -> Vec<f32> {
            (0..outputs)
                .map(|o| {
                    let products = row
                        .iter()
                        .enumerate()
                        .map(|(i, &x)| f64::from(x * at(o, i)));
                    products.sum::<f64>() as f32 + bias.as_ref().map_or(0.0, |bias| bias[o])
                })
                .collect()
        };
        x.chunks(inputs).flat_map(row).collect()
    }

    fn rope(&mut self, buf: Buf) {
        let rope = self.model.program.rope.clone().expect("a rotary family");
        let (width, d_head) = (self.width(buf), self.model.program.dims.d_head);
        let n = rope.frequencies.len();
        let x = self
            .bufs
            .get_mut(&buf)
            .expect("an earlier operation writes the buffer");
        for (position, row) in x.chunks_mut(width).enumerate() {
            for head in row.chunks_mut(d_head) {
                for (i, &frequency) in rope.frequencies.iter().enumerate() {
                    let (a, b) = match rope.style {
                        RopeStyle::Halves => (i, i + n),
                        RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                    };
                    let (sin, cos) = (position as f32 * frequency).sin_cos();
                    let (sin, cos) = (sin * rope.scale, cos * rope.scale);
                    let (x, y) = (head[a], head[b]);
                    (head[a], head[b]) = (x * cos - y * sin, y * cos + x * sin);
                }
            }
        }
    }

    fn attend(&mut self, scale: f32, window: Option<usize>) {
        let d = self.model.program.dims;
        let (q, k, v) = (
            &self.bufs[&Buf::Q],
            &self.bufs[&Buf::K],
            &self.bufs[&Buf::V],
        );
        let mut z = vec![0.0; q.len()];
        for query in 0..self.ids.len() {
            let first = window.map_or(0, |window| (query + 1).saturating_sub(window));
            for head in 0..d.heads {
                let at = (query * d.heads + head) * d.d_head;
                let group = head / (d.heads / d.kv_heads);
                let key = |key: usize| (key * d.kv_heads + group) * d.d_head;
                let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
                let scores: Vec<f32> = (first..=query)
                    .map(|i| scale * dot(&q[at..][..d.d_head], &k[key(i)..][..d.d_head]))
                    .collect();
                for (i, weight) in softmax(&scores).into_iter().enumerate() {
                    let value = &v[key(first + i)..][..d.d_head];
                    z[at..][..d.d_head]
                        .iter_mut()
                        .zip(value)
                        .for_each(|(z, v)| *z += weight * v);
                }
            }
        }
        self.bufs.insert(Buf::Z, z);
    }

    fn experts(&mut self, op: &Op) {
        let Op::Experts {
            from,
            router,
            to,
            chosen,
            renormalise,
            f,
            experts,
            ..
        } = op
        else {
            unreachable!("the operation is Experts")
        };
        let d = self.model.program.dims;
        let (x, logits) = (&self.bufs[from], &self.bufs[router]);
        let mut y = vec![0.0; x.len()];
        for (r, row) in x.chunks(d.d_model).enumerate() {
            let weights = softmax(&logits[r * d.experts..][..d.experts]);
            let mut order: Vec<usize> = (0..d.experts).collect();
            order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
            order.truncate(*chosen);
            let sum: f32 = order.iter().map(|&e| weights[e]).sum();
            for e in order {
                let weight = if *renormalise {
                    weights[e] / sum
                } else {
                    weights[e]
                };
                let gate = self.linear(row, d.d_mlp, experts[e].gate, Order::OutIn, None);
                let up = self.linear(row, d.d_mlp, experts[e].up, Order::OutIn, None);
                let post: Vec<f32> = gate
                    .iter()
                    .zip(&up)
                    .map(|(&g, u)| activate(*f, g) * u)
                    .collect();
                let out = self.linear(&post, d.d_model, experts[e].down, Order::OutIn, None);
                let y = &mut y[r * d.d_model..][..d.d_model];
                y.iter_mut()
                    .zip(out)
                    .for_each(|(y, out)| *y += weight * out);
            }
        }
        self.bufs.insert(*to, y);
    }
}

fn norm(
    kind: NormKind,
    eps: f32,
    width: usize,
    x: &[f32],
    weight: &[f32],
    bias: Option<Vec<f32>>,
) -> Vec<f32> {
    let row = |row: &[f32]| -> Vec<f32> {
        let n = width as f64;
        let mean = match kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => row.iter().map(|&x| f64::from(x)).sum::<f64>() / n,
        };
        let square = row
            .iter()
            .map(|&x| (f64::from(x) - mean).powi(2))
            .sum::<f64>()
            / n;
        let scale = (square + f64::from(eps)).sqrt().recip();
        let shift = |i: usize| bias.as_ref().map_or(0.0, |bias| bias[i]);
        (0..width)
            .map(|i| ((f64::from(row[i]) - mean) * scale) as f32 * weight[i] + shift(i))
            .collect()
    };
    x.chunks(width).flat_map(row).collect()
}

fn softmax(scores: &[f32]) -> Vec<f32> {
    let most = scores.iter().copied().fold(f32::MIN, f32::max);
    let powers: Vec<f32> = scores.iter().map(|s| (s - most).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|p| p / sum).collect()
}

fn activate(f: Activation, x: f32) -> f32 {
    match f {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => (f64::from(x) * 0.5 * (1.0 + erf(f64::from(x) / 2f64.sqrt()))) as f32,
        Activation::GeluTanh => {
            0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh())
        }
        Activation::Relu => x.max(0.0),
    }
}

/// Returns the error function of `x`, computed from its series.
fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        let n = f64::from(n);
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}
