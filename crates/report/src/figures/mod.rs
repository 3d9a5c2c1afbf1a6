//! The figures: each is drawn from data that is there, or left out with the reason.

mod agents;
mod bandwidth;
mod lines;
mod memory;
mod pressure;
mod resume;
#[cfg(test)]
mod tests;
mod timeline;

use crate::{Experiment, ResultFile};

/// A figure that may be drawn.
pub struct Figure {
    /// Its file's name, without an ending.
    pub name: &'static str,
    /// What it shows, in a sentence.
    pub caption: &'static str,
    /// What it is drawn from.
    pub experiments: &'static [Experiment],
    draw: fn(&[&ResultFile]) -> Result<String, String>,
}

impl Figure {
    /// Its SVG, or why there is none.
    pub fn draw(&self, results: &[&ResultFile]) -> Result<String, String> {
        let about = |result: &&&ResultFile| self.experiments.contains(&result.experiment);
        let used: Vec<&ResultFile> = results.iter().filter(about).copied().collect();
        if used.is_empty() {
            let names: Vec<&str> = self.experiments.iter().map(|about| about.name()).collect();
            return Err(format!("there is no result of {}", names.join(" or ")));
        }
        (self.draw)(&used)
    }
}

/// All of them, in the order they are shown.
pub const FIGURES: [Figure; 6] = [
    Figure {
        name: "effective_bandwidth_comparison",
        caption: "Weights of the model times passes, over the time: median of the runs, whiskers from \
                  the slowest to the fastest.",
        experiments: &[Experiment::VirtualMemory],
        draw: bandwidth::draw,
    },
    Figure {
        name: "latency_timeline",
        caption: "What the link and the device did in about two passes. Spans nearer than a pixel are \
                  drawn as one; the share is how long a lane was busy.",
        experiments: &[Experiment::VirtualMemory],
        draw: timeline::draw,
    },
    Figure {
        name: "memory_usage",
        caption: "Device memory as the driver counts it, and where the keys and values of sessions lie.",
        experiments: &[Experiment::VirtualMemory, Experiment::MemoryPressure],
        draw: memory::draw,
    },
    Figure {
        name: "figure6_memory_virtualization",
        caption: "Memory that the open sessions ask for, and what the device really gives. A cross is \
                  where a baseline ran out of memory.",
        experiments: &[Experiment::MemoryPressure],
        draw: pressure::draw,
    },
    Figure {
        name: "figure7_resume_latency",
        caption: "From the end of a pause to when the next block begins, by the layer behind which the \
                  session stopped: median of the runs, whiskers from the fastest to the slowest.",
        experiments: &[Experiment::ResumeLatency],
        draw: resume::draw,
    },
    Figure {
        name: "agents_latency",
        caption: "From the end of an agent's thought to its next token: half do not take longer (p50), \
                  99 % do not take longer (p99).",
        experiments: &[Experiment::Agents],
        draw: agents::draw,
    },
];

/// What a plot of one result is called: nothing where it is the only one and the title says all.
fn plot_title(result: &ResultFile) -> String {
    match result.name == result.model || result.model.is_empty() {
        true => result.name.clone(),
        false => format!("{} · {}", result.name, result.short_model()),
    }
}
