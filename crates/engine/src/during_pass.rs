//! Access to the engine while the device computes a pass.

use std::time::Instant;

use djinn_types::SessionId;

use crate::{
    durability::Durability, error::EngineError, scheduler::spill_policy::SpillPolicy,
    session::residency::SessionMemory, session_ref,
};

/// Access to the engine while the device computes a pass.
pub struct DuringPass<'e> {
    pub(crate) residency: SessionMemory<'e>,
    pub(crate) policy: &'e SpillPolicy,
    pub(crate) durability: &'e mut Durability,
}

impl DuringPass<'_> {
    /// Lets a session wait for its owner, as [`SessionRef::wait`](crate::SessionRef::wait) does; its pages move while the
    /// pass computes. Returns `None` if the session runs in the pass: then call
    /// [`SessionRef::wait`](crate::SessionRef::wait) after the pass.
    pub fn wait(
        &mut self,
        owner: &str,
        id: SessionId,
        expected: Option<Instant>,
    ) -> Option<Result<(), EngineError>> {
        let residency = &mut self.residency;
        if residency.running.iter().any(|member| member.id == id) {
            return None;
        }
        let session = residency.sessions.find(id);
        if session.is_none_or(|session| session.owner != owner) {
            return Some(Err(EngineError::NoSession(id)));
        }
        let (policy, durability) = (self.policy, &mut *self.durability);
        let waits = session_ref::wait(residency, policy, durability, id, expected);
        Some(waits)
    }
}
