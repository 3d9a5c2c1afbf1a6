//! The state between commands.

use std::{collections::BTreeMap, path::Path};

use djinn_engine::{BreakSpec, EditSpec, write_tensors};

use super::{
    command::{Command, HELP, What},
    show,
    target::{DebugEvent, DebugTarget, Goal},
};
use crate::{failure::Failure, style::table};

/// Steps back that are kept.
const BACK: usize = 12;

/// What comes after a command.
pub enum Flow {
    On(String),
    End,
}

/// What is debugged, the session at hand, and how to go back.
pub struct Debugger {
    pub target: DebugTarget,
    id: u64,
    /// Changes that are made when it goes on.
    edits: Vec<EditSpec>,
    /// Sessions that stand where each stood before.
    back: Vec<(u64, u64)>,
    /// Breakpoints, in the order in which they were set.
    breaks: Vec<BreakSpec>,
}

impl Debugger {
    /// Nothing has run yet.
    pub fn new(target: DebugTarget, breaks: Vec<BreakSpec>) -> Self {
        Debugger {
            id: target.first(),
            target,
            breaks,
            edits: Vec::new(),
            back: Vec::new(),
        }
    }

    /// Does what a command says.
    pub fn obey(&mut self, command: Command) -> Result<Flow, Failure> {
        let text = match command {
            Command::Help => help(),
            Command::Break(text) => self.add_break(&text)?,
            Command::Breaks => self.list_breaks(),
            Command::Delete(which) => self.delete(which)?,
            Command::Continue => self.go(&Goal::Breakpoint)?,
            Command::StepHook => self.go(&Goal::NextHook)?,
            Command::StepBlock => self.go(&Goal::NextBlock)?,
            Command::Until(hook) => {
                let hook = self.one_stop(&hook)?;
                self.go(&Goal::Hook(hook))?
            }
            Command::Print(what) => self.print(&what)?,
            Command::Edit(text) => self.edit(&text)?,
            Command::Branch(count) => self.branch(count)?,
            Command::Sessions => self.sessions()?,
            Command::Switch(id) => self.switch(id)?,
            Command::Undo => self.undo()?,
            Command::Save(path) => self.save(Path::new(&path))?,
            Command::Quit => return Ok(Flow::End),
        };
        Ok(Flow::On(text))
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
            Some(n) => return Err(Failure::Message(format!("there is no breakpoint {n}"))),
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

    /// The one hook of a name at which a session can stop.
    fn one_stop(&mut self, name: &str) -> Result<String, Failure> {
        let mut found = self.target.stopping_hooks(name)?;
        match (found.len(), found.pop()) {
            (1, Some(hook)) => Ok(hook),
            (0, _) => Err(Failure::Message(format!(
                "a session cannot stop at '{name}'"
            ))),
            (count, _) => Err(Failure::Message(format!(
                "'{name}' is {count} hooks: name one"
            ))),
        }
    }

    /// Lets the session go on, and says where it stops.
    fn go(&mut self, goal: &Goal) -> Result<String, Failure> {
        if self.target.stop_point(self.id)?.is_some() {
            self.remember();
            let edits = std::mem::take(&mut self.edits);
            let heard = self.target.go(self.id, &edits, goal)?;
            return self.tell(heard);
        }
        // Nothing has run yet, or it is at its end. The first hook is where everything begins.
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
        let Some((id, heard)) = self.target.start(self.id, &breaks)? else {
            return Ok("the session is at its end\n".to_owned());
        };
        self.id = id;
        let told = self.tell(heard)?;
        if first.is_some() {
            self.target.set_breaks(id, &self.breaks)?;
        }
        Ok(told)
    }

    /// What became of the session, in words.
    fn tell(&mut self, heard: Vec<DebugEvent>) -> Result<String, Failure> {
        let mut text = String::new();
        for heard in heard {
            text += &match heard {
                DebugEvent::Token(token) => show::token(&mut self.target, token)?,
                DebugEvent::Stopped(at) => show::place(&at),
                DebugEvent::Over(why) => {
                    format!("over ({why})\n{}", show::tokens(&mut self.target, self.id)?)
                }
            };
        }
        Ok(text)
    }

    /// Keeps where the session stands, to come back to.
    fn remember(&mut self) {
        if self.back.len() == BACK {
            let (_, oldest) = self.back.remove(0);
            self.target.close(oldest);
        }
        // Without room for it there is no way back, and no harm.
        if let Ok(kept) = self.target.branch(self.id, 1) {
            self.back.push((self.id, kept[0]));
        }
    }

    fn undo(&mut self) -> Result<String, Failure> {
        let last = self.back.iter().rposition(|(of, _)| *of == self.id);
        let last = last.ok_or_else(|| Failure::Message("there is nothing to undo".into()))?;
        let (_, kept) = self.back.remove(last);
        self.target.close(self.id);
        for (of, _) in &mut self.back {
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
            at.ok_or_else(|| Failure::Message("nothing stands at a hook: run first".into()))?;
        let mut edits = self.edits.clone();
        edits.push(format!("{}:{text}", at.hook).parse()?);
        // What does not fit is told now, and not when it goes on.
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
            "sessions {}; switch goes on with one\n",
            numbers.join(", ")
        ))
    }

    fn sessions(&mut self) -> Result<String, Failure> {
        let kept: Vec<u64> = self.back.iter().map(|(_, kept)| *kept).collect();
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
            return Err(Failure::Message(format!("there is no session {id}")));
        }
        self.target.set_breaks(id, &self.breaks)?;
        self.id = id;
        self.edits.clear();
        self.sessions()
    }

    fn print(&mut self, what: &What) -> Result<String, Failure> {
        let (target, id) = (&mut self.target, self.id);
        match *what {
            What::Here => {
                let tensor = target.activation(id)?;
                Ok(show::norms(target, id, &tensor)? + &show::largest(&tensor, 5))
            }
            What::Norms => {
                let tensor = target.activation(id)?;
                show::norms(target, id, &tensor)
            }
            What::Largest(n) => Ok(show::largest(&target.activation(id)?, n)),
            What::Attention { block, head } => show::attention(target, id, block, head),
            What::Lens => {
                let tokens = target.tokens(id)?.unwrap_or_default();
                target.lens(&tokens)
            }
            What::Tokens => show::tokens(target, id),
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
