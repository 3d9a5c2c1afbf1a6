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
    /// Bytes of KV pages that streamed for the pass, besides `link_bytes`.
    pub kv_bytes: u64,
    /// Seconds in which the link had weights in flight.
    pub link_s: f64,
    /// Seconds in which the pass waited for weights.
    pub stall_s: f64,
}

impl PassStats {
    /// Seconds in which the pass did not wait for weights.
    pub fn compute_s(&self) -> f64 {
        self.seconds - self.stall_s
    }

    /// Throughput of the link in GB/s while it had bytes in flight; 0 if it had none. If KV pages
    /// streamed, the rate is over the whole pass, because pages and weights share the link.
    pub fn link_gb_per_s(&self) -> f64 {
        let seconds = match self.kv_bytes {
            0 => self.link_s,
            _ => self.seconds,
        };
        match seconds > 0.0 {
            true => (self.link_bytes + self.kv_bytes) as f64 / seconds / 1e9,
            false => 0.0,
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
