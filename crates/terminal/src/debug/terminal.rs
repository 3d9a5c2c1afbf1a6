//! Commands of the debugger from a terminal, with history and completion.

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
    command::{DebugCommand, HELP},
    debugger::{DebugFlow, Debugger},
};
use crate::output::{Failure, say};

/// Runs commands until the input ends.
pub fn run(debugger: &mut Debugger<'_>) -> Result<(), Failure> {
    // Completes as a shell does: the common beginning first, then a list.
    let config = Config::builder().completion_type(CompletionType::List);
    let mut editor: Editor<Completions, FileHistory> = Editor::with_config(config.build())?;
    editor.set_helper(Some(Completions::new(debugger)?));
    say("nothing has run yet; help lists the commands\n")?;
    let mut last = String::new();
    loop {
        let line = match editor.readline("(djinn) ") {
            Ok(line) => line,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(ReadlineError::Interrupted) => continue,
            Err(error) => return Err(error.into()),
        };
        // An empty line repeats the last one, so that stepping takes one key.
        let line = match line.trim() {
            "" => last.clone(),
            line => line.to_owned(),
        };
        if line.is_empty() {
            continue;
        }
        let _ = editor.add_history_entry(&line);
        let parsed = line.parse::<DebugCommand>().map_err(Failure::Message);
        match parsed.and_then(|command| debugger.run(command)) {
            Ok(DebugFlow::Continue(text)) => say(&text)?,
            Ok(DebugFlow::End) => return Ok(()),
            Err(Failure::Message(message)) => say(&format!("{message}\n"))?,
            Err(other) => return Err(other),
        }
        last = line;
    }
}

/// Words that the terminal completes: a command at the start of a line, hooks after it.
struct Completions {
    commands: Vec<String>,
    hooks: Vec<String>,
}

impl Completions {
    fn new(debugger: &mut Debugger<'_>) -> Result<Self, Failure> {
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
        Ok(Completions { commands, hooks })
    }
}

impl Completer for Completions {
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

impl Helper for Completions {}
impl Hinter for Completions {
    type Hint = String;
}
impl Highlighter for Completions {}
impl Validator for Completions {}
