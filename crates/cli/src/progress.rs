//! Progress bars for long work, drawn on standard error if it is a terminal.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use djinn_engine::LoadProgress;
use djinn_hub::{HubError, Progress};
use djinn_types::text::seconds;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Smallest number of bytes that gets a bar: fewer are loaded before a bar can be read.
const BAR_BYTES_MIN: u64 = 256 << 20;

/// Bar that counts bytes.
fn bytes_bar(total: u64, what: String) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg:<28} {bar:30} {decimal_bytes:>10} of {decimal_total_bytes} · \
         {decimal_bytes_per_sec} · {eta} left",
    )
    .expect("the template is well-formed")
    .progress_chars("━╸─");
    ProgressBar::new(total).with_style(style).with_message(what)
}

/// Progress of loading weights.
pub struct Loading {
    bar: ProgressBar,
}

impl Loading {
    /// Bar that is drawn once the total is known.
    pub fn new(name: &str) -> Self {
        let bar = bytes_bar(0, format!("loading {name}"));
        Loading { bar }
    }

    /// Shows the bytes loaded so far.
    pub fn update(&self, progress: LoadProgress) {
        if progress.total < BAR_BYTES_MIN {
            return;
        }
        if self.bar.length() != Some(progress.total) {
            self.bar.set_length(progress.total);
        }
        self.bar.set_position(progress.loaded);
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Line about the current step, for work of unknown length.
pub struct Spinner {
    line: ProgressBar,
}

impl Spinner {
    /// Line with the first step.
    pub fn new(what: &str) -> Self {
        let line = ProgressBar::new_spinner().with_message(what.to_owned());
        line.enable_steady_tick(Duration::from_millis(100));
        Spinner { line }
    }

    /// Shows the next step.
    pub fn show(&self, step: String) {
        self.line.set_message(step);
    }

    /// Prints a line that stays, above the current step.
    pub fn note(&self, text: &str) {
        self.line.suspend(|| eprintln!("{text}"));
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.line.finish_and_clear();
    }
}

/// Progress of writing a file.
pub struct Writing {
    bar: ProgressBar,
}

impl Writing {
    /// Bar of a file with this many bytes.
    pub fn new(name: &str, total: u64) -> Self {
        let bar = bytes_bar(total, format!("writing {name}"));
        Writing { bar }
    }

    /// Adds written bytes.
    pub fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Progress of downloads, with one bar for each file.
#[derive(Default)]
pub struct Downloads {
    all: MultiProgress,
    bars: Mutex<HashMap<String, ProgressBar>>,
}

impl Progress for Downloads {
    fn start(&self, file: &str, total: Option<u64>, already: u64) {
        let bar = bytes_bar(total.unwrap_or(0), file.to_owned());
        let bar = self.all.add(bar);
        bar.set_position(already);
        bar.reset_eta();
        if let Some(before) = self.bars().insert(file.to_owned(), bar) {
            before.finish_and_clear();
        }
    }

    fn advance(&self, file: &str, bytes: u64) {
        if let Some(bar) = self.bars().get(file) {
            bar.inc(bytes);
        }
    }

    fn finish(&self, file: &str) {
        if let Some(bar) = self.bars().remove(file) {
            bar.finish();
        }
    }

    fn retry(&self, file: &str, problem: &HubError, wait: Duration) {
        let line = format!(
            "{file}: {problem}; retrying in {}",
            seconds(wait.as_secs_f64())
        );
        self.all.suspend(|| eprintln!("djinn: {line}"));
    }
}

impl Downloads {
    fn bars(&self) -> MutexGuard<'_, HashMap<String, ProgressBar>> {
        // A bar stays usable if another thread panicked while drawing it.
        self.bars.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Progress of pushing a model to a server.
pub struct Sending {
    bar: ProgressBar,
    name: String,
}

impl Sending {
    /// Bar that is drawn once the total is known.
    pub fn new(name: &str) -> Self {
        Sending {
            bar: bytes_bar(0, name.to_owned()),
            name: name.to_owned(),
        }
    }

    /// Shows the current step and its bytes so far.
    pub fn update(&self, step: &str, done: u64, all: u64) {
        if all < BAR_BYTES_MIN {
            return;
        }
        if self.bar.length() != Some(all) {
            self.bar.set_length(all);
        }
        self.bar.set_message(format!("{step} {}", self.name));
        self.bar.set_position(done);
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
