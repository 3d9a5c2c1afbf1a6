//! A model at work: one thread runs its engine, and everybody else asks that thread.
//!
//! A request becomes a job, a closure over the [`Worker`]; jobs run between passes, in the order they
//! came. What sessions come to goes to whoever listens, one queue for each. No queue is without a limit:
//! jobs are refused beyond [`JOBS`], and a listener is sent no more than its session may generate.

pub(crate) mod facts;
mod told;
mod turn;
mod worker;

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

use crate::{ServeError, metrics::Metrics};

pub use facts::{Facts, Words};
pub use told::Told;
pub use turn::Turn;
pub use worker::{Signal, Snapshot, Worker, check_captured};

/// Jobs that may wait for the engine.
const JOBS: usize = 16_384;

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// A loaded model, as everybody but its own thread sees it.
pub struct Host {
    /// What it is called here.
    pub name: String,
    /// What does not change while it is loaded.
    pub facts: Facts,
    /// Its tokenizer and what it recommends.
    pub words: Words,
    jobs: mpsc::Sender<Job>,
    signals: mpsc::Sender<Signal>,
    waiting: Arc<AtomicUsize>,
    alive: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    used: Mutex<Instant>,
}

/// An engine that was just loaded.
pub struct Loaded {
    /// It.
    pub engine: Engine,
    /// Bytes a second that the link gives alone, where weights come over it.
    pub link_ceiling: f64,
}

/// What a host is started with.
pub struct Start {
    /// What the model is called here.
    pub name: String,
    /// How latencies are told of.
    pub metrics: Arc<Metrics>,
}

impl Host {
    /// Loads a model on a thread of its own and returns when it can be asked. `load` runs there.
    pub fn start(
        start: Start,
        load: impl FnOnce(&mut dyn FnMut(LoadProgress)) -> Result<Loaded, ServeError> + Send + 'static,
        mut progress: impl FnMut(LoadProgress) + Send + 'static,
    ) -> Result<Arc<Host>, ServeError> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (signals, signalled) = mpsc::channel();
        let (ready, loaded) = mpsc::channel();
        let alive = Arc::new(AtomicBool::new(true));
        let waiting = Arc::new(AtomicUsize::new(0));
        let Start { name, metrics } = start;
        let (is_alive, count) = (Arc::clone(&alive), Arc::clone(&waiting));
        let (model, named) = (name.clone(), name.clone());
        let run = move || {
            let ran = catch_unwind(AssertUnwindSafe(move || {
                let Loaded {
                    engine,
                    link_ceiling,
                } = match load(&mut progress) {
                    Ok(loaded) => loaded,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return;
                    }
                };
                // Whoever heard of it is told no more.
                drop(progress);
                let told = (Facts::of(&engine, link_ceiling), Words::of(engine.model()));
                let mut worker = Worker::new(engine, &model, metrics);
                if ready.send(Ok(told)).is_ok() {
                    worker.run(&queue, &signalled, &count);
                }
            }));
            is_alive.store(false, Ordering::Release);
            if ran.is_err() {
                tracing::error!(
                    model = named,
                    "the engine broke down: its sessions are lost to it"
                );
            }
        };
        let thread = thread::Builder::new()
            .name(format!("engine {name}"))
            .spawn(run)
            .map_err(|error| ServeError::Internal(format!("no thread for {name}: {error}")))?;
        let broke = || ServeError::Internal(format!("{name} broke down while it was loaded"));
        let (facts, words) = loaded.recv().map_err(|_| broke())??;
        Ok(Arc::new(Host {
            name,
            facts,
            words,
            jobs,
            signals,
            waiting,
            alive,
            thread: Mutex::new(Some(thread)),
            used: Mutex::new(Instant::now()),
        }))
    }

    /// Whether it can be asked.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Notes that somebody wants it.
    pub fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Since when nobody did.
    pub fn last_used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for something to be done when it can; nobody waits for it.
    pub fn post(&self, job: impl FnOnce(&mut Worker) + Send + 'static) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // A model that is gone has nothing to do.
        let _ = self.jobs.send(Box::new(job));
    }

    /// Asks for something and waits for the answer.
    pub async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Worker) -> Result<T, ServeError> + Send + 'static,
    ) -> Result<T, ServeError> {
        if self.waiting.load(Ordering::Relaxed) >= JOBS {
            return Err(ServeError::Busy(format!(
                "{JOBS} requests wait for {} already: try again later",
                self.name
            )));
        }
        let (answer, answered) = oneshot::channel();
        // What begins there is part of the request, where traces are kept.
        let span = tracing::Span::current();
        self.post(move |worker| {
            // Dropped without an answer where it is about to be unloaded. Whoever has left meanwhile
            // drops what it was to be given, and a turn that is dropped ends.
            if !worker.is_closing() {
                let _ = answer.send(span.in_scope(|| job(worker)));
            }
        });
        answered.await.map_err(|_| self.gone())?
    }

    /// A session's owner is away, since `came`: its pages move at once, even in the middle of a pass
    /// that is not its own. Says how long that took.
    pub async fn away(
        &self,
        owner: &str,
        id: SessionId,
        expected: Option<Instant>,
        came: Instant,
    ) -> Result<Duration, ServeError> {
        let (signal, answered) = Signal::new(owner, id, expected, came);
        let _ = self.signals.send(signal);
        // Whoever sleeps wakes up.
        self.post(|_| {});
        answered.await.map_err(|_| self.gone())?
    }

    /// What is said of a model that cannot be asked any more.
    pub fn gone(&self) -> ServeError {
        ServeError::Unavailable(match self.is_alive() {
            true => format!("{} is being unloaded", self.name),
            false => format!("the engine of {} is gone: register it again", self.name),
        })
    }

    /// Ends the thread, and with it the model's memory. Blocks until it is over.
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
