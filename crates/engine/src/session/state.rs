//! A session's life as one machine: where it can stand, and what leads from where to where.

use std::time::Instant;

use crate::Finish;

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Has tokens to run.
    Ready,
    /// Is in the pass at hand.
    Running,
    /// Waits for its owner, and holds no memory that others need.
    Waiting {
        /// When it is expected back, if it said.
        expected: Option<Instant>,
    },
    /// Stopped at a hook, and waits there for its owner.
    Paused {
        /// When it is expected to go on, if it said.
        expected: Option<Instant>,
    },
    /// Will run no more.
    Done(Finish),
}

/// What happens to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A pass takes it in.
    Run,
    /// That pass is over, and there is more to run.
    Pass,
    /// It came to a breakpoint in that pass.
    Stop,
    /// It has generated what was asked for, and is kept.
    TurnOver,
    /// Its owner waits for something, and may know for how long.
    Wait(Option<Instant>),
    /// Its owner tells it more.
    Say,
    /// Its owner goes on.
    Resume,
    /// The same, from a breakpoint and nowhere else.
    GoOn,
    /// It is over: it came to its end, its time is up, it was given up, or something broke.
    End(Finish),
}

impl State {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Running => "running",
            State::Waiting { .. } => "waiting",
            State::Paused { .. } => "paused",
            State::Done(_) => "done",
        }
    }

    /// Where a step leads, or the states it can be taken from.
    pub fn after(self, step: Step) -> Result<State, &'static str> {
        match (step, self) {
            (Step::Run, State::Ready) => Ok(State::Running),
            (Step::Run, _) => Err("ready"),
            (Step::Pass, State::Running) => Ok(State::Ready),
            (Step::TurnOver, State::Running) => Ok(State::Waiting { expected: None }),
            (Step::Stop, State::Running) => Ok(State::Paused { expected: None }),
            (Step::Pass | Step::TurnOver | Step::Stop, _) => Err("running"),
            (Step::Wait(expected), State::Ready | State::Waiting { .. }) => {
                Ok(State::Waiting { expected })
            }
            (Step::Wait(expected), State::Paused { .. }) => Ok(State::Paused { expected }),
            (Step::Wait(_), _) => Err("ready, waiting or paused"),
            (Step::Say, State::Waiting { .. }) => Ok(State::Ready),
            (Step::Say, _) => Err("waiting"),
            (Step::Resume, State::Waiting { .. } | State::Paused { .. }) => Ok(State::Ready),
            (Step::Resume, _) => Err("waiting or paused"),
            (Step::GoOn, State::Paused { .. }) => Ok(State::Ready),
            (Step::GoOn, _) => Err("paused"),
            // The first reason stays.
            (Step::End(_), State::Done(_)) => Err("open"),
            (Step::End(finish), _) => Ok(State::Done(finish)),
        }
    }

    /// When a session is expected that waits for its owner, if it said; nothing where it
    /// does not wait.
    pub fn awaits(self) -> Option<Option<Instant>> {
        match self {
            State::Waiting { expected } | State::Paused { expected } => Some(expected),
            State::Ready | State::Running | State::Done(_) => None,
        }
    }

    /// Whether it stopped at a hook.
    pub fn is_paused(self) -> bool {
        matches!(self, State::Paused { .. })
    }

    /// Whether it is over.
    pub fn is_done(self) -> bool {
        matches!(self, State::Done(_))
    }
}

#[cfg(test)]
mod tests {
    use super::{State, Step};
    use crate::Finish;

    #[test]
    fn every_step_from_everywhere() {
        let states = [
            State::Ready,
            State::Running,
            State::Waiting { expected: None },
            State::Paused { expected: None },
            State::Done(Finish::Eos),
        ];
        let leads = |step: Step| {
            let name = |state: State| state.after(step).map_or("–", State::name);
            states.map(name)
        };
        assert_eq!(leads(Step::Run), ["running", "–", "–", "–", "–"]);
        assert_eq!(leads(Step::Pass), ["–", "ready", "–", "–", "–"]);
        assert_eq!(leads(Step::Stop), ["–", "paused", "–", "–", "–"]);
        assert_eq!(leads(Step::TurnOver), ["–", "waiting", "–", "–", "–"]);
        let wait = ["waiting", "–", "waiting", "paused", "–"];
        assert_eq!(leads(Step::Wait(None)), wait);
        assert_eq!(leads(Step::Say), ["–", "–", "ready", "–", "–"]);
        assert_eq!(leads(Step::Resume), ["–", "–", "ready", "ready", "–"]);
        assert_eq!(leads(Step::GoOn), ["–", "–", "–", "ready", "–"]);
        let end = ["done", "done", "done", "done", "–"];
        assert_eq!(leads(Step::End(Finish::Length)), end);
    }
}
