//! Live view: one thread reads statistics, another draws them and handles keys.

use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use djinn_client::Error;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
};

use super::{
    connection::{TopOptions, connect, runtime},
    figures::Figures,
    view::LiveView,
};
use crate::output::Failure;

/// Interval at which keys are read.
const KEYS: Duration = Duration::from_millis(100);
/// Pause before a lost server is contacted again.
const RECONNECT: Duration = Duration::from_secs(1);

/// Statistics, or the reason why there are none.
type Reading = Result<Figures, String>;

/// Shows live statistics until a key ends the command.
pub fn run(options: &TopOptions) -> Result<(), Failure> {
    // A server that cannot be reached at the start is an error.
    runtime()?.block_on(async { connect(options).await?.capabilities().await })?;
    let (sender, readings) = sync_channel(4);
    let options = options.clone();
    thread::Builder::new()
        .name("watch".to_owned())
        .spawn(move || watch(&options, &sender))
        .map_err(|error| {
            Failure::Message(format!("cannot start the statistics thread: {error}"))
        })?;
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, &readings);
    ratatui::restore();
    shown
}

/// Reads statistics until the view ends. Connects again after a failure.
fn watch(options: &TopOptions, sender: &SyncSender<Reading>) {
    let Ok(runtime) = runtime() else {
        return;
    };
    loop {
        let problem = match runtime.block_on(watch_once(options, sender)) {
            Ok(()) => return,
            Err(error) => error.to_string(),
        };
        if sender.send(Err(problem)).is_err() {
            return;
        }
        thread::sleep(RECONNECT);
    }
}

/// Reads statistics over one connection until the view ends.
async fn watch_once(options: &TopOptions, sender: &SyncSender<Reading>) -> Result<(), Error> {
    let client = connect(options).await?;
    let server = client.capabilities().await?;
    let mut watch = client.watch(options.every).await?;
    let mut before = None;
    loop {
        let now = watch.next().await?;
        let figures = Figures::between(&server, before.as_ref(), &now);
        if sender.send(Ok(figures)).is_err() {
            return Ok(());
        }
        before = Some(now);
    }
}

fn show(terminal: &mut DefaultTerminal, readings: &Receiver<Reading>) -> Result<(), Failure> {
    let mut view = LiveView::default();
    loop {
        for reading in readings.try_iter() {
            match reading {
                Ok(figures) => view.update(figures),
                Err(problem) => view.problem = Some(problem),
            }
        }
        terminal.draw(|frame| view.draw(frame))?;
        if event::poll(KEYS)? && is_quit(&event::read()?) {
            return Ok(());
        }
    }
}

fn is_quit(event: &Event) -> bool {
    let Event::Key(key) = event else {
        return false;
    };
    let is_quit = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
    let is_ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (is_quit || is_ctrl_c)
}
