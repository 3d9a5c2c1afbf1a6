//! Commands typed at a terminal, with history and completion.

use rustyline::{
    CompletionType, Config, Context, Editor, Helper,
    completion::{Completer, Pair},
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::FileHistory,
    validate::Validator,
};

use super::{
    command::{Command, HELP},
    debugger::{Debugger, Flow},
};
use crate::failure::{Failure, say};

/// Takes commands until there are no more.
pub fn run(debugger: &mut Debugger) -> Result<(), Failure> {
    // As a shell completes: as far as it is clear, and then what there is.
    let config = Config::builder().completion_type(CompletionType::List);
    let mut editor: Editor<Words, FileHistory> = Editor::with_config(config.build())?;
    editor.set_helper(Some(Words::of(debugger)?));
    say("nothing has run yet; help lists the commands\n")?;
    let mut last = String::new();
    loop {
        let line = match editor.readline("(djinn) ") {
            Ok(line) => line,
            // Nothing is typed any more.
            Err(ReadlineError::Eof) => return Ok(()),
            Err(ReadlineError::Interrupted) => continue,
            Err(error) => return Err(error.into()),
        };
        // An empty line is the last one again: stepping is one key.
        let line = match line.trim() {
            "" => last.clone(),
            line => line.to_owned(),
        };
        if line.is_empty() {
            continue;
        }
        let _ = editor.add_history_entry(&line);
        let told = line.parse::<Command>().map_err(Failure::Message);
        match told.and_then(|command| debugger.obey(command)) {
            Ok(Flow::On(text)) => say(&text)?,
            Ok(Flow::End) => return Ok(()),
            Err(Failure::Message(message)) => say(&format!("{message}\n"))?,
            Err(other) => return Err(other),
        }
        last = line;
    }
}

/// Words that can be completed: commands first, then hooks.
struct Words {
    commands: Vec<String>,
    hooks: Vec<String>,
}

impl Words {
    fn of(debugger: &mut Debugger) -> Result<Self, Failure> {
        let names = HELP.iter().flat_map(|(usage, _)| usage.split(", "));
        let first = |usage: &str| {
            usage
                .split([' ', '['])
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        let mut commands: Vec<String> = names.map(first).filter(|name| !name.is_empty()).collect();
        commands.retain(|name| name.chars().all(|c| c.is_ascii_lowercase()));
        commands.sort();
        commands.dedup();
        let hooks = debugger.target.hooks()?;
        Ok(Words { commands, hooks })
    }
}

impl Completer for Words {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..at];
        let start = typed
            .rfind(char::is_whitespace)
            .map_or(0, |space| space + 1);
        let words = if start == 0 {
            &self.commands
        } else {
            &self.hooks
        };
        let fits = words
            .iter()
            .filter(|word| word.starts_with(&typed[start..]));
        let pair = |word: &String| Pair {
            display: word.clone(),
            replacement: word.clone(),
        };
        Ok((start, fits.map(pair).collect()))
    }
}

impl Helper for Words {}
impl Hinter for Words {
    type Hint = String;
}
impl Highlighter for Words {}
impl Validator for Words {}
