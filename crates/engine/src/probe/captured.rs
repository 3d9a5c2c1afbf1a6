//! Captured activations.

use std::collections::BTreeMap;

use djinn_device::host;
use djinn_model::{Site, program::Dims};

use super::capture::{Capture, Reduce};
use crate::tensors::Tensor;

/// Captured activations of a session, by hook.
#[derive(Clone, Debug, Default)]
pub struct Captured {
    rows: BTreeMap<Site, CapturedRows>,
    patterns: BTreeMap<Site, Vec<PatternRow>>,
}

/// Captured rows of one hook, reduced if the capture has a reduction.
#[derive(Clone, Debug)]
struct CapturedRows {
    /// Shape of one row.
    shape: Vec<usize>,
    count: usize,
    data: Vec<f32>,
    /// For a mean: the sum so far, and its rounding error.
    sum: Vec<f32>,
}

/// Attention of one position: `[head, keys]`.
#[derive(Clone, Debug)]
struct PatternRow {
    keys: usize,
    data: Vec<f32>,
}

impl Captured {
    fn rows(&mut self, site: Site, capture: &Capture, dims: &Dims) -> &mut CapturedRows {
        self.rows.entry(site).or_insert_with(|| CapturedRows {
            shape: capture.shape(site, dims),
            count: 0,
            data: Vec::new(),
            sum: Vec::new(),
        })
    }

    /// Adds captured rows.
    pub(crate) fn push_rows(&mut self, site: Site, capture: &Capture, dims: &Dims, data: &[f32]) {
        let rows = self.rows(site, capture, dims);
        let each = match capture.reduce {
            Reduce::None => capture.width(),
            reduce => reduce.width(),
        };
        rows.count += data.len() / each;
        if rows.data.is_empty() {
            rows.data = host::vec_in_huge_pages(data.len());
        }
        rows.data.extend(data);
    }

    /// Returns the sum of the rows captured so far.
    pub(crate) fn sum(&self, site: Site) -> Option<&[f32]> {
        Some(&self.rows.get(&site)?.sum)
    }

    /// Replaces the sum, which includes `count` more rows.
    pub(crate) fn set_sum(
        &mut self,
        site: Site,
        capture: &Capture,
        dims: &Dims,
        (sum, count): (&[f32], usize),
    ) {
        let rows = self.rows(site, capture, dims);
        rows.count += count;
        rows.sum = sum.to_vec();
    }

    /// Adds the attention of one position.
    pub(crate) fn push_pattern(&mut self, site: Site, keys: usize, data: Vec<f32>) {
        let row = PatternRow { keys, data };
        self.patterns.entry(site).or_default().push(row);
    }

    /// Bytes of all captures.
    pub fn bytes(&self) -> u64 {
        let rows = self.rows.values();
        let rows = rows.map(|rows| rows.data.len() + rows.sum.len());
        let patterns = self.patterns.values().flatten();
        let patterns = patterns.map(|row| row.data.len());
        4 * rows.chain(patterns).sum::<usize>() as u64
    }

    /// Whether nothing was captured.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.patterns.is_empty()
    }

    /// Returns all captures by hook name, in the layout of their hooks.
    pub fn tensors(&self) -> BTreeMap<String, Tensor> {
        let rows = self
            .rows
            .iter()
            .map(|(site, rows)| (site.to_string(), rows.tensor()));
        let patterns = self.patterns.iter();
        let patterns = patterns.map(|(site, rows)| (site.to_string(), assemble(rows)));
        rows.chain(patterns).collect()
    }
}

impl CapturedRows {
    fn tensor(&self) -> Tensor {
        if !self.sum.is_empty() {
            let (sum, lost) = self.sum.split_at(self.sum.len() / 2);
            let mean = |(sum, lost): (&f32, &f32)| {
                ((f64::from(*sum) + f64::from(*lost)) / self.count as f64) as f32
            };
            return Tensor {
                shape: self.shape.clone(),
                data: sum.iter().zip(lost).map(mean).collect(),
            };
        }
        let count = std::iter::once(self.count);
        Tensor {
            shape: count.chain(self.shape.iter().copied()).collect(),
            data: self.data.clone(),
        }
    }
}

/// Assembles rows of growing length into `[head, query, key]`, zero where a row has no key.
fn assemble(rows: &[PatternRow]) -> Tensor {
    let keys = rows.iter().map(|row| row.keys).max().unwrap_or(0);
    let heads = rows.first().map_or(0, |row| row.data.len() / row.keys);
    let mut data = vec![0.0; heads * rows.len() * keys];
    for (q, row) in rows.iter().enumerate() {
        for (h, from) in row.data.chunks_exact(row.keys).enumerate() {
            let at = (h * rows.len() + q) * keys;
            data[at..at + row.keys].copy_from_slice(from);
        }
    }
    Tensor {
        shape: vec![heads, rows.len(), keys],
        data,
    }
}
