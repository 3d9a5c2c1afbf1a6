//! Work whose time grows with a client's input, off the threads that serve connections.
//!
//! Each owner has one piece of such work running at a time, and the pieces of all owners share a fixed
//! number of threads in order of arrival. A long text of one owner delays no health check, and the texts of
//! others by one piece at most.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::Semaphore;

use crate::ServeError;

/// Input in bytes up to which work runs at once, because handing it over would take longer.
const INLINE_BYTES: usize = 1024;
/// Number of owners whose permits are remembered; idle ones are forgotten beyond it.
const OWNERS_MAX: usize = 256;

/// Threads for work that grows with its input, shared fairly by owners.
pub struct Offload {
    threads: Arc<Semaphore>,
    owners: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Offload {
    /// Creates threads for as many pieces of work as the machine has cores.
    pub fn new() -> Self {
        Offload {
            threads: Arc::new(Semaphore::new(djinn_device::host::cores().max(1))),
            owners: Mutex::default(),
        }
    }

    /// Runs work of an owner over an input of `bytes` bytes, and waits for its result.
    pub async fn run<T: Send + 'static>(
        &self,
        owner: &str,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ServeError> {
        if bytes <= INLINE_BYTES {
            return Ok(work());
        }
        let closed = |_| ServeError::unavailable("The server is shutting down");
        let own = self.permits(owner).acquire_owned().await.map_err(closed)?;
        let thread = Arc::clone(&self.threads).acquire_owned();
        let thread = thread.await.map_err(closed)?;
        let span = tracing::Span::current();
        let ran = tokio::task::spawn_blocking(move || {
            let _permits = (own, thread);
            span.in_scope(work)
        });
        ran.await.map_err(|error| {
            tracing::error!(%error, "work on a request panicked");
            ServeError::Internal(
                "The request made the server fail; its log has the details".to_owned(),
            )
        })
    }

    /// Permits of one owner.
    fn permits(&self, owner: &str) -> Arc<Semaphore> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if owners.len() >= OWNERS_MAX {
            owners.retain(|_, permits| Arc::strong_count(permits) > 1);
        }
        let permits = owners.entry(owner.to_owned());
        Arc::clone(permits.or_insert_with(|| Arc::new(Semaphore::new(1))))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::{INLINE_BYTES, Offload};

    #[tokio::test]
    async fn an_owner_with_much_work_does_not_hold_up_others() {
        let offload = Arc::new(Offload::new());
        let (release, released) = mpsc::channel::<()>();
        let (long, after) = (Arc::clone(&offload), Arc::clone(&offload));
        let long = tokio::spawn(async move {
            let work = move || released.recv().is_ok();
            long.run("ada", INLINE_BYTES + 1, work).await
        });
        tokio::task::yield_now().await;
        let after = tokio::spawn(async move { after.run("ada", INLINE_BYTES + 1, || 2).await });
        tokio::task::yield_now().await;
        if offload.threads.available_permits() > 0 {
            let bert = offload.run("bert", INLINE_BYTES + 1, || 3).await;
            assert_eq!(bert.unwrap(), 3);
        }
        assert!(!after.is_finished(), "work of one owner runs in order");
        release.send(()).unwrap();
        assert!(long.await.unwrap().unwrap());
        assert_eq!(after.await.unwrap().unwrap(), 2);
    }

    #[tokio::test]
    async fn work_that_panics_fails_alone() {
        let offload = Offload::new();
        let failed = offload.run("ada", INLINE_BYTES + 1, || panic!("on purpose"));
        assert!(failed.await.is_err());
        assert!(offload.run("ada", INLINE_BYTES + 1, || ()).await.is_ok());
    }
}
