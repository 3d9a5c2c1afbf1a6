//! `djinn chat`: a conversation, from a terminal or from lines of standard input.

mod chat_backend;
mod command;
mod conversations;

use std::io::{BufRead, IsTerminal};

use djinn_engine::Settings;
use rustyline::{DefaultEditor, error::ReadlineError};

use super::{
    connection::{LocalEngine, SettingsFn},
    interrupt::Interrupt,
};
use crate::{
    args::ChatArgs,
    failure::{Failure, say},
};
use chat_backend::ChatBackend;
use conversations::{Conversations, Flow};

/// Longest conversation in tokens when no flag sets it.
const CONTEXT: usize = 4096;
/// Conversations that fit in memory.
const CONVERSATIONS: usize = 4;

/// Talks with a model.
pub fn chat(args: &ChatArgs) -> Result<(), Failure> {
    let engine = LocalEngine::new(settings(args.context, args.model.rows));
    let backend = ChatBackend::connect(args, engine)?;
    let is_terminal = std::io::stdin().is_terminal();
    let interrupt = match is_terminal {
        true => Interrupt::by_key()?,
        false => Interrupt::never(),
    };
    let facts = backend.facts();
    if !facts.has_chat {
        eprintln!(
            "note: {} has no chat template, so it continues the text instead",
            facts.model
        );
    }
    let mut talk = Conversations::new(backend, args, interrupt)?;
    if let Some(file) = &args.load {
        say(&talk.load(file)?)?;
    }
    match is_terminal {
        true => from_terminal(&mut talk),
        false => from_lines(&mut talk),
    }
}

/// Layout for several conversations.
fn settings(context: Option<usize>, rows: usize) -> SettingsFn {
    Box::new(move |model| {
        if model.tokenizer.is_none() {
            return Err(Failure::Message(format!(
                "{} has no tokenizer.json, which a chat needs",
                model.name
            )));
        }
        let context = context.unwrap_or(CONTEXT).min(model.program.dims.context);
        Ok(Settings::for_sessions(
            &model.program,
            CONVERSATIONS,
            context,
            rows,
        )?)
    })
}

fn from_terminal(talk: &mut Conversations) -> Result<(), Failure> {
    let mut editor = DefaultEditor::new()?;
    eprintln!("/help lists the commands");
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
            // An error ends one line, not the chat.
            Err(Failure::Message(message)) => say(&format!("{message}\n"))?,
            Err(other) => return Err(other),
        }
    }
}

/// Handles every line of standard input. The first error ends the chat.
fn from_lines(talk: &mut Conversations) -> Result<(), Failure> {
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| Failure::Message(format!("standard input: {error}")))?;
        if let Flow::End = talk.hear(&line)? {
            break;
        }
    }
    Ok(())
}
