//! Memory over time, as the server tells it while runs go on.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use djinn_client::{Client, v1};
use djinn_report::MemorySample;
use tokio::task::JoinHandle;

use crate::EvalError;

/// How often.
const EVERY: Duration = Duration::from_millis(50);
/// Samples that are written down at most.
const KEPT: usize = 600;

/// Asks again and again, until it is dropped.
pub struct Sampler {
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    samples: Vec<MemorySample>,
    /// The most since it was last asked, and what it is now.
    peak_mb: f64,
    now_mb: f64,
}

impl Sampler {
    /// Begins.
    pub async fn start(client: &Client, model: &str) -> Result<Self, EvalError> {
        let mut watch = client.watch(EVERY).await?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (shared, model, begin) = (Arc::clone(&seen), model.to_owned(), Instant::now());
        let first = sample(&watch.next().await?, &model, 0.0);
        (lock(&seen).now_mb, lock(&seen).peak_mb) = (first.used_mb, first.used_mb);
        let task = tokio::spawn(async move {
            while let Ok(status) = watch.next().await {
                let sample = sample(&status, &model, begin.elapsed().as_secs_f64());
                let mut seen = lock(&shared);
                seen.now_mb = sample.used_mb;
                seen.peak_mb = seen.peak_mb.max(sample.used_mb);
                seen.samples.push(sample);
            }
        });
        Ok(Sampler { seen, task })
    }

    /// The most memory of the device since this was last asked, in MB.
    pub fn take_peak(&self) -> Option<f64> {
        let mut seen = lock(&self.seen);
        let peak = seen.peak_mb;
        seen.peak_mb = seen.now_mb;
        (peak > 0.0).then_some(peak)
    }

    /// Ends, and gives what was seen, thinned out where it is a lot.
    pub fn end(self) -> Vec<MemorySample> {
        let samples = std::mem::take(&mut lock(&self.seen).samples);
        let step = samples.len().div_ceil(KEPT).max(1);
        samples.into_iter().step_by(step).collect()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sample(status: &v1::Status, model: &str, t_s: f64) -> MemorySample {
    let of = |told: &&v1::ModelStatus| told.model.as_ref().is_some_and(|m| m.name == model);
    let told = status.models.iter().find(of);
    let tier = |pages: Option<v1::TierPages>| {
        let pages = pages?;
        let mb = (pages.used * pages.page_bytes) as f64 / 1e6;
        (pages.total > 0).then_some(mb)
    };
    // What else the server has loaded is not of this experiment.
    let others = status.models.iter().filter(|told| !of(told));
    let others = others.filter_map(|told| told.model.as_ref()?.memory);
    let others: u64 = others.map(|memory| memory.total_bytes).sum();
    MemorySample {
        t_s,
        used_mb: status.device_bytes.saturating_sub(others) as f64 / 1e6,
        kv_mb: told.and_then(|told| tier(told.device)),
        host_kv_mb: told.and_then(|told| tier(told.host)),
        disk_kv_mb: told.and_then(|told| tier(told.disk)),
        sessions: told.map(|told| told.sessions.values().sum()),
    }
}
