//! The state between commands.

use std::{collections::BTreeMap, path::Path};

use djinn_engine::{BreakSpec, EditSpec, Engine, Output, Request, SessionId, Until, write_tensors};
use djinn_model::{Site, hook};

use super::{
    command::{Command, HELP, What},
    show,
};
use crate::{failure::Failure, style::table};

/// Steps back that are kept.
const BACK: usize = 12;

/// What comes after a command.
pub enum Flow {
    On(String),
    End,
}

/// An engine, the session at hand, and how to go back.
pub struct Debugger {
    pub engine: Engine,
    pub id: SessionId,
    /// Changes that are made when it goes on.
    edits: Vec<EditSpec>,
    /// Sessions that stand where each stood before.
    back: Vec<(SessionId, SessionId)>,
    /// Breakpoints, in the order in which they were set.
    breaks: Vec<BreakSpec>,
}

impl Debugger {
    /// Opens the session; nothing has run yet.
    pub fn new(mut engine: Engine, request: Request) -> Result<Self, Failure> {
        let id = engine.open(request)?;
        // It runs when it is told to, and not beside what is looked at before.
        engine.wait(id, None)?;
        Ok(Debugger {
            breaks: engine.breaks(id).unwrap_or_default(),
            engine,
            id,
            edits: Vec::new(),
            back: Vec::new(),
        })
    }

    /// Does what a command says.
    pub fn obey(&mut self, command: Command) -> Result<Flow, Failure> {
        let text = match command {
            Command::Help => help(),
            Command::Break(text) => self.add_break(&text)?,
            Command::Breaks => self.list_breaks(),
            Command::Delete(which) => self.delete(which)?,
            Command::Continue => self.go(Until::Breakpoint)?,
            Command::StepHook => self.go(Until::Hook)?,
            Command::StepBlock => self.go(Until::Block)?,
            Command::Until(hook) => {
                let site = self.one_stop(&hook)?;
                self.go(Until::Site(site))?
            }
            Command::Print(what) => self.print(&what)?,
            Command::Edit(text) => self.edit(&text)?,
            Command::Branch(count) => self.branch(count)?,
            Command::Sessions => self.sessions(),
            Command::Switch(id) => self.switch(SessionId(id))?,
            Command::Undo => self.undo()?,
            Command::Save(path) => self.save(Path::new(&path))?,
            Command::Quit => return Ok(Flow::End),
        };
        Ok(Flow::On(text))
    }

    fn add_break(&mut self, text: &str) -> Result<String, Failure> {
        let spec: BreakSpec = text.parse()?;
        let breaks: Vec<_> = self.breaks.iter().cloned().chain([spec]).collect();
        self.engine.set_breaks(self.id, &breaks)?;
        self.breaks = breaks;
        Ok(self.list_breaks())
    }

    fn delete(&mut self, which: Option<usize>) -> Result<String, Failure> {
        match which {
            None => self.breaks.clear(),
            Some(n) if n < self.breaks.len() => drop(self.breaks.remove(n)),
            Some(n) => return Err(Failure::Message(format!("there is no breakpoint {n}"))),
        }
        self.engine.set_breaks(self.id, &self.breaks)?;
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
    fn one_stop(&self, name: &str) -> Result<Site, Failure> {
        let program = &self.engine.model().program;
        let mut found = hook::find(program, name)?;
        let stops = program.stops();
        found.retain(|site| stops.iter().any(|stop| stop.site == *site));
        match found[..] {
            [site] => Ok(site),
            [] => Err(Failure::Message(format!(
                "a session cannot stop at '{name}'"
            ))),
            _ => Err(Failure::Message(format!(
                "'{name}' is {} hooks: name one",
                found.len()
            ))),
        }
    }

    /// Lets the session go on, and says where it stops.
    fn go(&mut self, until: Until) -> Result<String, Failure> {
        if self.engine.paused(self.id).is_some() {
            self.remember();
            let edits = std::mem::take(&mut self.edits);
            self.engine.go_on_from(self.id, &edits, until)?;
            return self.run_on();
        }
        // Nothing has run yet, or it is at its end.
        let starts = self.engine.resume(self.id).is_ok();
        if starts && until != Until::Breakpoint {
            // The first hook is where everything begins.
            let first = match until {
                Until::Site(site) => site.to_string(),
                Until::Block => "blocks.0.hook_resid_post".to_owned(),
                _ => "hook_embed".to_owned(),
            };
            let more: BreakSpec = first.parse()?;
            let all: Vec<_> = self.breaks.iter().cloned().chain([more]).collect();
            self.engine.set_breaks(self.id, &all)?;
            let told = self.run_on();
            self.engine.set_breaks(self.id, &self.breaks)?;
            return told;
        }
        self.run_on()
    }

    /// Runs until the session stops or ends.
    fn run_on(&mut self) -> Result<String, Failure> {
        let mut text = String::new();
        while !self.engine.is_idle() {
            for output in self.engine.step()? {
                if output.session == self.id {
                    text += &self.hear(&output)?;
                }
            }
        }
        if self.engine.paused(self.id).is_none() && text.is_empty() {
            text = "the session is at its end\n".to_owned();
        }
        Ok(text)
    }

    fn hear(&self, output: &Output) -> Result<String, Failure> {
        if let Some(failure) = &output.failure {
            return Err(Failure::Message(failure.clone()));
        }
        let mut text = String::new();
        if let Some(token) = output.token {
            text += &show::token(self.engine.model(), token);
        }
        if let Some(at) = &output.paused {
            text += &show::place(&self.engine, output.session, at);
        }
        if let Some(finish) = output.finish {
            text += &format!("over ({finish})\n{}", show::tokens(&self.engine, self.id));
        }
        Ok(text)
    }

    /// Keeps where the session stands, to come back to.
    fn remember(&mut self) {
        if self.back.len() == BACK {
            let (_, oldest) = self.back.remove(0);
            self.engine.close(oldest);
        }
        // Without room for it there is no way back, and no harm.
        if let Ok(kept) = self.engine.branch(self.id, 1) {
            self.back.push((self.id, kept[0]));
        }
    }

    fn undo(&mut self) -> Result<String, Failure> {
        let last = self.back.iter().rposition(|(of, _)| *of == self.id);
        let last = last.ok_or_else(|| Failure::Message("there is nothing to undo".into()))?;
        let (_, kept) = self.back.remove(last);
        self.engine.close(self.id);
        for (of, _) in &mut self.back {
            if *of == self.id {
                *of = kept;
            }
        }
        self.id = kept;
        self.edits.clear();
        let at = self.engine.paused(kept);
        Ok(at.map_or_else(String::new, |at| show::place(&self.engine, kept, &at)))
    }

    fn edit(&mut self, text: &str) -> Result<String, Failure> {
        let at = self.engine.paused(self.id);
        let at =
            at.ok_or_else(|| Failure::Message("nothing stands at a hook: run first".into()))?;
        let spec: EditSpec = format!("{}:{text}", at.site).parse()?;
        // Tried on another that stands here, so that what does not fit is told now.
        let tried = self.engine.branch(self.id, 1)?[0];
        let mut edits = self.edits.clone();
        edits.push(spec);
        let fits = self.engine.go_on_from(tried, &edits, Until::Hook);
        self.engine.close(tried);
        fits?;
        self.edits = edits;
        Ok(format!(
            "{} to be made when it goes on\n",
            count(self.edits.len(), "change")
        ))
    }

    fn branch(&mut self, n: usize) -> Result<String, Failure> {
        let branches = self.engine.branch(self.id, n)?;
        let numbers: Vec<String> = branches.iter().map(|id| id.0.to_string()).collect();
        Ok(format!(
            "sessions {}; switch goes on with one\n",
            numbers.join(", ")
        ))
    }

    fn sessions(&self) -> String {
        let kept: Vec<SessionId> = self.back.iter().map(|(_, kept)| *kept).collect();
        let rows: Vec<Vec<String>> = self
            .engine
            .list(None)
            .into_iter()
            .filter(|info| !kept.contains(&info.id))
            .map(|info| {
                let at = self.engine.paused(info.id).map(|at| at.site.to_string());
                let mark = if info.id == self.id { "*" } else { "" };
                vec![
                    format!("{}{mark}", info.id.0),
                    info.state.to_owned(),
                    at.unwrap_or_default(),
                    info.generated.to_string(),
                ]
            })
            .collect();
        table(&["session", "state", "at", "generated"], &rows)
    }

    fn switch(&mut self, id: SessionId) -> Result<String, Failure> {
        if self.engine.tokens(id).is_none() {
            return Err(Failure::Message(format!("there is no session {}", id.0)));
        }
        self.engine.set_breaks(id, &self.breaks)?;
        self.id = id;
        self.edits.clear();
        Ok(self.sessions())
    }

    fn print(&mut self, what: &What) -> Result<String, Failure> {
        match *what {
            What::Here => {
                let tensor = self.engine.activation(self.id)?;
                Ok(show::norms(&self.engine, self.id, &tensor) + &show::largest(&tensor, 5))
            }
            What::Norms => {
                let tensor = self.engine.activation(self.id)?;
                Ok(show::norms(&self.engine, self.id, &tensor))
            }
            What::Largest(n) => Ok(show::largest(&self.engine.activation(self.id)?, n)),
            What::Attention { block, head } => {
                show::attention(&mut self.engine, self.id, block, head)
            }
            What::Lens => {
                let tokens = self.engine.tokens(self.id).unwrap_or_default().to_vec();
                crate::commands::lens::of_tokens(&mut self.engine, &tokens)
            }
            What::Tokens => Ok(show::tokens(&self.engine, self.id)),
        }
    }

    fn save(&mut self, path: &Path) -> Result<String, Failure> {
        let tensor = self.engine.activation(self.id)?;
        let at = self.engine.paused(self.id).expect("it has an activation");
        let shape = tensor.shape.clone();
        let all = BTreeMap::from([(at.site.to_string(), tensor)]);
        write_tensors(path, &all, &BTreeMap::new())?;
        Ok(format!(
            "{} {shape:?} written to {}\n",
            at.site,
            path.display()
        ))
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
