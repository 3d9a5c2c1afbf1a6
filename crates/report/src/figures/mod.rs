//! The figures of a report. A figure without data is left out, with the reason.

mod agents;
mod bandwidth;
mod figure;
mod lines;
mod memory;
mod pressure;
mod resume;
#[cfg(test)]
mod tests;
mod timeline;

pub use figure::{DrawnFigure, MissingData};

use crate::result::{Experiment, ResultFile};
use figure::Figure;

/// Draws every figure for which the results contain data.
pub fn draw_all(results: &[&ResultFile]) -> Vec<DrawnFigure> {
    FIGURES.iter().map(|figure| figure.draw(results)).collect()
}

/// All figures, in the order in which reports show them.
const FIGURES: [Figure; 6] = [
    Figure {
        name: "effective_bandwidth_comparison",
        caption: "Effective bandwidth: size of the weights times passes, divided by the time. Bars show \
                  the median of the runs, whiskers the slowest and the fastest run.",
        experiments: &[Experiment::VirtualMemory],
        plot: bandwidth::draw,
    },
    Figure {
        name: "latency_timeline",
        caption: "Activity of the link and the device during about two passes. Spans closer than a pixel \
                  are drawn as one. The percentage is the share of time in which a lane was busy.",
        experiments: &[Experiment::VirtualMemory],
        plot: timeline::draw,
    },
    Figure {
        name: "memory_usage",
        caption: "Device memory as the driver counts it, and the KV cache on the device, in host memory \
                  and on disk.",
        experiments: &[Experiment::VirtualMemory, Experiment::MemoryPressure],
        plot: memory::draw,
    },
    Figure {
        name: "figure6_memory_virtualization",
        caption: "Memory that the open sessions need, and device memory in use. A cross marks the point \
                  where a baseline ran out of memory.",
        experiments: &[Experiment::MemoryPressure],
        plot: pressure::draw,
    },
    Figure {
        name: "figure7_resume_latency",
        caption: "Time from the end of a pause to the start of the next block, by the layer after which \
                  the session stopped. Lines show the median of the runs, whiskers the fastest and the \
                  slowest run.",
        experiments: &[Experiment::ResumeLatency],
        plot: resume::draw,
    },
    Figure {
        name: "agents_latency",
        caption: "Time from the end of an agent's pause to its next token: median (p50) and 99th \
                  percentile (p99).",
        experiments: &[Experiment::Agents],
        plot: agents::draw,
    },
];
