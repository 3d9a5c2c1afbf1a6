//! `--stats` and `--timeline`: what the link did, pass by pass.

use std::{path::PathBuf, time::Duration};

use djinn_bench::rates;
use djinn_engine::{Blueprint, Engine, check_writable};
use djinn_memory::Size;
use djinn_model::Model;
use djinn_weights::PassStats;
use serde_json::{Value, json};

use crate::{
    args::{Settled, WatchArgs},
    failure::Failure,
    style::{seconds, table},
    timeline,
};

/// How long the link is measured by itself.
const MEASURE: Duration = Duration::from_millis(500);

/// Collects what was asked for.
#[derive(Default)]
pub struct Watch {
    stats: bool,
    timeline: Option<PathBuf>,
    /// What the link gives alone, in GB/s.
    link: Option<f64>,
    passes: Vec<PassStats>,
}

impl Watch {
    /// Refuses a timeline that cannot be written before anything else is done.
    pub fn new(args: &WatchArgs) -> Result<Self, Failure> {
        if let Some(path) = &args.timeline {
            check_writable(path)?;
        }
        Ok(Watch {
            stats: args.stats,
            timeline: args.timeline.clone(),
            ..Watch::default()
        })
    }

    /// Before loading: measures the link where its share is wanted.
    pub fn measure(
        &mut self,
        settled: &Settled<'_>,
        model: &Model,
        blueprint: &Blueprint,
    ) -> Result<(), Failure> {
        if self.stats {
            self.link = Some(rates::link(
                settled.backend(),
                model,
                blueprint,
                MEASURE,
                0.0,
            )?);
        }
        Ok(())
    }

    /// Before the first pass.
    pub fn begin(&self, engine: &Engine) {
        if self.timeline.is_some() {
            engine.record();
        }
    }

    /// After every pass.
    pub fn passed(&mut self, engine: &Engine) {
        if self.stats {
            self.passes.extend(engine.last_pass());
        }
    }

    /// Writes the timeline where one was asked for.
    pub fn write_timeline(&self, engine: &Engine) -> Result<(), Failure> {
        let Some(path) = &self.timeline else {
            return Ok(());
        };
        let record = engine.timeline();
        timeline::write(path, &engine.model().name, &record.events)?;
        let left_out = match record.left_out {
            0 => String::new(),
            count => format!(", {count} later ones left out"),
        };
        eprintln!(
            "{} events written to {}{left_out} (open it at ui.perfetto.dev)",
            record.events.len(),
            path.display()
        );
        Ok(())
    }

    fn share(&self, pass: &PassStats) -> Option<f64> {
        (pass.link_bytes > 0).then_some(pass.link_gb_per_s() / self.link?)
    }

    /// A line for every pass; nothing where none was asked for.
    pub fn table(&self) -> String {
        if !self.stats {
            return String::new();
        }
        let row = |(number, pass): (usize, &PassStats)| {
            vec![
                (number + 1).to_string(),
                pass.rows.to_string(),
                seconds(pass.seconds),
                Size(pass.link_bytes).to_string(),
                format!("{:.2}", pass.link_gb_per_s()),
                self.share(pass)
                    .map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
                seconds(pass.stall_s),
                format!("{:.0} %", pass.overlap() * 100.0),
            ]
        };
        let rows: Vec<Vec<String>> = self.passes.iter().enumerate().map(row).collect();
        let header = [
            "pass", "rows", "time", "link", "GB/s", "of link", "waited", "overlap",
        ];
        let link = self.link.unwrap_or(0.0);
        format!(
            "{}the link alone gives {link:.2} GB/s\n",
            table(&header, &rows)
        )
    }

    /// The same in JSON.
    pub fn add_to(&self, report: &mut Value) {
        if !self.stats {
            return;
        }
        let pass = |pass: &PassStats| {
            json!({
                "rows": pass.rows, "seconds": pass.seconds,
                "link_bytes": pass.link_bytes, "link_s": pass.link_s,
                "link_gb_per_s": pass.link_gb_per_s(), "share_of_link": self.share(pass),
                "stall_s": pass.stall_s, "compute_s": pass.compute_s(),
                "overlap": pass.overlap(),
            })
        };
        report["link_alone_gb_per_s"] = json!(self.link);
        report["passes"] = self.passes.iter().map(pass).collect();
    }
}
