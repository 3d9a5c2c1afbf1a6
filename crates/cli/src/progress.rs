//! Bars for long work, drawn on standard error when it is a terminal.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use djinn_engine::LoadProgress;
use djinn_hub::{HubError, Progress};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::style::seconds;

/// Loading less than this is over before a bar can be read.
const WORTH_SHOWING: u64 = 256 << 20;

/// A bar that counts bytes.
fn bytes_bar(total: u64, what: String) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg:<28} {bar:30} {decimal_bytes:>10} of {decimal_total_bytes} · \
         {decimal_bytes_per_sec} · {eta} left",
    )
    .expect("the template is well-formed")
    .progress_chars("━╸─");
    ProgressBar::new(total).with_style(style).with_message(what)
}

/// Shows how far weights have come.
pub struct Loading {
    bar: ProgressBar,
}

impl Loading {
    /// Starts at nothing; nothing is drawn before it is known how much there is.
    pub fn new(name: &str) -> Self {
        let bar = bytes_bar(0, format!("loading {name}"));
        Loading { bar }
    }

    /// Moves on.
    pub fn update(&self, progress: LoadProgress) {
        if progress.total < WORTH_SHOWING {
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

/// A line that says what is being done, for work whose end is not known.
pub struct Doing {
    line: ProgressBar,
}

impl Doing {
    /// Starts with something.
    pub fn new(what: &str) -> Self {
        let line = ProgressBar::new_spinner().with_message(what.to_owned());
        line.enable_steady_tick(Duration::from_millis(100));
        Doing { line }
    }

    /// Goes on to something else.
    pub fn now(&self, what: String) {
        self.line.set_message(what);
    }

    /// Says something that stays, above the line.
    pub fn note(&self, what: &str) {
        self.line.suspend(|| eprintln!("{what}"));
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        self.line.finish_and_clear();
    }
}

/// Shows how far a file has been written.
pub struct Writing {
    bar: ProgressBar,
}

impl Writing {
    /// Starts at nothing.
    pub fn new(name: &str, total: u64) -> Self {
        let bar = bytes_bar(total, format!("writing {name}"));
        Writing { bar }
    }

    /// Moves on.
    pub fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Shows downloads, one bar a file.
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
        // Worth saying even where no bar is drawn; nothing to do if it cannot be said.
        let line = format!(
            "{file}: {problem}; again in {}",
            seconds(wait.as_secs_f64())
        );
        self.all.suspend(|| eprintln!("djinn: {line}"));
    }
}

impl Downloads {
    fn bars(&self) -> MutexGuard<'_, HashMap<String, ProgressBar>> {
        // Bars are fine to use even if another thread panicked while drawing one.
        self.bars.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shows how far a model has come on its way to a server.
pub struct Sending {
    bar: ProgressBar,
    name: String,
}

impl Sending {
    /// Starts at nothing.
    pub fn new(name: &str) -> Self {
        Sending {
            bar: bytes_bar(0, name.to_owned()),
            name: name.to_owned(),
        }
    }

    /// Moves on with something.
    pub fn update(&self, doing: &str, done: u64, all: u64) {
        if all < WORTH_SHOWING {
            return;
        }
        if self.bar.length() != Some(all) {
            self.bar.set_length(all);
        }
        self.bar.set_message(format!("{doing} {}", self.name));
        self.bar.set_position(done);
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
