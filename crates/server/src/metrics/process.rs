//! Metrics of the process, by the names that Prometheus clients use.

use std::fs;

use djinn_device::host::rss_bytes;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// Collector of the figures that the operating system keeps of this process.
#[derive(Debug)]
pub struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stat = ProcessStat::read();
        let seconds = ConstCounter::new(stat.cpu_seconds);
        let kind = seconds.metric_type();
        let help = "Processor time of the process";
        let family = encoder.encode_descriptor("cpu_seconds", help, None, kind)?;
        seconds.encode(family)?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let gauges = [
            (
                "resident_memory_bytes",
                "Resident memory",
                rss_bytes().unwrap_or(0) as f64,
            ),
            ("virtual_memory_bytes", "Virtual memory", stat.virtual_bytes),
            ("open_fds", "Open file descriptors", open_descriptors()),
            (
                "max_fds",
                "Limit of file descriptors",
                limit.unwrap_or(u64::MAX) as f64,
            ),
            ("threads", "Threads of the process", stat.threads),
            (
                "start_time_seconds",
                "Start of the process, in seconds since 1970",
                stat.start,
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            let family = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(family)?;
        }
        Ok(())
    }
}

/// Figures of `/proc/self/stat`.
#[derive(Debug, Default)]
struct ProcessStat {
    cpu_seconds: f64,
    threads: f64,
    start: f64,
    virtual_bytes: f64,
}

impl ProcessStat {
    /// Reads the figures; zero where the system does not report them.
    fn read() -> Self {
        let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        // The name of the program may contain spaces, so fields are counted from its end.
        let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<f64> = fields
            .split_whitespace()
            .map(|field| field.parse().unwrap_or(0.0))
            .collect();
        let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0.0);
        ProcessStat {
            cpu_seconds: (field(14) + field(15)) / ticks,
            threads: field(20),
            start: boot_time() + field(22) / ticks,
            virtual_bytes: field(23),
        }
    }
}

/// Time at which the machine started, in seconds since 1970.
fn boot_time() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("btime "));
    line.and_then(|seconds| seconds.trim().parse().ok())
        .unwrap_or(0.0)
}

fn open_descriptors() -> f64 {
    fs::read_dir("/proc/self/fd").map_or(0.0, |all| all.count() as f64)
}

#[cfg(test)]
mod tests {
    use super::{ProcessStat, open_descriptors};

    #[test]
    fn the_figures_of_this_process_are_plausible() {
        let stat = ProcessStat::read();
        assert!(stat.threads >= 1.0 && stat.virtual_bytes > 1e6, "{stat:?}");
        assert!(stat.start > 1.5e9, "{stat:?}");
        assert!(open_descriptors() >= 3.0);
    }
}
