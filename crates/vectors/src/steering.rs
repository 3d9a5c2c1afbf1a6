//! Steering vectors and their computation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::error::{BlockProblem, VectorsError};

/// Captured rows of each block.
pub type VectorRows = BTreeMap<usize, Vec<Vec<f32>>>;

/// Method that computed a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method {
    /// Difference of two means.
    Mean,
    /// First principal component of differences.
    Pca,
    /// Other method, as named in a file; empty if the file does not name one.
    Other(String),
}

impl From<&str> for Method {
    fn from(text: &str) -> Self {
        match text {
            "mean" => Method::Mean,
            "pca" => Method::Pca,
            other => Method::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Mean => "mean",
            Method::Pca => "pca",
            Method::Other(text) => text,
        })
    }
}

/// Steering vector: a direction for one or more blocks, all of one width, all values finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Steering {
    model: String,
    method: Method,
    directions: BTreeMap<usize, Vec<f32>>,
}

impl Steering {
    /// Creates a vector from directions by block. `model` names the model that the directions were
    /// computed for.
    pub fn new(
        model: &str,
        method: Method,
        directions: BTreeMap<usize, Vec<f32>>,
    ) -> Result<Steering, VectorsError> {
        let Some(first) = directions.values().next() else {
            return Err(VectorsError::NoDirections);
        };
        for (&block, direction) in &directions {
            check(block, direction, first.len())?;
        }
        let model = model.to_owned();
        Ok(Steering {
            model,
            method,
            directions,
        })
    }

    /// Computes, for each block, the mean of the positive rows minus the mean of the negative rows.
    ///
    /// Sums are computed in f64, in the order of the rows, so equal rows give equal bits. The
    /// directions are not scaled.
    pub fn from_means(
        model: &str,
        positive: &VectorRows,
        negative: &VectorRows,
    ) -> Result<Steering, VectorsError> {
        let blocks: BTreeSet<usize> = positive.keys().chain(negative.keys()).copied().collect();
        let directions = blocks
            .into_iter()
            .map(|block| Ok((block, difference(block, positive, negative)?)))
            .collect::<Result<_, VectorsError>>()?;
        Steering::new(model, Method::Mean, directions)
    }

    /// Returns the name of the model that the vector was computed for; empty if unknown.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Returns the method that computed the vector.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Returns the directions by block. A direction is added at `hook_resid_post` of its block.
    pub fn directions(&self) -> &BTreeMap<usize, Vec<f32>> {
        &self.directions
    }

    /// Returns the number of values in every direction, the width of the model's residual.
    pub fn width(&self) -> usize {
        self.directions.values().next().map_or(0, Vec::len)
    }

    /// Returns the Euclidean length of a block's direction; `None` if the block has none.
    pub fn norm(&self, block: usize) -> Option<f64> {
        let squares = |row: &Vec<f32>| row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        self.directions.get(&block).map(|row| squares(row).sqrt())
    }
}

/// Checks that a row has the expected width and finite values.
fn check(block: usize, row: &[f32], expected: usize) -> Result<(), VectorsError> {
    let width = row.len();
    let problem = match row.iter().find(|x| !x.is_finite()) {
        _ if width == 0 => BlockProblem::Empty,
        _ if width != expected => BlockProblem::Width {
            found: width,
            expected,
        },
        Some(&value) => BlockProblem::NotFinite { value },
        None => return Ok(()),
    };
    Err(VectorsError::block(block, problem))
}

fn difference(
    block: usize,
    positive: &VectorRows,
    negative: &VectorRows,
) -> Result<Vec<f32>, VectorsError> {
    let (width, with) = mean(block, "positive", positive, None)?;
    let (_, without) = mean(block, "negative", negative, Some(width))?;
    let pairs = with.iter().zip(&without);
    let direction: Vec<f32> = pairs.map(|(a, b)| (a - b) as f32).collect();
    if direction.iter().all(|&x| x == 0.0) {
        return Err(VectorsError::block(block, BlockProblem::SameMean));
    }
    Ok(direction)
}

/// Returns the width and the mean of a block's rows. Every row must have the given width, or the
/// width of the first row.
fn mean(
    block: usize,
    set: &'static str,
    rows: &VectorRows,
    width: Option<usize>,
) -> Result<(usize, Vec<f64>), VectorsError> {
    let rows = rows.get(&block).map_or(&[][..], Vec::as_slice);
    let Some(first) = rows.first() else {
        return Err(VectorsError::block(block, BlockProblem::NoRows { set }));
    };
    let width = width.unwrap_or(first.len());
    let mut sums = vec![0.0; width];
    for row in rows {
        check(block, row, width)?;
        for (sum, &x) in sums.iter_mut().zip(row) {
            *sum += f64::from(x);
        }
    }
    let count = rows.len() as f64;
    Ok((width, sums.into_iter().map(|sum| sum / count).collect()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{BlockProblem, Method, Steering, VectorRows, VectorsError};

    fn rows(block: usize, rows: &[&[f32]]) -> VectorRows {
        BTreeMap::from([(block, rows.iter().map(|row| row.to_vec()).collect())])
    }

    #[test]
    fn directions_are_differences_of_means() {
        // A sum in f32 would lose the small value.
        let positive = rows(3, &[&[1e8, 1.0], &[1.0, 3.0], &[-1e8, 2.0]]);
        let negative = rows(3, &[&[0.0, 5.0]]);
        let steering = Steering::from_means("m", &positive, &negative).unwrap();
        assert_eq!(steering.directions()[&3], [(1.0 / 3.0) as f32, -3.0]);
        assert_eq!((steering.width(), steering.model()), (2, "m"));
        assert_eq!(steering.method(), &Method::Mean);
    }

    #[test]
    fn norms_are_by_block() {
        let directions = BTreeMap::from([(0, vec![3.0, -4.0]), (2, vec![1e30, 0.0])]);
        let steering = Steering::new("", Method::Pca, directions).unwrap();
        assert_eq!((steering.norm(0), steering.norm(1)), (Some(5.0), None));
        assert_eq!(steering.norm(2), Some(f64::from(1e30_f32)), "no overflow");
    }

    fn problem(error: VectorsError) -> (usize, BlockProblem) {
        match error {
            VectorsError::Block { block, problem } => (block, problem),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn invalid_rows_are_refused() {
        let error = |positive: &VectorRows, negative: &VectorRows| {
            Steering::from_means("", positive, negative).unwrap_err()
        };
        let none = error(&VectorRows::new(), &VectorRows::new());
        assert!(matches!(none, VectorsError::NoDirections), "{none}");
        let good = rows(1, &[&[1.0, 2.0]]);
        let no_rows = |set| BlockProblem::NoRows { set };
        let width = |found, expected| BlockProblem::Width { found, expected };
        let cases = [
            (good.clone(), good.clone(), BlockProblem::SameMean),
            (good.clone(), rows(1, &[]), no_rows("negative")),
            (rows(2, &[&[1.0]]), good.clone(), no_rows("positive")),
            (rows(1, &[&[]]), good.clone(), BlockProblem::Empty),
            (rows(1, &[&[1.0], &[]]), good.clone(), BlockProblem::Empty),
            (rows(1, &[&[1.0]]), good.clone(), width(2, 1)),
            (good.clone(), rows(1, &[&[1.0]]), width(1, 2)),
        ];
        for (positive, negative, expect) in cases {
            assert_eq!(problem(error(&positive, &negative)), (1, expect));
        }
        for (positive, negative) in [
            (rows(1, &[&[1.0, f32::NAN]]), good),
            (rows(1, &[&[f32::MAX]]), rows(1, &[&[f32::MIN]])),
        ] {
            let (_, problem) = problem(error(&positive, &negative));
            assert!(
                matches!(problem, BlockProblem::NotFinite { .. }),
                "{problem}"
            );
        }
        let directions = BTreeMap::from([(1, vec![1.0]), (4, vec![1.0, 2.0])]);
        let error = Steering::new("", Method::Mean, directions).unwrap_err();
        assert_eq!(problem(error), (4, width(2, 1)));
    }
}
