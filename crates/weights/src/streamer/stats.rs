//! Cost of a pass.

/// Times and bytes of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassStats {
    /// Rows of the pass.
    pub rows: usize,
    /// Duration of the pass in seconds.
    pub seconds: f64,
    /// Bytes that crossed the link: during the pass if files are read, for the pass if the device
    /// copies from host memory.
    pub link_bytes: u64,
    /// Seconds in which the link had bytes in flight.
    pub link_s: f64,
    /// Seconds in which the pass waited for weights.
    pub stall_s: f64,
}

impl PassStats {
    /// Seconds in which the pass did not wait for weights.
    pub fn compute_s(&self) -> f64 {
        self.seconds - self.stall_s
    }

    /// Throughput of the link in GB/s while it had bytes in flight; 0 if it had none.
    pub fn link_gb_per_s(&self) -> f64 {
        if self.link_s > 0.0 {
            self.link_bytes as f64 / self.link_s / 1e9
        } else {
            0.0
        }
    }

    /// Share of the shorter of copying and computing that overlapped with the other, from 0 to 1.
    pub fn overlap(&self) -> f64 {
        let shorter = self.link_s.min(self.compute_s());
        if shorter <= 0.0 {
            return 0.0;
        }
        ((self.link_s + self.compute_s() - self.seconds) / shorter).clamp(0.0, 1.0)
    }
}
