//! One element of a row, chosen as its draw says.

use crate::{Draw, Result, View};

use super::CpuDevice;

impl CpuDevice {
    pub(super) fn do_sample(&self, x: View, draws: View, ids: View) -> Result<()> {
        let op = self.op("sample");
        op.sample(x, draws, ids)?;
        let (x, draws) = (op.f32("x", x)?, op.i32("draws", draws)?);
        let ids = op.out_ids("ids", ids)?;
        self.by_rows(x.rows, x.cols, &|_, rows| {
            for row in rows {
                // SAFETY: checked rows; nobody else writes this id.
                unsafe {
                    let word = |i: usize| draws.row(row).add(i).read_unaligned();
                    let draw = Draw::from_words(std::array::from_fn(word));
                    let at = |col: usize| x.row(row).add(col).read_unaligned();
                    let numbers: Vec<f32> = (0..x.cols).map(at).collect();
                    let chosen = draw.choose(&numbers).map_or(-1, u32::cast_signed);
                    ids.row(row).write_unaligned(chosen);
                }
            }
        });
        Ok(())
    }
}
