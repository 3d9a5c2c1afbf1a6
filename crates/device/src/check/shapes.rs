//! Shapes of operands that fit together, the same for every backend.

use super::OpCheck;
use crate::{Attention, Draw, Edit, KvLayer, Reduction, Result, Rows, View, Weight};
use djinn_types::{DType, Order};

impl OpCheck {
    pub(crate) fn gather(&self, table: View, ids: View, out: View) -> Result<()> {
        self.shape("ids", ids, out.rows, 1)?;
        self.shape("table", table, table.rows, out.cols)?;
        self.apart(out, table)?;
        self.apart(out, ids)
    }

    pub(crate) fn scatter_add(&self, src: View, ids: View, weights: View, out: View) -> Result<()> {
        self.shape("ids", ids, src.rows, 1)?;
        self.shape("weights", weights, src.rows, 1)?;
        self.shape("out", out, out.rows, src.cols)?;
        [src, ids, weights]
            .into_iter()
            .try_for_each(|input| self.apart(out, input))
    }

    pub(crate) fn norm(&self, x: View, weight: View, bias: Option<View>, out: View) -> Result<()> {
        self.shape("out", out, x.rows, x.cols)?;
        self.same_or_apart(out, x)?;
        self.shape("weight", weight, 1, x.cols)?;
        self.apart(out, weight)?;
        self.bias(bias, x.cols, out)
    }

    /// Checks a product.
    pub(crate) fn linear(
        &self,
        x: View,
        weight: Weight,
        bias: Option<View>,
        out: View,
    ) -> Result<(usize, usize)> {
        let w = weight.view;
        let (inputs, outputs) = match weight.order {
            Order::OutIn => (w.cols, w.rows),
            Order::InOut => (w.rows, w.cols),
        };
        self.shape("x", x, x.rows, inputs)?;
        self.shape("out", out, x.rows, outputs)?;
        self.apart(out, x)?;
        self.apart(out, w)?;
        self.bias(bias, outputs, out)?;
        Ok((inputs, outputs))
    }

    fn bias(&self, bias: Option<View>, cols: usize, out: View) -> Result<()> {
        let Some(bias) = bias else { return Ok(()) };
        self.shape("bias", bias, 1, cols)?;
        self.apart(out, bias)
    }

    pub(crate) fn rope_table(&self, positions: View, frequencies: View, out: View) -> Result<()> {
        let n = frequencies.cols;
        self.shape("positions", positions, out.rows, 1)?;
        self.shape("frequencies", frequencies, 1, n)?;
        self.shape("out", out, out.rows, 2 * n)?;
        self.apart(out, positions)?;
        self.apart(out, frequencies)
    }

    pub(crate) fn rope(&self, x: View, table: View, d_head: usize) -> Result<()> {
        self.ensure(d_head > 0 && x.cols.is_multiple_of(d_head), || {
            format!(
                "x has {} columns, which is not a multiple of d_head {d_head}",
                x.cols
            )
        })?;
        let width = table.cols;
        self.ensure(width.is_multiple_of(2) && width <= d_head, || {
            format!("a table of {width} columns cannot rotate heads of {d_head} elements")
        })?;
        self.shape("table", table, x.rows, width)?;
        self.apart(x, table)
    }

    pub(crate) fn append(&self, k: View, v: View, rows: Rows, kv: &KvLayer) -> Result<()> {
        let width = kv.kv_heads.saturating_mul(kv.d_head);
        self.shape("k", k, k.rows, width)?;
        self.shape("v", v, k.rows, width)?;
        let pages = self.pages(kv)?;
        for view in [k, v, rows.positions, rows.sequences, rows.tables] {
            self.apart_from(view, pages)?;
        }
        self.row_owners(rows, k.rows)
    }

    pub(crate) fn attend(
        &self,
        q: View,
        rows: Rows,
        kv: &KvLayer,
        how: Attention,
        out: View,
    ) -> Result<()> {
        let width = how.heads.saturating_mul(kv.d_head);
        self.shape("q", q, q.rows, width)?;
        self.shape("out", out, q.rows, width)?;
        self.apart(out, q)?;
        self.attention(rows, kv, how, q.rows, out)
    }

    pub(crate) fn pattern(
        &self,
        q: View,
        rows: Rows,
        kv: &KvLayer,
        how: Attention,
        out: View,
    ) -> Result<()> {
        self.shape("q", q, q.rows, how.heads.saturating_mul(kv.d_head))?;
        self.shape("out", out, q.rows.saturating_mul(how.heads), out.cols)?;
        self.apart(out, q)?;
        self.attention(rows, kv, how, q.rows, out)
    }

    pub(crate) fn mix(
        &self,
        pattern: View,
        rows: Rows,
        kv: &KvLayer,
        how: Attention,
        out: View,
    ) -> Result<()> {
        self.shape("out", out, out.rows, how.heads.saturating_mul(kv.d_head))?;
        let lines = out.rows.saturating_mul(how.heads);
        self.shape("pattern", pattern, lines, pattern.cols)?;
        self.apart(out, pattern)?;
        self.attention(rows, kv, how, out.rows, out)
    }

    fn attention(
        &self,
        rows: Rows,
        kv: &KvLayer,
        how: Attention,
        count: usize,
        out: View,
    ) -> Result<()> {
        let whole = how.heads > 0 && how.heads.is_multiple_of(kv.kv_heads.max(1));
        self.ensure(whole, || {
            format!(
                "{} query heads do not share {} key heads evenly",
                how.heads, kv.kv_heads
            )
        })?;
        self.ensure(how.window != Some(0), || {
            "the attention window is 0 keys, but must be at least 1".into()
        })?;
        let pages = self.pages(kv)?;
        self.apart_from(out, pages)?;
        self.row_owners(rows, count)?;
        [rows.positions, rows.sequences, rows.tables]
            .into_iter()
            .try_for_each(|view| self.apart(out, view))
    }

    fn row_owners(&self, rows: Rows, count: usize) -> Result<()> {
        self.shape("positions", rows.positions, count, 1)?;
        self.shape("sequences", rows.sequences, count, 1)
    }

    pub(crate) fn activate(&self, x: View, out: View) -> Result<()> {
        self.shape("out", out, x.rows, x.cols)?;
        self.same_or_apart(out, x)
    }

    pub(crate) fn gate(&self, gate: View, up: View, out: View) -> Result<()> {
        self.shape("up", up, gate.rows, gate.cols)?;
        self.shape("out", out, gate.rows, gate.cols)?;
        self.same_or_apart(out, gate)?;
        self.apart(out, up)
    }

    pub(crate) fn add(&self, x: View, out: View) -> Result<()> {
        self.shape("out", out, x.rows, x.cols)?;
        self.apart(out, x)
    }

    pub(crate) fn split(
        &self,
        x: View,
        first: usize,
        stride: usize,
        width: usize,
        out: View,
    ) -> Result<()> {
        self.ensure(width > 0 && out.cols.is_multiple_of(width), || {
            format!(
                "out has {} columns, which is not a multiple of {width}",
                out.cols
            )
        })?;
        self.ensure(x.rows == out.rows, || {
            format!("out has {} rows, but x has {}", out.rows, x.rows)
        })?;
        let groups = out.cols / width;
        let last = groups.saturating_sub(1).checked_mul(stride);
        let end = last.and_then(|last| last.checked_add(first)?.checked_add(width));
        self.ensure(groups == 0 || end.is_some_and(|end| end <= x.cols), || {
            let cols = x.cols;
            format!("{groups} groups of {width} at {first}, {stride} apart, do not fit in {cols} columns")
        })?;
        self.apart(out, x)
    }

    pub(crate) fn route(&self, logits: View, ids: View, weights: View) -> Result<()> {
        let k = ids.cols;
        self.ensure(k <= logits.cols && logits.cols <= i32::MAX as usize, || {
            format!("cannot choose {k} of {} experts", logits.cols)
        })?;
        self.shape("ids", ids, logits.rows, k)?;
        self.shape("weights", weights, logits.rows, k)?;
        [(ids, logits), (weights, logits), (ids, weights)]
            .into_iter()
            .try_for_each(|(a, b)| self.apart(a, b))
    }

    pub(crate) fn sample(&self, x: View, draws: View, ids: View) -> Result<()> {
        self.shape("draws", draws, x.rows, Draw::WORDS)?;
        self.shape("ids", ids, x.rows, 1)?;
        // The weights of more columns would overflow their sum.
        self.ensure(0 < x.cols && x.cols <= 1 << 23, || {
            format!(
                "cannot sample from {} columns; the limit is {}",
                x.cols,
                1 << 23
            )
        })?;
        self.apart(ids, draws)?;
        self.apart(ids, x)
    }

    pub(crate) fn reduce(&self, x: View, how: Reduction, out: View) -> Result<()> {
        match how {
            Reduction::Norm => self.shape("out", out, x.rows, 1)?,
            Reduction::Sum => self.shape("out", out, 2, x.cols)?,
            Reduction::Largest | Reduction::Likeliest => {
                self.shape("out", out, x.rows, out.cols)?;
                // Columns are written as f32, which is exact up to 2²⁴.
                let fits = out.cols.is_multiple_of(2) && out.cols / 2 <= x.cols;
                self.ensure(fits && out.cols > 0 && x.cols <= 1 << 24, || {
                    format!(
                        "out has {} columns; it needs 2 for each largest element of x, which has {} columns",
                        out.cols, x.cols
                    )
                })?;
            }
        }
        self.apart(out, x)
    }

    /// Checks an edit, and returns its operand if it has one.
    pub(crate) fn operand(&self, x: View, edit: Edit) -> Result<Option<View>> {
        let operand = match edit {
            Edit::Add { operand, .. } | Edit::AddMatched { operand, .. } => operand,
            Edit::Replace(operand) | Edit::ProjectOut(operand) => operand,
            Edit::Scale(_) | Edit::Zero | Edit::Clamp { .. } => return Ok(None),
        };
        self.ensure(operand.rows == 1 || operand.rows == x.rows, || {
            format!("operand has {} rows, not 1 or {}", operand.rows, x.rows)
        })?;
        self.shape("operand", operand, operand.rows, x.cols)?;
        self.ensure(operand.dtype == DType::F32, || {
            format!("operand is {}, not f32", operand.dtype)
        })?;
        self.apart(x, operand)?;
        Ok(Some(operand))
    }
}
