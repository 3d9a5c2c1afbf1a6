//! Samples of memory in use, taken from the server during the runs.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use djinn_client::{Client, v1};
use djinn_report::MemorySample;
use tokio::task::JoinHandle;

use crate::error::EvalError;

/// Interval between two samples.
const INTERVAL: Duration = Duration::from_millis(50);
/// Largest number of samples in a result.
const MOST_SAMPLES: usize = 600;

/// Takes samples in the background until it is dropped.
pub struct MemorySampler {
    state: Arc<Mutex<SamplerState>>,
    task: JoinHandle<()>,
}

/// Samples, and the peak since it was last taken.
#[derive(Default)]
struct SamplerState {
    samples: Vec<MemorySample>,
    /// Largest device memory since the peak was last taken.
    peak_mb: f64,
    /// Device memory of the latest sample.
    now_mb: f64,
}

impl MemorySampler {
    /// Starts to take samples of a model.
    pub async fn start(client: &Client, model: &str) -> Result<Self, EvalError> {
        let mut watch = client.watch(INTERVAL).await?;
        let state = Arc::new(Mutex::new(SamplerState::default()));
        let (shared, model, begin) = (Arc::clone(&state), model.to_owned(), Instant::now());
        let first = sample(&watch.next().await?, &model, 0.0);
        (lock(&state).now_mb, lock(&state).peak_mb) = (first.used_mb, first.used_mb);
        let task = tokio::spawn(async move {
            while let Ok(status) = watch.next().await {
                let sample = sample(&status, &model, begin.elapsed().as_secs_f64());
                let mut state = lock(&shared);
                state.now_mb = sample.used_mb;
                state.peak_mb = state.peak_mb.max(sample.used_mb);
                state.samples.push(sample);
            }
        });
        Ok(MemorySampler { state, task })
    }

    /// Returns the peak of device memory since the last call, in MB.
    pub fn take_peak(&self) -> Option<f64> {
        let mut state = lock(&self.state);
        let peak = state.peak_mb;
        state.peak_mb = state.now_mb;
        (peak > 0.0).then_some(peak)
    }

    /// Stops, and returns the samples, reduced to a limited number.
    pub fn end(self) -> Vec<MemorySample> {
        let samples = std::mem::take(&mut lock(&self.state).samples);
        let step = samples.len().div_ceil(MOST_SAMPLES).max(1);
        samples.into_iter().step_by(step).collect()
    }
}

impl Drop for MemorySampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<SamplerState>) -> MutexGuard<'_, SamplerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sample(status: &v1::Status, model: &str, t_s: f64) -> MemorySample {
    let of = |one: &&v1::ModelStatus| one.model.as_ref().is_some_and(|m| m.name == model);
    let own = status.models.iter().find(of);
    let tier = |pages: Option<v1::TierPages>| {
        let pages = pages?;
        let mb = (pages.used * pages.page_bytes) as f64 / 1e6;
        (pages.total > 0).then_some(mb)
    };
    // Memory of other models on the server does not belong to the experiment.
    let others = status.models.iter().filter(|one| !of(one));
    let others = others.filter_map(|one| one.model.as_ref()?.memory);
    let others: u64 = others.map(|memory| memory.total_bytes).sum();
    MemorySample {
        t_s,
        used_mb: status.device_bytes.saturating_sub(others) as f64 / 1e6,
        kv_mb: own.and_then(|own| tier(own.device)),
        host_kv_mb: own.and_then(|own| tier(own.host)),
        disk_kv_mb: own.and_then(|own| tier(own.disk)),
        sessions: own.map(|own| own.sessions.values().sum()),
    }
}
