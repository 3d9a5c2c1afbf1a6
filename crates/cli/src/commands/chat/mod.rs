//! `djinn chat`: a conversation, from a terminal or from whatever writes lines.

mod command;
mod local;
mod talk;
pub mod voice;

use std::io::{BufRead, IsTerminal};

use rustyline::{DefaultEditor, error::ReadlineError};

use super::{interrupt::Interrupt, remote};
use crate::{
    args::ChatArgs,
    failure::{Failure, say},
};
use talk::{Flow, Talk};
use voice::Voice;

/// Talks with a model, here or on a server.
pub fn chat(args: &ChatArgs) -> Result<(), Failure> {
    let voice: Box<dyn Voice> = match args.server.server {
        Some(_) => Box::new(remote::chat::Remote::connect(args)?),
        None => Box::new(local::Local::load(args)?),
    };
    let is_terminal = std::io::stdin().is_terminal();
    let interrupt = match is_terminal {
        true => Interrupt::by_key()?,
        false => Interrupt::never(),
    };
    let facts = voice.facts();
    if !facts.has_chat {
        eprintln!(
            "note: {} has no chat template, so it goes on with the text instead",
            facts.model
        );
    }
    let mut talk = Talk::new(voice, args, interrupt)?;
    if let Some(file) = &args.load {
        say(&talk.load(file)?)?;
    }
    match is_terminal {
        true => from_terminal(&mut talk),
        false => from_lines(&mut talk),
    }
}

fn from_terminal(talk: &mut Talk) -> Result<(), Failure> {
    let mut editor = DefaultEditor::new()?;
    eprintln!("/help lists what can be typed beside what you say");
    loop {
        let line = match editor.readline(&talk.prompt()) {
            Ok(line) => line,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(ReadlineError::Interrupted) => continue,
            Err(error) => return Err(error.into()),
        };
        let _ = editor.add_history_entry(&line);
        match talk.hear(&line) {
            Ok(Flow::On) => {}
            Ok(Flow::End) => return Ok(()),
            // What went wrong with one line says nothing of the next.
            Err(Failure::Message(message)) => say(&format!("{message}\n"))?,
            Err(other) => return Err(other),
        }
    }
}

/// Every line as if it had been typed; the first that fails ends it.
fn from_lines(talk: &mut Talk) -> Result<(), Failure> {
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| Failure::Message(format!("standard input: {error}")))?;
        if let Flow::End = talk.hear(&line)? {
            break;
        }
    }
    Ok(())
}
