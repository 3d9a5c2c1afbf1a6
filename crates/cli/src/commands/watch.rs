//! `--stats` and `--timeline`: statistics of passes and a trace, as the server records them.

use std::time::Duration;

use djinn_client::v1;
use djinn_engine::check_writable;
use djinn_terminal::Failure;
use djinn_types::{
    Size,
    text::{seconds, table},
};
use djinn_weights::PassStats;
use serde_json::{Value, json};

use super::connection::Connection;
use crate::{args::WatchArgs, timeline};

/// Statistics and trace of a command's passes, as far as flags ask for them.
pub struct Watch {
    args: WatchArgs,
    /// Bandwidth of the link alone in GB/s, if weights stream.
    link: Option<f64>,
    passes: Vec<PassStats>,
}

impl Watch {
    /// Checks that the trace can be written before anything else is done.
    pub fn new(args: &WatchArgs) -> Result<Self, Failure> {
        if let Some(path) = &args.timeline {
            check_writable(path)?;
        }
        Ok(Watch {
            args: args.clone(),
            link: None,
            passes: Vec::new(),
        })
    }

    fn is_on(&self) -> bool {
        self.args.stats || self.args.timeline.is_some()
    }

    /// Begins a record on the server.
    pub async fn begin(&self, connection: &Connection) -> Result<(), Failure> {
        if self.is_on() {
            connection.client.record(connection.model.name()).await?;
        }
        Ok(())
    }

    /// Ends the record and writes the trace.
    pub async fn end(&mut self, connection: &Connection) -> Result<(), Failure> {
        if !self.is_on() {
            return Ok(());
        }
        let record = connection
            .client
            .end_record(connection.model.name())
            .await?;
        self.passes = record.passes.iter().map(stats).collect();
        if self.args.stats {
            self.link = link_alone(connection).await?;
        }
        let Some(path) = &self.args.timeline else {
            return Ok(());
        };
        let name = connection.model_info().await?.name;
        timeline::write(path, &name, &record.spans)?;
        let left_out = match record.left_out {
            0 => String::new(),
            count => format!(", {count} later ones left out"),
        };
        eprintln!(
            "{} events written to {}{left_out} (open it at ui.perfetto.dev)",
            record.spans.len(),
            path.display()
        );
        Ok(())
    }

    fn share(&self, pass: &PassStats) -> Option<f64> {
        (pass.link_bytes + pass.kv_bytes > 0).then_some(pass.link_gb_per_s() / self.link?)
    }

    /// Table with a line for every pass; empty without `--stats`.
    pub fn table(&self) -> String {
        if !self.args.stats {
            return String::new();
        }
        let row = |(number, pass): (usize, &PassStats)| {
            vec![
                (number + 1).to_string(),
                pass.rows.to_string(),
                seconds(pass.seconds),
                Size(pass.link_bytes).to_string(),
                Size(pass.kv_bytes).to_string(),
                format!("{:.2}", pass.link_gb_per_s()),
                self.share(pass)
                    .map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
                seconds(pass.stall_s),
                format!("{:.0} %", pass.overlap() * 100.0),
            ]
        };
        let rows: Vec<Vec<String>> = self.passes.iter().enumerate().map(row).collect();
        let header = [
            "pass", "rows", "time", "weights", "KV", "GB/s", "of link", "waited", "overlap",
        ];
        let link = match self.link {
            Some(link) => format!("bandwidth of the link alone: {link:.2} GB/s\n"),
            None => "the link was not measured: nothing streams\n".to_owned(),
        };
        table(&header, &rows) + &link
    }

    /// Adds the same numbers to a JSON report.
    pub fn add_to(&self, report: &mut Value) {
        if !self.args.stats {
            return;
        }
        let pass = |pass: &PassStats| {
            json!({
                "rows": pass.rows, "seconds": pass.seconds,
                "link_bytes": pass.link_bytes, "kv_bytes": pass.kv_bytes, "link_s": pass.link_s,
                "link_gb_per_s": pass.link_gb_per_s(), "share_of_link": self.share(pass),
                "stall_s": pass.stall_s, "compute_s": pass.compute_s(),
                "overlap": pass.overlap(),
            })
        };
        report["link_alone_gb_per_s"] = json!(self.link);
        report["passes"] = self.passes.iter().map(pass).collect();
    }
}

fn stats(pass: &v1::Pass) -> PassStats {
    PassStats {
        rows: pass.rows as usize,
        seconds: pass.seconds,
        link_bytes: pass.link_bytes,
        kv_bytes: pass.kv_bytes,
        link_s: pass.link_s,
        stall_s: pass.stall_s,
    }
}

/// Bandwidth of the link alone in GB/s, as the server measured it.
async fn link_alone(connection: &Connection) -> Result<Option<f64>, Failure> {
    let mut watch = connection.client.watch(Duration::from_secs(1)).await?;
    let name = connection.model.info().await?.name;
    let is_it = |status: &v1::ModelStatus| status.model.as_ref().is_some_and(|m| m.name == name);
    let status = watch.next().await?.models.into_iter().find(is_it);
    let rate = status.map(|status| status.link_ceiling / 1e9);
    Ok(rate.filter(|rate| *rate > 0.0))
}
