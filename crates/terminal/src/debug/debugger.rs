//! State of the debugger between commands.

use std::{collections::BTreeMap, path::Path};

use djinn_engine::{BreakSpec, EditSpec, write_tensors};
use djinn_types::text::table;

use super::{
    command::{DebugCommand, HELP, Printed},
    show,
    target::{DebugEvent, DebugTarget, Goal},
};
use crate::output::Failure;

/// Number of steps that can be undone.
const UNDO_STEPS: usize = 12;

/// Whether the debugger continues after a command.
pub enum DebugFlow {
    /// The debugger continues after printing this text.
    Continue(String),
    /// The debugger ends.
    End,
}

/// Debugger of a model: the current session, its breakpoints and the steps to undo.
pub struct Debugger<'a> {
    /// Model under the debugger.
    pub target: DebugTarget<'a>,
    /// Number of the current session.
    id: u64,
    /// Edits to apply when the current session resumes.
    edits: Vec<EditSpec>,
    /// Steps to undo, oldest first: a session, and a branch paused at the previous hook.
    undo: Vec<(u64, u64)>,
    /// Breakpoints, in the order in which they were set.
    breaks: Vec<BreakSpec>,
}

impl<'a> Debugger<'a> {
    /// Debugger before its first pass.
    pub fn new(target: DebugTarget<'a>, breaks: Vec<BreakSpec>) -> Self {
        Debugger {
            id: target.first(),
            target,
            breaks,
            edits: Vec::new(),
            undo: Vec::new(),
        }
    }

    /// Runs a command.
    pub fn run(&mut self, command: DebugCommand) -> Result<DebugFlow, Failure> {
        let text = match command {
            DebugCommand::Help => help(),
            DebugCommand::Break(text) => self.add_break(&text)?,
            DebugCommand::Breaks => self.list_breaks(),
            DebugCommand::Delete(which) => self.delete(which)?,
            DebugCommand::Continue => self.go(&Goal::Breakpoint)?,
            DebugCommand::StepHook => self.go(&Goal::NextHook)?,
            DebugCommand::StepBlock => self.go(&Goal::NextBlock)?,
            DebugCommand::Until(hook) => {
                let hook = self.one_stop(&hook)?;
                self.go(&Goal::Hook(hook))?
            }
            DebugCommand::Print(what) => self.print(&what)?,
            DebugCommand::Edit(text) => self.edit(&text)?,
            DebugCommand::Branch(count) => self.branch(count)?,
            DebugCommand::Sessions => self.sessions()?,
            DebugCommand::Switch(id) => self.switch(id)?,
            DebugCommand::Undo => self.undo()?,
            DebugCommand::Save(path) => self.save(Path::new(&path))?,
            DebugCommand::Quit => return Ok(DebugFlow::End),
        };
        Ok(DebugFlow::Continue(text))
    }

    fn add_break(&mut self, text: &str) -> Result<String, Failure> {
        let spec: BreakSpec = text.parse()?;
        let breaks: Vec<_> = self.breaks.iter().cloned().chain([spec]).collect();
        self.target.set_breaks(self.id, &breaks)?;
        self.breaks = breaks;
        Ok(self.list_breaks())
    }

    fn delete(&mut self, which: Option<usize>) -> Result<String, Failure> {
        match which {
            None => self.breaks.clear(),
            Some(n) if n < self.breaks.len() => drop(self.breaks.remove(n)),
            Some(n) => {
                return Err(Failure::Message(format!(
                    "no breakpoint {n}; breaks lists them"
                )));
            }
        }
        self.target.set_breaks(self.id, &self.breaks)?;
        Ok(self.list_breaks())
    }

    fn list_breaks(&self) -> String {
        match self.breaks.is_empty() {
            true => "no breakpoints\n".to_owned(),
            false => {
                let line = |(n, spec): (usize, &BreakSpec)| format!("{n}  {spec}\n");
                self.breaks.iter().enumerate().map(line).collect()
            }
        }
    }

    /// Hook of this name, if a session can stop there and no other hook matches.
    fn one_stop(&mut self, name: &str) -> Result<String, Failure> {
        let mut found = self.target.stopping_hooks(name)?;
        match (found.len(), found.pop()) {
            (1, Some(hook)) => Ok(hook),
            (0, _) => Err(Failure::Message(format!(
                "no hook '{name}' at which a session can stop; press Tab for hook names"
            ))),
            (count, _) => Err(Failure::Message(format!(
                "'{name}' matches {count} hooks; give the full name of one hook"
            ))),
        }
    }

    /// Runs the session to a goal, and describes where it stops.
    fn go(&mut self, goal: &Goal) -> Result<String, Failure> {
        if self.target.stop_point(self.id)?.is_some() {
            self.remember();
            let edits = std::mem::take(&mut self.edits);
            let events = self.target.go(self.id, &edits, goal)?;
            return self.describe(events);
        }
        // Either nothing has run yet, or the session has ended.
        let first = match goal {
            Goal::Breakpoint => None,
            Goal::Hook(hook) => Some(hook.as_str()),
            Goal::NextBlock => Some("blocks.0.hook_resid_post"),
            Goal::NextHook => Some("hook_embed"),
        };
        let mut breaks = self.breaks.clone();
        if let Some(first) = first {
            breaks.push(first.parse()?);
        }
        let Some((id, events)) = self.target.start(self.id, &breaks)? else {
            return Ok("the session has ended\n".to_owned());
        };
        self.id = id;
        let text = self.describe(events)?;
        if first.is_some() {
            self.target.set_breaks(id, &self.breaks)?;
        }
        Ok(text)
    }

    /// Describes the events of a session.
    fn describe(&mut self, events: Vec<DebugEvent>) -> Result<String, Failure> {
        let mut text = String::new();
        for event in events {
            text += &match event {
                DebugEvent::Token(token) => show::token(&mut self.target, token)?,
                DebugEvent::Stopped(at) => show::place(&at),
                DebugEvent::Over(why) => {
                    format!(
                        "session ended ({why})\n{}",
                        show::tokens(&mut self.target, self.id)?
                    )
                }
            };
        }
        Ok(text)
    }

    /// Keeps a branch of the session for `undo`.
    fn remember(&mut self) {
        if self.undo.len() == UNDO_STEPS {
            let (_, oldest) = self.undo.remove(0);
            self.target.close(oldest);
        }
        // Without memory for a branch, this step cannot be undone.
        if let Ok(kept) = self.target.branch(self.id, 1) {
            self.undo.push((self.id, kept[0]));
        }
    }

    fn undo(&mut self) -> Result<String, Failure> {
        let last = self.undo.iter().rposition(|(of, _)| *of == self.id);
        let last = last.ok_or_else(|| Failure::Message("there is nothing to undo".into()))?;
        let (_, kept) = self.undo.remove(last);
        self.target.close(self.id);
        for (of, _) in &mut self.undo {
            if *of == self.id {
                *of = kept;
            }
        }
        self.id = kept;
        self.edits.clear();
        let at = self.target.stop_point(kept)?;
        Ok(at.map_or_else(String::new, |at| show::place(&at)))
    }

    fn edit(&mut self, text: &str) -> Result<String, Failure> {
        let at = self.target.stop_point(self.id)?;
        let at =
            at.ok_or_else(|| Failure::Message("the session is not paused: run first".into()))?;
        let mut edits = self.edits.clone();
        edits.push(format!("{}:{text}", at.hook).parse()?);
        // An edit that does not fit is refused now, not when the session resumes.
        self.target.check_edits(self.id, &edits)?;
        self.edits = edits;
        Ok(format!(
            "{} to apply when the session resumes\n",
            count(self.edits.len(), "change")
        ))
    }

    fn branch(&mut self, n: usize) -> Result<String, Failure> {
        let branches = self.target.branch(self.id, n)?;
        let numbers: Vec<String> = branches.iter().map(u64::to_string).collect();
        Ok(format!(
            "sessions {}; switch ID continues one\n",
            numbers.join(", ")
        ))
    }

    fn sessions(&mut self) -> Result<String, Failure> {
        let kept: Vec<u64> = self.undo.iter().map(|(_, kept)| *kept).collect();
        let rows: Vec<Vec<String>> = self
            .target
            .list()?
            .into_iter()
            .filter(|session| !kept.contains(&session.id))
            .map(|session| {
                let mark = if session.id == self.id { "*" } else { "" };
                vec![
                    format!("{}{mark}", session.id),
                    session.state,
                    session.at,
                    session.generated.to_string(),
                ]
            })
            .collect();
        Ok(table(&["session", "state", "at", "generated"], &rows))
    }

    fn switch(&mut self, id: u64) -> Result<String, Failure> {
        if self.target.tokens(id)?.is_none() {
            return Err(Failure::Message(format!(
                "no session {id}; sessions lists them"
            )));
        }
        self.target.set_breaks(id, &self.breaks)?;
        self.id = id;
        self.edits.clear();
        self.sessions()
    }

    fn print(&mut self, printed: &Printed) -> Result<String, Failure> {
        let (target, id) = (&mut self.target, self.id);
        match *printed {
            Printed::Activation => {
                let tensor = target.activation(id)?;
                Ok(show::norms(target, id, &tensor)? + &show::largest(&tensor, 5))
            }
            Printed::Norms => {
                let tensor = target.activation(id)?;
                show::norms(target, id, &tensor)
            }
            Printed::Largest(n) => Ok(show::largest(&target.activation(id)?, n)),
            Printed::Attention { block, head } => show::attention(target, id, block, head),
            Printed::Lens => {
                let tokens = target.tokens(id)?.unwrap_or_default();
                target.lens(&tokens)
            }
            Printed::Tokens => show::tokens(target, id),
        }
    }

    fn save(&mut self, path: &Path) -> Result<String, Failure> {
        let tensor = self.target.activation(self.id)?;
        let at = self.target.stop_point(self.id)?;
        let hook = at.map(|at| at.hook).unwrap_or_default();
        let shape = tensor.shape.clone();
        let all = BTreeMap::from([(hook.clone(), tensor)]);
        write_tensors(path, &all, &BTreeMap::new())?;
        Ok(format!("{hook} {shape:?} written to {}\n", path.display()))
    }
}

fn count(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

fn help() -> String {
    let rows: Vec<Vec<String>> = HELP
        .iter()
        .map(|(name, does)| vec![(*name).to_owned(), (*does).to_owned()])
        .collect();
    let width = rows
        .iter()
        .map(|row| row[0].chars().count())
        .max()
        .unwrap_or(0);
    rows.iter()
        .map(|row| format!("{:<width$}  {}\n", row[0], row[1]))
        .collect()
}
