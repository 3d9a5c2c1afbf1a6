//! Reductions of rows: lengths, sums, the largest elements.

use crate::{Reduction, check::Mat};

use super::CpuDevice;

/// Number of partial sums, which the CPU adds in parallel.
const PARTIAL_SUMS: usize = 8;

/// Reduces the rows of a checked matrix.
pub(super) fn reduce(device: &CpuDevice, x: Mat<f32>, how: Reduction, out: Mat<f32>) {
    match how {
        Reduction::Sum => device.by_columns(x.cols, x.rows, &|_, cols| {
            for col in cols {
                // SAFETY: checked matrices; no other thread has this column.
                unsafe { add_up(x, col, out) };
            }
        }),
        Reduction::Norm => device.by_rows(x.rows, x.cols, &|_, rows| {
            for row in rows {
                // SAFETY: checked rows; no other thread writes this one.
                unsafe { out.row(row).write_unaligned(length(&numbers(x, row))) };
            }
        }),
        Reduction::Largest | Reduction::Likeliest => {
            device.by_rows(x.rows, x.cols, &|_, rows| {
                for row in rows {
                    let found = largest(&numbers(x, row), how, out.cols / 2);
                    for (col, number) in found.into_iter().enumerate() {
                        // SAFETY: checked rows; no other thread writes this one.
                        unsafe { out.row(row).add(col).write_unaligned(number) };
                    }
                }
            });
        }
    }
}

/// Reads a row of a matrix.
fn numbers(x: Mat<f32>, row: usize) -> Vec<f32> {
    // SAFETY: a checked matrix.
    let at = |col: usize| unsafe { x.row(row).add(col).read_unaligned() };
    (0..x.cols).map(at).collect()
}

/// Adds a column to a running sum, and the rounding errors to the sum of errors.
///
/// # Safety
/// `sum` has two rows as wide as `x`, and no other thread uses this column.
unsafe fn add_up(x: Mat<f32>, col: usize, sum: Mat<f32>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let [whole, rest] = [0, 1].map(|row| sum.row(row).add(col));
        let (mut all, mut lost) = (whole.read_unaligned(), rest.read_unaligned());
        for row in 0..x.rows {
            let number = x.row(row).add(col).read_unaligned();
            let next = all + number;
            let part = next - all;
            lost += (all - (next - part)) + (number - part);
            all = next;
        }
        whole.write_unaligned(all);
        rest.write_unaligned(lost);
    }
}

fn length(row: &[f32]) -> f32 {
    let mut sums = [0f64; PARTIAL_SUMS];
    for part in row.chunks(PARTIAL_SUMS) {
        for (sum, x) in sums.iter_mut().zip(part) {
            *sum += f64::from(*x) * f64::from(*x);
        }
    }
    sums.iter().sum::<f64>().sqrt() as f32
}

/// Returns the columns of the largest elements, then their values.
fn largest(row: &[f32], how: Reduction, count: usize) -> Vec<f32> {
    let first = |&a: &usize, &b: &usize| row[b].total_cmp(&row[a]).then(a.cmp(&b));
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.select_nth_unstable_by(count - 1, first);
    order.truncate(count);
    order.sort_unstable_by(first);
    let most = row[order[0]];
    let weight = |x: f32| f64::from((x - most).exp());
    let all = match how {
        Reduction::Likeliest => row.iter().map(|&x| weight(x)).sum(),
        _ => 1.0,
    };
    let value = |&place: &usize| match how {
        Reduction::Likeliest => (weight(row[place]) / all) as f32,
        _ => row[place],
    };
    let places = order.iter().map(|&place| place as f32);
    places.chain(order.iter().map(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::{largest, length};
    use crate::Reduction;

    #[test]
    fn the_largest_come_first_and_of_equals_the_lower_column() {
        let row = [0.0, 2.0, -1.0, 2.0];
        let found = largest(&row, Reduction::Largest, 3);
        assert_eq!(found, [1.0, 3.0, 0.0, 2.0, 2.0, 0.0]);
        let shares = largest(&row, Reduction::Likeliest, 4);
        let sum: f32 = shares[4..].iter().sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    }

    #[test]
    fn lengths_do_not_overflow_in_the_squares() {
        assert_eq!(length(&[3e30, 4e30]), 5e30);
        assert!(length(&[1.0, f32::NAN]).is_nan());
    }
}
