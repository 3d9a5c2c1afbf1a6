//! Handle of a loaded model: starts the engine thread and sends it jobs.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use djinn_engine::{CheckedRequest, Engine, LoadProgress, SessionId};
use tokio::sync::{mpsc::UnboundedReceiver, oneshot};

use super::{
    event::SessionEvent,
    facts::LoadedModelFacts,
    job_queue::{JobQueue, SERVER},
    open_queue::{OpenRequest, OpenedSession},
    shared::SharedState,
    tenant::ModelTenant,
    tokenizer::ChatTokenizer,
    wait_signal::WaitSignal,
    worker::{EngineJob, Worker},
};
use crate::{
    ServeError,
    config::ServerLimits,
    device_pool::{DevicePool, Reservation},
    fatal::FatalSignal,
    metrics::{EngineSnapshot, Metrics},
};

/// Time that a thread has to end after the server stops it.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which a stopping thread is checked.
const STOP_POLL: Duration = Duration::from_millis(5);

/// A loaded model, as all threads except its engine thread see it.
pub struct LoadedModel {
    /// Name of the model on this server.
    pub name: String,
    /// Properties that stay constant while the model is loaded.
    pub facts: LoadedModelFacts,
    /// Tokenizer, chat template and recommended sampling.
    pub tokenizer: ChatTokenizer,
    jobs: Arc<JobQueue<EngineJob>>,
    signals: mpsc::Sender<WaitSignal>,
    shared: Arc<SharedState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Parts of the server that an engine thread uses.
pub struct ThreadSetup {
    /// Metrics of the server.
    pub metrics: Arc<Metrics>,
    /// Raised when the device is lost.
    pub fatal: FatalSignal,
    /// Memory of the device, which models use in turns.
    pub pool: Arc<DevicePool>,
    /// Largest number of jobs that may wait for the thread.
    pub jobs_max: usize,
    /// Longest time that a request waits for the model to return to the device.
    pub queue_wait: Duration,
}

/// An engine that was just loaded.
pub struct LoadedEngine {
    /// Engine that runs the model.
    pub engine: Engine,
    /// Measured bandwidth of the link in bytes per second; 0 if no weights stream.
    pub link_ceiling: f64,
}

impl LoadedModel {
    /// Spawns the engine thread, runs `load` on it, and returns when the model accepts jobs. `load`
    /// reserves the memory of the device that it uses.
    pub fn start(
        name: String,
        setup: ThreadSetup,
        load: impl FnOnce(
            &Reservation,
            &mut dyn FnMut(LoadProgress),
        ) -> Result<LoadedEngine, ServeError>
        + Send
        + 'static,
        mut progress: impl FnMut(LoadProgress) + Send + 'static,
    ) -> Result<Arc<LoadedModel>, ServeError> {
        let ThreadSetup {
            metrics,
            fatal,
            pool,
            jobs_max,
            queue_wait,
        } = setup;
        let (signals, signalled) = mpsc::channel();
        let (ready, loaded) = mpsc::channel();
        let (jobs, shared) = (
            Arc::new(JobQueue::<EngineJob>::new(jobs_max)),
            SharedState::new(),
        );
        let (queue, state, model) = (Arc::clone(&jobs), Arc::clone(&shared), name.clone());
        let tenant = ModelTenant {
            name: name.clone(),
            jobs: Arc::clone(&jobs),
            shared: Arc::clone(&shared),
        };
        let run = move || {
            let ran = catch_unwind(AssertUnwindSafe(|| {
                let reservation = Reservation::new(&pool, Arc::new(tenant));
                let loaded = match load(&reservation, &mut progress) {
                    Ok(loaded) => loaded,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return;
                    }
                };
                // Dropping the sender closes the channel that reports progress.
                drop(progress);
                let facts = LoadedModelFacts::of(&loaded.engine, loaded.link_ceiling);
                let tokenizer =
                    ChatTokenizer::of(loaded.engine.model(), facts.limits.context as usize);
                let latency = metrics.latency(&model);
                let state = Arc::clone(&state);
                reservation.begin_turn();
                let LoadedEngine { engine, .. } = loaded;
                let mut worker =
                    Worker::new(engine, reservation, latency, state, fatal, queue_wait);
                if ready.send(Ok((facts, tokenizer))).is_ok() {
                    worker.run(&queue, &signalled);
                }
                // Callers that wait learn at once that the thread ends; freeing the memory may take a while.
                worker.announce_end();
                queue.clear();
                worker.save_prefixes(&model);
            }));
            state.end();
            queue.clear();
            if ran.is_err() {
                tracing::error!(model, "the engine thread panicked");
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
            signals,
            shared,
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// Whether the engine thread is running.
    pub fn is_alive(&self) -> bool {
        self.shared.is_alive()
    }

    /// Whether the engine thread has been busy with one pass or job for longer than `limit`, and much longer
    /// than with any pass before.
    pub fn is_stalled(&self, limit: Duration) -> bool {
        self.shared.heartbeat.is_stalled(limit)
    }

    /// Time that the engine thread has spent on its current pass or job.
    pub fn busy_for(&self) -> Duration {
        self.shared.heartbeat.busy_for()
    }

    /// Counters and gauges that the engine thread published last. Never waits for the thread.
    pub fn snapshot(&self) -> EngineSnapshot {
        self.shared.snapshot()
    }

    /// Whether a session has tokens to run, or a job waits.
    pub fn is_busy(&self) -> bool {
        // A job is counted until the state after it is known.
        self.shared.is_busy() || self.jobs.len() > 0 || self.busy_for() > Duration::ZERO
    }

    /// Number of jobs that wait for the engine thread.
    pub fn queued_jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Records that a request uses the model.
    pub fn touch(&self) {
        self.shared.touch();
    }

    /// Time of the last request that used the model.
    pub fn last_used(&self) -> Instant {
        self.shared.last_used()
    }

    /// Whether the model has given its device memory to others. The next request brings it back.
    pub fn is_swapped_out(&self) -> bool {
        self.shared.is_swapped_out()
    }

    /// Reason why the model cannot return to the device now, if it tried.
    pub fn return_failure(&self) -> Option<String> {
        self.shared.return_failure()
    }

    /// Queues a job of the server without waiting for it. A model that stopped ignores the job.
    pub fn post(&self, job: impl FnOnce(&mut Worker) + Send + 'static) {
        self.jobs.push_unlimited(SERVER, Box::new(job));
    }

    /// Queues a job of an owner and waits for its result. Fails at once if too many jobs already wait.
    pub async fn call<T: Send + 'static>(
        &self,
        owner: &str,
        job: impl FnOnce(&mut Worker) -> Result<T, ServeError> + Send + 'static,
    ) -> Result<T, ServeError> {
        let (reply, replied) = oneshot::channel();
        // The job's spans belong to the request's trace.
        let span = tracing::Span::current();
        self.push(
            owner,
            Box::new(move |worker| {
                // If the caller left meanwhile, the job does not run.
                if reply.is_closed() {
                    return;
                }
                let run = || {
                    worker
                        .check_open()
                        .and_then(|()| span.in_scope(|| job(worker)))
                };
                match catch_unwind(AssertUnwindSafe(run)) {
                    // If the caller leaves now, the result is dropped here, and a dropped `TurnStream` ends
                    // its session.
                    Ok(result) => drop(reply.send(result)),
                    Err(panic) => {
                        let error = "The request made the server fail; its log has the details";
                        let _ = reply.send(Err(ServeError::Internal(error.to_owned())));
                        std::panic::resume_unwind(panic);
                    }
                }
            }),
        )?;
        replied.await.map_err(|_| self.gone())?
    }

    /// Queues a job of the server itself and waits for its result.
    pub async fn call_as_server<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Worker) -> Result<T, ServeError> + Send + 'static,
    ) -> Result<T, ServeError> {
        self.call(SERVER, job).await
    }

    /// Opens a session for every request, all of them or none. Waits until there is room for them, at most
    /// as long as the limits allow.
    pub async fn open(
        &self,
        owner: &str,
        requests: Vec<CheckedRequest>,
        limits: &ServerLimits,
    ) -> Result<Vec<(SessionId, UnboundedReceiver<SessionEvent>)>, ServeError> {
        let (reply, replied) = oneshot::channel();
        let jobs = Arc::clone(&self.jobs);
        let abandon = move |id| {
            let leave = Box::new(move |worker: &mut Worker| worker.subscriber_left(id, false));
            jobs.push_unlimited(SERVER, leave);
        };
        let open = OpenRequest {
            owner: owner.to_owned(),
            requests,
            abandon: Arc::new(abandon),
            reply,
        };
        let for_worker = limits.clone();
        let span = tracing::Span::current();
        self.push(
            owner,
            Box::new(move |worker| {
                span.in_scope(|| match worker.check_open() {
                    Ok(()) => worker.open_or_wait(open, &for_worker),
                    Err(error) => drop(open.reply.send(Err(error))),
                });
            }),
        )?;
        match tokio::time::timeout(limits.queue_wait, replied).await {
            Ok(opened) => {
                let opened = opened.map_err(|_| self.gone())??;
                Ok(opened.into_iter().filter_map(OpenedSession::take).collect())
            }
            Err(_) => Err(ServeError::busy(format!(
                "No session became free within {} s; retry later",
                limits.queue_wait.as_secs_f64()
            ))),
        }
    }

    fn push(&self, owner: &str, job: EngineJob) -> Result<(), ServeError> {
        match self.jobs.push(owner, job) {
            true => Ok(()),
            false if self.is_alive() => Err(ServeError::busy(format!(
                "Too many requests wait for {}; retry later",
                self.name
            ))),
            false => Err(self.gone()),
        }
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
        ServeError::unavailable(match self.is_alive() {
            true => format!("Model {} is being unloaded; retry later", self.name),
            false => format!("The engine of model {} failed; retry later", self.name),
        })
    }

    /// Stops the engine thread and frees the model's memory. Waits until the thread has ended, but not
    /// longer than a moment: a thread that hangs in the device cannot be stopped. Returns whether it ended.
    pub fn stop(&self) -> bool {
        self.shared.stop();
        self.post(Worker::stop);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stops_at = Instant::now() + STOP_TIMEOUT;
        // Freeing memory may take long. Only a thread that is stuck in a pass or a job is given up.
        while thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            // A swap may take long, too, but makes progress.
            if !self.is_alive() || self.shared.heartbeat.is_swapping(STOP_TIMEOUT) {
                stops_at = Instant::now() + STOP_TIMEOUT;
            }
            if Instant::now() >= stops_at {
                tracing::error!(model = self.name, "the engine thread does not stop");
                return false;
            }
            thread::sleep(STOP_POLL);
        }
        thread.take().is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for LoadedModel {
    fn drop(&mut self) {
        self.jobs.close();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{path::Path, sync::Arc};

    use djinn_device::cpu::CpuBackend;
    use djinn_engine::{Engine, KvMemory, Request};
    use djinn_model::Model;
    use djinn_weights::MemorySettings;

    use super::{LoadedEngine, LoadedModel, ThreadSetup};
    use crate::{
        ErrorCode, LoadOptions, ServerLimits,
        device_pool::{DevicePool, Reservation},
        engine_thread::SessionEvent,
        fatal::FatalSignal,
        metrics::Metrics,
        registry::draw,
    };

    fn stories() -> Arc<LoadedModel> {
        let load = |_: &Reservation, progress: &mut dyn FnMut(djinn_engine::LoadProgress)| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/stories-7m");
            let model = Model::open(path.to_str().unwrap())?;
            let backend = CpuBackend {
                threads: Some(1),
                isa: None,
            };
            let memory = MemorySettings {
                budget: 1 << 30,
                host_budget: 1 << 28,
                ..MemorySettings::default()
            };
            let layout = LoadOptions {
                context: Some(64),
                sessions: Some(4),
                ..LoadOptions::default()
            };
            let blueprint = draw(&model, &backend, layout, memory, &KvMemory::default())?;
            let engine = Engine::load(model, &backend, blueprint, progress)?;
            Ok(LoadedEngine {
                engine,
                link_ceiling: 0.0,
            })
        };
        let setup = ThreadSetup {
            metrics: Metrics::new(),
            fatal: FatalSignal::new(),
            pool: DevicePool::new(1 << 30),
            jobs_max: 100,
            queue_wait: ServerLimits::default().queue_wait,
        };
        LoadedModel::start("stories".to_owned(), setup, load, |_| {}).unwrap()
    }

    #[tokio::test]
    async fn a_job_that_panics_fails_alone() {
        let model = stories();
        let request = Request {
            tokens: vec![1, 2, 3],
            max_tokens: 20,
            ..Request::default()
        };
        let limits = ServerLimits::default();
        let checked = model.facts.checker.check(request).unwrap();
        let mut opened = model.open("ada", vec![checked], &limits).await.unwrap();
        let (_, mut events) = opened.pop().unwrap();
        let failed = model
            .call("bert", |_| -> Result<(), _> { panic!("on purpose") })
            .await;
        assert_eq!(failed.unwrap_err().code(), ErrorCode::Internal);
        let mut tokens = 0;
        while let Some(event) = events.recv().await {
            tokens += usize::from(matches!(event, SessionEvent::Token { .. }));
        }
        assert_eq!(tokens, 20, "the session of another owner continues");
        assert!(model.is_alive() && model.stop());
    }
}
