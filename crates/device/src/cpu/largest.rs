//! The largest element of a row.

use crate::{Result, View};

use super::CpuDevice;

impl CpuDevice {
    pub(super) fn do_largest(&self, x: View, ids: View) -> Result<()> {
        let op = self.op("largest");
        op.largest(x, ids)?;
        let (x, ids) = (op.f32("x", x)?, op.out_ids("ids", ids)?);
        self.by_rows(x.rows, x.cols, &|_, rows| {
            for row in rows {
                // SAFETY: checked rows; nobody else writes this id.
                unsafe {
                    let at = |col: usize| x.row(row).add(col).read_unaligned();
                    ids.row(row).write_unaligned(largest((0..x.cols).map(at)));
                }
            }
        });
        Ok(())
    }
}

fn largest(numbers: impl Iterator<Item = f32>) -> i32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (i, x) in (0..).zip(numbers) {
        if x.is_nan() {
            return -1;
        }
        if x > best.1 {
            best = (i, x);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::largest;

    #[test]
    fn the_first_of_equals_and_no_nan() {
        let of = |numbers: &[f32]| largest(numbers.iter().copied());
        assert_eq!(of(&[1.0, 3.0, 3.0, 2.0]), 1);
        assert_eq!(of(&[f32::NEG_INFINITY; 3]), 0);
        assert_eq!(of(&[-2.0, -1.0]), 1);
        assert_eq!(of(&[1.0, f32::NAN, 5.0]), -1);
    }
}
