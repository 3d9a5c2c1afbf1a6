//! Chat with a model, from a terminal or from lines of standard input.

mod backend;
mod command;
mod conversations;

use std::{
    io::{BufRead, IsTerminal},
    path::PathBuf,
};

use djinn_client::{ModelHandle, v1};
use rustyline::{DefaultEditor, error::ReadlineError};
use tokio::runtime::Runtime;

use crate::{
    interrupt::Interrupt,
    output::{Failure, say},
};
use backend::{AnswerOptions, ChatBackend};
use conversations::{ChatFlow, Conversations};

/// Options of a chat.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    /// System message of the first conversation.
    pub system: Option<String>,
    /// Sampling of answers.
    pub sampling: v1::Sampling,
    /// Longest answer in tokens; by default the model's own limit.
    pub max_tokens: Option<usize>,
    /// File of a conversation to continue.
    pub load: Option<PathBuf>,
}

/// Chats with a model until the input ends.
pub fn chat(
    runtime: &Runtime,
    model: ModelHandle,
    info: v1::Model,
    options: ChatOptions,
) -> Result<(), Failure> {
    let is_terminal = std::io::stdin().is_terminal();
    let interrupt = match is_terminal {
        true => Interrupt::by_key()?,
        false => Interrupt::never(),
    };
    if !info.has_chat {
        eprintln!(
            "note: {} has no chat template, so it continues the text instead",
            info.name
        );
    }
    let answers = AnswerOptions {
        sampling: options.sampling,
        max_tokens: options.max_tokens,
        version: 0,
    };
    let backend = ChatBackend::new(runtime, model, info);
    let mut talk = Conversations::new(backend, answers, interrupt);
    if options.system.is_some() {
        talk.set_system(options.system)?;
    }
    if let Some(file) = &options.load {
        say(&talk.load(file)?)?;
    }
    match is_terminal {
        true => from_terminal(&mut talk),
        false => from_lines(&mut talk),
    }
}

fn from_terminal(talk: &mut Conversations<'_>) -> Result<(), Failure> {
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
            Ok(ChatFlow::Continue) => {}
            Ok(ChatFlow::End) => return Ok(()),
            // An error ends one line, not the chat.
            Err(Failure::Message(message)) => say(&format!("{message}\n"))?,
            Err(other) => return Err(other),
        }
    }
}

/// Handles every line of standard input. The first error ends the chat.
fn from_lines(talk: &mut Conversations<'_>) -> Result<(), Failure> {
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| Failure::Message(format!("standard input: {error}")))?;
        if let ChatFlow::End = talk.hear(&line)? {
            break;
        }
    }
    Ok(())
}
