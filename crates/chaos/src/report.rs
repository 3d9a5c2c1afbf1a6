//! Tables of results.

use djinn_types::{Size, text::table};

use crate::chaos::{ChaosReport, WAIT_LIMIT};

impl ChaosReport {
    /// Table of the run.
    pub fn to_text(&self) -> String {
        let counts = self.counts.iter();
        let mut rows: Vec<Vec<String>> = counts
            .map(|(kind, count)| vec![(*kind).to_owned(), count.to_string()])
            .collect();
        let mut row = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
        row("rounds", self.rounds.to_string());
        let limit = WAIT_LIMIT.as_secs();
        let longest = self.longest_wait.as_secs_f64();
        row(
            "longest wait of a small request",
            format!("{longest:.2} s (limit {limit} s)"),
        );
        if let Some((first, last)) = self.usage.ends() {
            let rss = format!("{} / {}", Size(first.rss), Size(last.rss));
            row("memory, first / last", rss);
            let files = format!("{} / {}", first.descriptors, last.descriptors);
            row("descriptors, first / last", files);
        }
        row("broken promises", self.violations.len().to_string());
        table(&["chaos", ""], &rows)
    }
}
