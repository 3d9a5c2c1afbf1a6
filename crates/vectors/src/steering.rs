//! Directions, and how they are made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::VectorsError;

/// What was captured: rows of numbers for each block.
pub type Rows = BTreeMap<usize, Vec<Vec<f32>>>;

/// How a vector was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method {
    /// The difference of two means.
    Mean,
    /// The first principal component of differences.
    Pca,
    /// As its file says; empty where it says nothing.
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

/// One direction for each of some blocks: all of one width, all finite, at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Steering {
    model: String,
    method: Method,
    directions: BTreeMap<usize, Vec<f32>>,
}

impl Steering {
    /// Takes directions by block, if they are sound. `model` says what they were made for.
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

    /// For each block the mean of the positive rows less the mean of the negative ones.
    ///
    /// Sums are of f64, in the order of the rows: the same rows give the same bits. Nothing is
    /// scaled, so a direction is as long as the means are apart.
    pub fn from_means(
        model: &str,
        positive: &Rows,
        negative: &Rows,
    ) -> Result<Steering, VectorsError> {
        let blocks: BTreeSet<usize> = positive.keys().chain(negative.keys()).copied().collect();
        let directions = blocks
            .into_iter()
            .map(|block| Ok((block, difference(block, positive, negative)?)))
            .collect::<Result<_, VectorsError>>()?;
        Steering::new(model, Method::Mean, directions)
    }

    /// What it was made for: a hint, empty where nobody said.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// How it was made.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// By block; each is to be added at the block's `hook_resid_post`.
    pub fn directions(&self) -> &BTreeMap<usize, Vec<f32>> {
        &self.directions
    }

    /// How many numbers every direction has: the width of the model's residual.
    pub fn width(&self) -> usize {
        self.directions.values().next().map_or(0, Vec::len)
    }

    /// How long a block's direction is, if it has one.
    pub fn norm(&self, block: usize) -> Option<f64> {
        let squares = |row: &Vec<f32>| row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        self.directions.get(&block).map(|row| squares(row).sqrt())
    }
}

/// Refuses what cannot be a row of a model so wide.
fn check(block: usize, row: &[f32], expected: usize) -> Result<(), VectorsError> {
    let width = row.len();
    let reason = match row.iter().find(|x| !x.is_finite()) {
        _ if width == 0 => "has a row without numbers".to_owned(),
        _ if width != expected => {
            format!("has {width} numbers where others have {expected}: all must be of one model")
        }
        Some(x) => format!("has a number that is {x}: all must be finite"),
        None => return Ok(()),
    };
    Err(VectorsError::block(block, reason))
}

fn difference(block: usize, positive: &Rows, negative: &Rows) -> Result<Vec<f32>, VectorsError> {
    let (width, with) = mean(block, "positive", positive, None)?;
    let (_, without) = mean(block, "negative", negative, Some(width))?;
    let pairs = with.iter().zip(&without);
    let direction: Vec<f32> = pairs.map(|(a, b)| (a - b) as f32).collect();
    if direction.iter().all(|&x| x == 0.0) {
        let reason = "both sets are alike here: use prompts that differ, or leave it out";
        return Err(VectorsError::block(block, reason));
    }
    Ok(direction)
}

/// The mean of a block's rows, and its width: the one given, or that of the first row.
fn mean(
    block: usize,
    set: &str,
    rows: &Rows,
    width: Option<usize>,
) -> Result<(usize, Vec<f64>), VectorsError> {
    let rows = rows.get(&block).map_or(&[][..], Vec::as_slice);
    let Some(first) = rows.first() else {
        let reason = format!("the {set} set has no rows: capture some, or leave it out");
        return Err(VectorsError::block(block, reason));
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

    use super::{Method, Rows, Steering};

    fn rows(block: usize, rows: &[&[f32]]) -> Rows {
        BTreeMap::from([(block, rows.iter().map(|row| row.to_vec()).collect())])
    }

    #[test]
    fn a_direction_leads_from_mean_to_mean() {
        // In f32 the large number would swallow the small one.
        let positive = rows(3, &[&[1e8, 1.0], &[1.0, 3.0], &[-1e8, 2.0]]);
        let negative = rows(3, &[&[0.0, 5.0]]);
        let steering = Steering::from_means("m", &positive, &negative).unwrap();
        assert_eq!(steering.directions()[&3], [(1.0 / 3.0) as f32, -3.0]);
        assert_eq!((steering.width(), steering.model()), (2, "m"));
        assert_eq!(steering.method(), &Method::Mean);
    }

    #[test]
    fn a_norm_is_of_one_block() {
        let directions = BTreeMap::from([(0, vec![3.0, -4.0]), (2, vec![1e30, 0.0])]);
        let steering = Steering::new("", Method::Pca, directions).unwrap();
        assert_eq!((steering.norm(0), steering.norm(1)), (Some(5.0), None));
        assert_eq!(steering.norm(2), Some(f64::from(1e30_f32)), "no overflow");
    }

    #[test]
    fn rows_that_give_no_direction_are_refused() {
        let good = rows(1, &[&[1.0, 2.0]]);
        let cases = [
            (Rows::new(), Rows::new(), "no directions"),
            (good.clone(), good.clone(), "1: both sets are alike"),
            (good.clone(), rows(1, &[]), "1: the negative set has"),
            (rows(2, &[&[1.0]]), good.clone(), "1: the positive set"),
            (rows(1, &[&[]]), good.clone(), "without numbers"),
            (rows(1, &[&[1.0], &[]]), good.clone(), "without numbers"),
            (rows(1, &[&[1.0]]), good.clone(), "has 2 numbers"),
            (good.clone(), rows(1, &[&[1.0]]), "has 1 numbers"),
            (rows(1, &[&[1.0, f32::NAN]]), good, "is NaN"),
            (rows(1, &[&[f32::MAX]]), rows(1, &[&[f32::MIN]]), "is inf"),
        ];
        for (positive, negative, expect) in cases {
            let error = Steering::from_means("", &positive, &negative).unwrap_err();
            assert!(error.to_string().contains(expect), "{error}");
        }
        let directions = BTreeMap::from([(1, vec![1.0]), (4, vec![1.0, 2.0])]);
        let error = Steering::new("", Method::Mean, directions).unwrap_err();
        assert!(error.to_string().contains("block 4: has 2"), "{error}");
    }
}
