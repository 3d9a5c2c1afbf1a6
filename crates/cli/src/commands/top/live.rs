//! Live view: a thread reads statistics, the terminal gives keys.

use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
};

use super::{figures::Figures, view::View};
use crate::{args::TopArgs, commands::connection::on_server, failure::Failure};

/// Interval at which keys are read.
const KEYS: Duration = Duration::from_millis(100);
/// Pause before a lost server is contacted again.
const AGAIN: Duration = Duration::from_secs(1);

/// A look, or why there was none.
type Look = Result<Figures, String>;

/// Shows live statistics until a key ends the command.
pub fn run(args: &TopArgs) -> Result<(), Failure> {
    // A server that cannot be reached at the start is an error.
    on_server(&args.server, async |client| {
        Ok(client.capabilities().await?)
    })?;
    let (looks, seen) = sync_channel(4);
    let (server, every) = (args.server.clone(), args.every);
    thread::Builder::new()
        .name("watch".to_owned())
        .spawn(move || watch(&server, every, &looks))
        .map_err(|error| Failure::Message(format!("no thread to watch with: {error}")))?;
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, &seen);
    ratatui::restore();
    shown
}

/// Looks again and again, for as long as somebody wants to know.
fn watch(server: &crate::args::ServerArgs, every: Duration, looks: &SyncSender<Look>) {
    loop {
        let watched = on_server(server, async |client| {
            let server = client.capabilities().await?;
            let mut watch = client.watch(every).await?;
            let mut before = None;
            loop {
                let now = watch.next().await?;
                let look = Figures::between(&server, before.as_ref(), &now);
                if looks.send(Ok(look)).is_err() {
                    return Ok(());
                }
                before = Some(now);
            }
        });
        let problem = match watched {
            Err(Failure::Message(message)) => message,
            _ => return,
        };
        if looks.send(Err(problem)).is_err() {
            return;
        }
        thread::sleep(AGAIN);
    }
}

fn show(terminal: &mut DefaultTerminal, seen: &Receiver<Look>) -> Result<(), Failure> {
    let mut view = View::default();
    loop {
        for look in seen.try_iter() {
            match look {
                Ok(figures) => view.take(figures),
                Err(problem) => view.problem = Some(problem),
            }
        }
        terminal.draw(|frame| view.draw(frame))?;
        if event::poll(KEYS)? && is_enough(&event::read()?) {
            return Ok(());
        }
    }
}

fn is_enough(event: &Event) -> bool {
    let Event::Key(key) = event else {
        return false;
    };
    let is_quit = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
    let is_ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (is_quit || is_ctrl_c)
}
