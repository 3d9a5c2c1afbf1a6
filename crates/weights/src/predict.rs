//! Predictions of the duration of a pass, from sizes and rates.

/// Rates at which bytes move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes per second over the link.
    pub link: f64,
    /// Bytes of weights per second through the matrix products of a pass.
    pub compute: f64,
    /// Whether the processor that computes also runs the link. Their times then add up.
    pub shared: bool,
}

/// Work of a pass in addition to reading the pieces of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassWork {
    /// Bytes that operations read in addition to pieces and experts, such as KV.
    pub other_bytes: f64,
    /// Bytes of KV pages that cross the link.
    pub paged_bytes: f64,
    /// Number of experts that a pass uses.
    pub experts_used: f64,
    /// Whether pieces are copied ahead of their use.
    pub prefetch: bool,
}

/// Resource that limits the speed of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The link that copies weights.
    Link,
    /// The operations that read weights.
    Compute,
}

/// Predicted duration of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Bytes over the link.
    pub link_bytes: f64,
    /// Seconds that the link needs.
    pub link_s: f64,
    /// Seconds that the operations need.
    pub compute_s: f64,
    /// Seconds of the whole pass.
    pub pass_s: f64,
    /// Resource that limits the pass.
    pub bound: Bound,
}

/// Weights of one kind (pieces or experts) as the prediction counts them.
pub(crate) struct WeightShare {
    /// Bytes that operations read.
    pub used: f64,
    /// Bytes that cross the link.
    pub linked: f64,
    /// Share of copying and computing that can overlap, from 0 to 1.
    pub overlap: f64,
}

impl WeightShare {
    /// Seconds in which the link or the operations wait although both have work.
    fn exposed(&self, rates: &Rates) -> f64 {
        let (link_s, compute_s) = (self.linked / rates.link, self.linked / rates.compute);
        (1.0 - self.overlap) * link_s.min(compute_s)
    }
}

impl Prediction {
    /// Predicts a pass that uses experts and pieces.
    pub(crate) fn new(
        experts: &WeightShare,
        pieces: &WeightShare,
        work: &PassWork,
        rates: &Rates,
    ) -> Prediction {
        let link_bytes = experts.linked + pieces.linked + work.paged_bytes;
        let link_s = link_bytes / rates.link;
        let read = experts.used + pieces.used + work.other_bytes;
        let compute_s = read / rates.compute;
        let exposed = experts.exposed(rates) + pieces.exposed(rates);
        let pass_s = if work.prefetch && !rates.shared {
            link_s.max(compute_s) + exposed
        } else {
            link_s + compute_s
        };
        Prediction {
            link_bytes,
            link_s,
            compute_s,
            pass_s,
            bound: if link_s > compute_s {
                Bound::Link
            } else {
                Bound::Compute
            },
        }
    }
}
