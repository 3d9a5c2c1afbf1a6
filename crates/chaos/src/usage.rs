//! Growth of memory and open files between points at which the server has the same work.

use djinn_types::Size;

use crate::server::ProcessUsage;

/// Memory by which a process may grow after its first sample. The host memory for KV pages and
/// the buffers of the allocator fill up during the first rounds.
pub const RSS_MARGIN: u64 = 48 << 20;
/// Descriptors by which a process may grow: connections that are about to close.
pub const DESCRIPTOR_MARGIN: usize = 24;

/// Sample of a process at rest.
#[derive(Clone, Copy, Debug)]
pub struct UsageSample {
    /// Number of the server's start.
    pub start: u64,
    /// Memory and descriptors.
    pub usage: ProcessUsage,
}

/// Samples of all processes of a run.
#[derive(Clone, Debug, Default)]
pub struct UsageSeries(Vec<UsageSample>);

impl UsageSeries {
    /// Adds a sample. Returns an error if the process has grown since its first sample.
    pub fn push(&mut self, sample: UsageSample) -> Result<(), String> {
        let first = self.0.iter().find(|first| first.start == sample.start);
        let first = first.copied().unwrap_or(sample).usage;
        self.0.push(sample);
        let now = sample.usage;
        if now.rss > first.rss + RSS_MARGIN {
            return Err(format!(
                "the memory of one process grew from {} to {}; the margin is {}",
                Size(first.rss),
                Size(now.rss),
                Size(RSS_MARGIN)
            ));
        }
        if now.descriptors > first.descriptors + DESCRIPTOR_MARGIN {
            return Err(format!(
                "the open files of one process grew from {} to {}; the margin is {DESCRIPTOR_MARGIN}",
                first.descriptors, now.descriptors
            ));
        }
        Ok(())
    }

    /// First and last sample.
    pub fn ends(&self) -> Option<(ProcessUsage, ProcessUsage)> {
        Some((self.0.first()?.usage, self.0.last()?.usage))
    }

    /// Number of samples.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(start: u64, rss: u64, descriptors: usize) -> UsageSample {
        let usage = ProcessUsage { rss, descriptors };
        UsageSample { start, usage }
    }

    #[test]
    fn growth_counts_within_one_process() {
        let mut series = UsageSeries::default();
        assert!(series.push(sample(0, 1 << 20, 10)).is_ok());
        assert!(series.push(sample(1, 200 << 20, 90)).is_ok());
        assert!(series.push(sample(1, 240 << 20, 90)).is_ok());
        assert!(series.push(sample(1, 260 << 20, 90)).is_err());
        assert!(series.push(sample(1, 200 << 20, 120)).is_err());
        assert!(series.push(sample(0, 2 << 20, 10)).is_ok());
    }
}
