//! Handle of a loaded model: starts the engine thread and sends it jobs.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use djinn_engine::{Engine, LoadProgress, SessionId};
use tokio::sync::oneshot;

use super::{
    facts::LoadedModelFacts,
    tokenizer::ChatTokenizer,
    wait_signal::WaitSignal,
    worker::{EngineJob, Worker},
};
use crate::{ServeError, metrics::Metrics};

/// A loaded model, as all threads except its engine thread see it.
pub struct LoadedModel {
    /// Name of the model on this server.
    pub name: String,
    /// Properties that stay constant while the model is loaded.
    pub facts: LoadedModelFacts,
    /// Tokenizer, chat template and recommended sampling.
    pub tokenizer: ChatTokenizer,
    jobs: mpsc::Sender<EngineJob>,
    /// Limit of `queued`.
    jobs_max: usize,
    signals: mpsc::Sender<WaitSignal>,
    queued: Arc<AtomicUsize>,
    alive: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    used: Mutex<Instant>,
}

/// An engine that was just loaded.
pub struct LoadedEngine {
    /// Engine that runs the model.
    pub engine: Engine,
    /// Measured bandwidth of the link in bytes per second; 0 if no weights stream.
    pub link_ceiling: f64,
}

impl LoadedModel {
    /// Spawns the engine thread, runs `load` on it, and returns when the model accepts jobs. At most
    /// `jobs_max` jobs may wait for the thread.
    pub fn start(
        name: String,
        metrics: Arc<Metrics>,
        jobs_max: usize,
        load: impl FnOnce(&mut dyn FnMut(LoadProgress)) -> Result<LoadedEngine, ServeError>
        + Send
        + 'static,
        mut progress: impl FnMut(LoadProgress) + Send + 'static,
    ) -> Result<Arc<LoadedModel>, ServeError> {
        let (jobs, queue) = mpsc::channel::<EngineJob>();
        let (signals, signalled) = mpsc::channel();
        let (ready, loaded) = mpsc::channel();
        let alive = Arc::new(AtomicBool::new(true));
        let queued = Arc::new(AtomicUsize::new(0));
        let (is_alive, count, model) = (Arc::clone(&alive), Arc::clone(&queued), name.clone());
        let run = move || {
            let worker_name = model.clone();
            let ran = catch_unwind(AssertUnwindSafe(move || {
                let loaded = match load(&mut progress) {
                    Ok(loaded) => loaded,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return;
                    }
                };
                // Dropping the sender closes the channel that reports progress.
                drop(progress);
                let facts = LoadedModelFacts::of(&loaded.engine, loaded.link_ceiling);
                let tokenizer = ChatTokenizer::of(loaded.engine.model());
                let mut worker = Worker::new(loaded.engine, &worker_name, &metrics);
                if ready.send(Ok((facts, tokenizer))).is_ok() {
                    worker.run(&queue, &signalled, &count);
                }
            }));
            is_alive.store(false, Ordering::Release);
            if ran.is_err() {
                tracing::error!(model, "engine thread panicked; its sessions are lost");
            }
        };
        let thread = thread::Builder::new()
            .name(format!("engine {name}"))
            .spawn(run)
            .map_err(|error| {
                ServeError::Internal(format!(
                    "Cannot start the engine thread of {name}: {error}; check the limit on threads"
                ))
            })?;
        let panicked = || {
            ServeError::Internal(format!(
                "Loading {name} failed because its thread panicked; the server's log has the details"
            ))
        };
        let (facts, tokenizer) = loaded.recv().map_err(|_| panicked())??;
        Ok(Arc::new(LoadedModel {
            name,
            facts,
            tokenizer,
            jobs,
            jobs_max,
            signals,
            queued,
            alive,
            thread: Mutex::new(Some(thread)),
            used: Mutex::new(Instant::now()),
        }))
    }

    /// Whether the engine thread is running.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Records that a request uses the model.
    pub fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Time of the last request that used the model.
    pub fn last_used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a job without waiting for it. A model that stopped ignores the job.
    pub fn post(&self, job: impl FnOnce(&mut Worker) + Send + 'static) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        let _ = self.jobs.send(Box::new(job));
    }

    /// Queues a job and waits for its result. Fails at once if too many jobs already wait.
    pub async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Worker) -> Result<T, ServeError> + Send + 'static,
    ) -> Result<T, ServeError> {
        if self.queued.load(Ordering::Relaxed) >= self.jobs_max {
            return Err(ServeError::Busy(format!(
                "Too many requests wait for {} (limit {}); retry later",
                self.name, self.jobs_max
            )));
        }
        let (reply, replied) = oneshot::channel();
        // The job's spans belong to the request's trace.
        let span = tracing::Span::current();
        self.post(move |worker| {
            // A model that is about to be unloaded drops the job. If the caller left meanwhile,
            // the result is dropped here, and a dropped `TurnStream` ends its session.
            if !worker.is_closing() {
                let _ = reply.send(span.in_scope(|| job(worker)));
            }
        });
        replied.await.map_err(|_| self.gone())?
    }

    /// Signals to the engine that a session waits for its client since `received`. The session's
    /// KV pages move at once, even during a pass of other sessions. Returns the reaction time.
    pub async fn wait(
        &self,
        owner: &str,
        id: SessionId,
        expected: Option<Instant>,
        received: Instant,
    ) -> Result<Duration, ServeError> {
        let (signal, replied) = WaitSignal::new(owner, id, expected, received);
        let _ = self.signals.send(signal);
        // An empty job wakes an idle thread.
        self.post(|_| {});
        replied.await.map_err(|_| self.gone())?
    }

    /// Error for a model that accepts no more jobs.
    pub fn gone(&self) -> ServeError {
        ServeError::Unavailable(match self.is_alive() {
            true => format!("Model {} is being unloaded; retry later", self.name),
            false => format!(
                "The engine of model {} failed; register it again",
                self.name
            ),
        })
    }

    /// Stops the engine thread and frees the model's memory. Blocks until the thread has ended.
    pub fn stop(&self) {
        self.post(Worker::stop);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}
