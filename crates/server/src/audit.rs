//! Audit log: the actions of admins, one JSON object per line.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::json;

use crate::{ServeError, auth::Caller};

/// Record of what admins did. Every action is a line of the server's log, and of a file if one is configured.
pub struct AuditLog {
    file: Option<Mutex<File>>,
}

impl AuditLog {
    /// Opens the file, or records to the server's log only.
    pub fn open(path: Option<&Path>) -> Result<Self, ServeError> {
        let open = |path: &Path| {
            let mut options = OpenOptions::new();
            let opened = options.create(true).append(true).mode(0o600).open(path);
            opened.map_err(|error| {
                ServeError::Invalid(format!(
                    "Cannot open the audit log {}: {error}",
                    path.display()
                ))
            })
        };
        let file = path.map(open).transpose()?;
        Ok(AuditLog {
            file: file.map(Mutex::new),
        })
    }

    /// Records an action of a caller, and whether it succeeded.
    pub fn record<T, E: std::fmt::Display>(
        &self,
        caller: &Caller,
        action: &str,
        target: &str,
        done: &Result<T, E>,
    ) {
        let (owner, id) = (caller.name(), caller.context.id.as_str());
        let peer = caller.context.peer.map(|peer| peer.to_string());
        let error = done.as_ref().err().map(ToString::to_string);
        self.write(owner, peer.as_deref(), id, action, target, error.as_deref());
    }

    /// Records an action that the operator asked for with a signal.
    pub fn record_signal(&self, action: &str, error: Option<&str>) {
        self.write("operator", None, "", action, "", error);
    }

    fn write(
        &self,
        owner: &str,
        peer: Option<&str>,
        id: &str,
        action: &str,
        target: &str,
        error: Option<&str>,
    ) {
        let target: String = target.chars().take(200).collect();
        tracing::info!(
            audit = true,
            owner,
            peer,
            id,
            action,
            target,
            error,
            "audit"
        );
        let Some(file) = &self.file else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let line = json!({
            "time": now.unwrap_or_default().as_secs_f64(),
            "owner": owner,
            "peer": peer,
            "request_id": id,
            "action": action,
            "target": target,
            "ok": error.is_none(),
            "error": error,
        });
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
            tracing::error!(%error, "the audit log cannot be written");
        }
    }
}
