//! The state machine of a session. Each state carries the data that only it has.

use std::time::Instant;

use crate::{
    RunUntil,
    probe::checkpoint::{Checkpoint, PausePlace, Rewind},
    session::{failure::SessionFailure, output::Finish, status::SessionStatus},
};

/// Route of a session through its next pass: where it begins, and where it pauses besides at
/// breakpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct PassRoute {
    /// Hook to continue from or to run to again; `None` starts at the first operation.
    pub place: Option<PausePlace>,
    /// Additional place to pause at.
    pub until: RunUntil,
}

/// State of a session.
#[derive(Clone, Debug)]
pub(crate) enum SessionState {
    /// The session has tokens to run, but is not admitted to KV memory yet.
    Queued { route: PassRoute },
    /// The session has tokens to run and may hold KV pages.
    Ready {
        route: PassRoute,
        /// Time at which the scheduler first chose the session since it became ready.
        scheduled: Option<Instant>,
    },
    /// The session runs in the current pass.
    Running {
        route: PassRoute,
        scheduled: Option<Instant>,
    },
    /// The session waits for its owner; others may use its device memory.
    Waiting {
        route: PassRoute,
        /// Whether the session may hold KV pages.
        admitted: bool,
        /// Whether the session has generated everything that was asked for.
        turn_over: bool,
        /// Time at which the owner expects to resume the session.
        expected: Option<Instant>,
    },
    /// The session is paused at a hook until its owner resumes it.
    Paused {
        place: PausePlace,
        /// Whether the session may hold KV pages.
        admitted: bool,
        /// Time at which the owner expects to resume the session.
        expected: Option<Instant>,
    },
    /// The session has ended and holds no pages.
    Done {
        finish: Finish,
        /// Failure that ended the session.
        failure: Option<SessionFailure>,
    },
}

/// Event that moves a session from one state to another.
#[derive(Clone, Debug)]
pub(crate) enum Transition {
    /// KV memory admits the session.
    Admit,
    /// A pass takes the session in.
    Run,
    /// The pass has ended and the session has more to run.
    EndPass,
    /// The session reached a breakpoint in the pass.
    Pause(Checkpoint),
    /// A kept session has generated everything that was asked for.
    EndTurn,
    /// The owner waits for something, and may know until when.
    Wait(Option<Instant>),
    /// The owner resumes the session.
    Resume,
    /// A fault interrupted a kept session and took its pages; the place to run to again.
    Fault(Option<Rewind>),
    /// The session ends.
    End(Finish, Option<SessionFailure>),
}

/// Operation of the owner that is allowed in some states only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerAction {
    /// Appending tokens to a waiting session.
    Append,
    /// Resuming a session that waits or is paused.
    Resume,
    /// Resuming, reading or branching a session that is paused at a hook.
    Debug,
    /// Waiting for something.
    Wait,
    /// Copying a session that has not ended.
    Fork,
}

impl SessionState {
    /// Returns the status that clients see.
    pub fn status(&self) -> SessionStatus {
        match self {
            SessionState::Queued { .. } | SessionState::Ready { .. } => SessionStatus::Ready,
            SessionState::Running { .. } => SessionStatus::Running,
            SessionState::Waiting { .. } => SessionStatus::Waiting,
            SessionState::Paused { .. } => SessionStatus::Paused,
            SessionState::Done { .. } => SessionStatus::Done,
        }
    }

    /// Checks that an owner's operation is allowed, or returns the statuses that allow it.
    pub fn check(&self, action: OwnerAction) -> Result<(), &'static [SessionStatus]> {
        use SessionStatus::{Done, Paused, Ready, Running, Waiting};
        let allowed: &[SessionStatus] = match action {
            OwnerAction::Append => &[Waiting],
            OwnerAction::Resume => &[Waiting, Paused],
            OwnerAction::Debug => &[Paused],
            OwnerAction::Wait => &[Ready, Waiting, Paused],
            OwnerAction::Fork => &[Ready, Running, Waiting, Paused],
        };
        debug_assert!(!allowed.contains(&Done));
        match allowed.contains(&self.status()) {
            true => Ok(()),
            false => Err(allowed),
        }
    }

    /// Applies a transition. An illegal transition leaves the state unchanged and returns the
    /// statuses from which it is legal.
    pub fn apply(&mut self, transition: Transition) -> Result<(), &'static [SessionStatus]> {
        let placeholder = SessionState::Queued {
            route: PassRoute::default(),
        };
        let now = std::mem::replace(self, placeholder);
        match now.next(transition) {
            Ok(next) => {
                *self = next;
                Ok(())
            }
            Err((same, allowed)) => {
                *self = *same;
                Err(allowed)
            }
        }
    }

    fn next(
        self,
        transition: Transition,
    ) -> Result<SessionState, (Box<SessionState>, &'static [SessionStatus])> {
        use SessionState as S;
        use SessionStatus as Status;
        Ok(match (transition, self) {
            (Transition::Admit, S::Queued { route }) => S::Ready {
                route,
                scheduled: None,
            },
            (Transition::Run, S::Ready { route, scheduled }) => S::Running { route, scheduled },
            (Transition::EndPass, S::Running { route, scheduled }) => S::Ready { route, scheduled },
            (Transition::Pause(checkpoint), S::Running { .. }) => S::Paused {
                place: PausePlace::Here(checkpoint),
                admitted: true,
                expected: None,
            },
            (Transition::EndTurn, S::Running { route, .. }) => S::Waiting {
                route: PassRoute {
                    until: RunUntil::Breakpoint,
                    ..route
                },
                admitted: true,
                turn_over: true,
                expected: None,
            },
            (Transition::Wait(expected), now) => return now.wait(expected),
            (Transition::Resume, now) => return now.resume(),
            (Transition::Fault(rewind), now) => return now.fault(rewind),
            // The first reason for the end is kept.
            (Transition::End(..), S::Done { finish, failure }) => {
                let done = Box::new(S::Done { finish, failure });
                let open: &[Status] = &[
                    Status::Ready,
                    Status::Running,
                    Status::Waiting,
                    Status::Paused,
                ];
                return Err((done, open));
            }
            (Transition::End(finish, failure), _) => S::Done { finish, failure },
            (Transition::Admit | Transition::Run, now) => {
                return Err((Box::new(now), &[Status::Ready]));
            }
            (_, now) => return Err((Box::new(now), &[Status::Running])),
        })
    }

    fn wait(
        self,
        until: Option<Instant>,
    ) -> Result<SessionState, (Box<SessionState>, &'static [SessionStatus])> {
        use SessionState as S;
        use SessionStatus as Status;
        let expected = until;
        match self {
            S::Queued { route } => Ok(S::Waiting {
                route,
                admitted: false,
                turn_over: false,
                expected,
            }),
            S::Ready { route, .. } => Ok(S::Waiting {
                route,
                admitted: true,
                turn_over: false,
                expected,
            }),
            S::Waiting {
                route,
                admitted,
                turn_over,
                ..
            } => Ok(S::Waiting {
                route,
                admitted,
                turn_over,
                expected,
            }),
            S::Paused {
                place, admitted, ..
            } => Ok(S::Paused {
                place,
                admitted,
                expected,
            }),
            now => {
                let allowed = &[Status::Ready, Status::Waiting, Status::Paused];
                Err((Box::new(now), allowed))
            }
        }
    }

    fn resume(self) -> Result<SessionState, (Box<SessionState>, &'static [SessionStatus])> {
        use SessionState as S;
        let (route, admitted) = match self {
            S::Waiting {
                route, admitted, ..
            } => (route, admitted),
            S::Paused {
                place, admitted, ..
            } => {
                let route = PassRoute {
                    place: Some(place),
                    until: RunUntil::Breakpoint,
                };
                (route, admitted)
            }
            now => {
                let allowed = &[SessionStatus::Waiting, SessionStatus::Paused];
                return Err((Box::new(now), allowed));
            }
        };
        Ok(match admitted {
            true => S::Ready {
                route,
                scheduled: None,
            },
            false => S::Queued { route },
        })
    }

    /// Returns the state after a fault: the session waits without pages. A paused session stays
    /// paused, and has to run to its hook again.
    fn fault(
        self,
        rewind: Option<Rewind>,
    ) -> Result<SessionState, (Box<SessionState>, &'static [SessionStatus])> {
        use SessionState as S;
        use SessionStatus as Status;
        let place = rewind.map(PausePlace::Replay);
        let turn_over = self.is_turn_over();
        let expected = self.awaits().flatten();
        match (self, place) {
            (now @ S::Done { .. }, _) => {
                let open = &[
                    Status::Ready,
                    Status::Running,
                    Status::Waiting,
                    Status::Paused,
                ];
                Err((Box::new(now), open))
            }
            (S::Paused { .. }, Some(place)) => Ok(S::Paused {
                place,
                admitted: false,
                expected,
            }),
            (_, place) => Ok(S::Waiting {
                route: PassRoute {
                    place,
                    until: RunUntil::Breakpoint,
                },
                admitted: false,
                turn_over,
                expected,
            }),
        }
    }

    /// Whether the session may hold KV pages.
    pub fn is_admitted(&self) -> bool {
        match self {
            SessionState::Ready { .. } | SessionState::Running { .. } => true,
            SessionState::Waiting { admitted, .. } | SessionState::Paused { admitted, .. } => {
                *admitted
            }
            SessionState::Queued { .. } | SessionState::Done { .. } => false,
        }
    }

    /// Returns when the owner of a waiting or paused session expects to resume it; the outer
    /// `None` means that the session does not wait for its owner.
    pub fn awaits(&self) -> Option<Option<Instant>> {
        match self {
            SessionState::Waiting { expected, .. } | SessionState::Paused { expected, .. } => {
                Some(*expected)
            }
            _ => None,
        }
    }

    /// Whether the session waits with everything generated that was asked for.
    pub fn is_turn_over(&self) -> bool {
        matches!(
            self,
            SessionState::Waiting {
                turn_over: true,
                ..
            }
        )
    }

    /// Whether the session is paused at a hook.
    pub fn is_paused(&self) -> bool {
        matches!(self, SessionState::Paused { .. })
    }

    /// Whether the session runs in the current pass.
    pub fn is_running(&self) -> bool {
        matches!(self, SessionState::Running { .. })
    }

    /// Whether the session has ended.
    pub fn is_done(&self) -> bool {
        matches!(self, SessionState::Done { .. })
    }

    /// Returns the hook that the session is paused at, continues from, or runs to again.
    pub fn place(&self) -> Option<&PausePlace> {
        match self {
            SessionState::Queued { route }
            | SessionState::Ready { route, .. }
            | SessionState::Running { route, .. }
            | SessionState::Waiting { route, .. } => route.place.as_ref(),
            SessionState::Paused { place, .. } => Some(place),
            SessionState::Done { .. } => None,
        }
    }

    /// Returns the place to pause at besides breakpoints.
    pub fn until(&self) -> RunUntil {
        match self {
            SessionState::Queued { route }
            | SessionState::Ready { route, .. }
            | SessionState::Running { route, .. }
            | SessionState::Waiting { route, .. } => route.until,
            SessionState::Paused { .. } | SessionState::Done { .. } => RunUntil::Breakpoint,
        }
    }

    /// Returns the route of a session that has tokens to run or waits.
    pub fn route_mut(&mut self) -> Option<&mut PassRoute> {
        match self {
            SessionState::Queued { route }
            | SessionState::Ready { route, .. }
            | SessionState::Running { route, .. }
            | SessionState::Waiting { route, .. } => Some(route),
            SessionState::Paused { .. } | SessionState::Done { .. } => None,
        }
    }

    /// Returns when the scheduler first chose a session that is ready or running.
    pub fn scheduled(&self) -> Option<Instant> {
        match self {
            SessionState::Ready { scheduled, .. } | SessionState::Running { scheduled, .. } => {
                *scheduled
            }
            _ => None,
        }
    }

    /// Notes that the scheduler chose a ready session at `now`.
    pub fn note_scheduled(&mut self, now: Instant) {
        if let SessionState::Ready { scheduled, .. } = self {
            scheduled.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{OwnerAction, PassRoute, SessionState, SessionStatus, Transition};
    use crate::{
        Finish, Paused,
        probe::checkpoint::{PausePlace, Rewind},
    };

    fn rewind() -> Rewind {
        Rewind {
            to: Paused {
                site: djinn_model::Site::Embed,
                position: 0,
                rows: 1,
            },
            next: 1,
            stops: false,
        }
    }

    fn states() -> [SessionState; 6] {
        [
            SessionState::Queued {
                route: PassRoute::default(),
            },
            SessionState::Ready {
                route: PassRoute::default(),
                scheduled: None,
            },
            SessionState::Running {
                route: PassRoute::default(),
                scheduled: None,
            },
            SessionState::Waiting {
                route: PassRoute::default(),
                admitted: true,
                turn_over: false,
                expected: None,
            },
            SessionState::Paused {
                place: PausePlace::Replay(rewind()),
                admitted: true,
                expected: None,
            },
            SessionState::Done {
                finish: Finish::Eos,
                failure: None,
            },
        ]
    }

    #[test]
    fn every_transition_from_every_state() {
        let leads = |transition: &Transition| {
            states().map(|mut state| match state.apply(transition.clone()) {
                Ok(()) => state.status().name(),
                Err(_) => "–",
            })
        };
        let none = "–";
        let admit = ["ready", none, none, none, none, none];
        assert_eq!(leads(&Transition::Admit), admit);
        let run = [none, "running", none, none, none, none];
        assert_eq!(leads(&Transition::Run), run);
        let end_pass = [none, none, "ready", none, none, none];
        assert_eq!(leads(&Transition::EndPass), end_pass);
        let end_turn = [none, none, "waiting", none, none, none];
        assert_eq!(leads(&Transition::EndTurn), end_turn);
        let wait = ["waiting", "waiting", none, "waiting", "paused", none];
        assert_eq!(leads(&Transition::Wait(None)), wait);
        let resume = [none, none, none, "ready", "ready", none];
        assert_eq!(leads(&Transition::Resume), resume);
        let fault = ["waiting", "waiting", "waiting", "waiting", "paused", none];
        assert_eq!(leads(&Transition::Fault(Some(rewind()))), fault);
        let end = ["done", "done", "done", "done", "done", none];
        assert_eq!(leads(&Transition::End(Finish::Length, None)), end);
    }

    #[test]
    fn illegal_transitions_change_nothing() {
        for (mut state, status) in states().map(|state| {
            let status = state.status();
            (state, status)
        }) {
            if state.apply(Transition::Run).is_err() {
                assert_eq!(state.status(), status);
            }
        }
    }

    #[test]
    fn owners_may_do_what_the_status_allows() {
        let allowed = |action| {
            let allows = |state: &SessionState| state.check(action).is_ok();
            let all = states();
            let all = all.iter().filter(|state| allows(state));
            all.map(|state| state.status().name()).collect::<Vec<_>>()
        };
        assert_eq!(allowed(OwnerAction::Append), ["waiting"]);
        assert_eq!(allowed(OwnerAction::Resume), ["waiting", "paused"]);
        assert_eq!(allowed(OwnerAction::Debug), ["paused"]);
        let wait = ["ready", "ready", "waiting", "paused"];
        assert_eq!(allowed(OwnerAction::Wait), wait);
        let fork = ["ready", "ready", "running", "waiting", "paused"];
        assert_eq!(allowed(OwnerAction::Fork), fork);
        assert_eq!(SessionStatus::Done.to_string(), "done");
    }
}
