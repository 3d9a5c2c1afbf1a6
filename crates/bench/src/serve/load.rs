//! Many clients that stream at the same time.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use djinn_report::percentile;
use serde_json::{Value, json};

use super::{
    client::CompletionStream,
    options::ServeOptions,
    process::{CpuTime, ServedProcess},
};
use crate::BenchError;
use djinn_types::text::{seconds, table};

/// Time in which buffers grow to their size, before memory is counted.
const WARM: Duration = Duration::from_secs(10);

/// Result of the load.
pub struct LoadResult {
    clients: usize,
    seconds: f64,
    requests: usize,
    tokens: usize,
    /// Number of failed requests.
    pub errors: usize,
    first_error: Option<String>,
    /// Seconds from each request to its first token.
    first: Vec<f64>,
    /// Seconds from each token to the next.
    next: Vec<f64>,
    /// Resident memory of the server in bytes, after warming up and at the end.
    rss: (u64, u64),
    cpu: CpuTime,
}

/// Counters that all client threads add to.
#[derive(Default)]
struct LoadCounters {
    requests: AtomicUsize,
    tokens: AtomicUsize,
    errors: AtomicUsize,
    first_error: Mutex<Option<String>>,
    times: Mutex<(Vec<f64>, Vec<f64>)>,
}

/// Runs clients that each request one completion after another.
pub fn run(args: &ServeOptions, server: &ServedProcess) -> Result<LoadResult, BenchError> {
    let (sums, stop) = (LoadCounters::default(), AtomicBool::new(false));
    let length = Duration::from_secs(args.seconds);
    let before = server.cpu();
    let started = Instant::now();
    let mut warm_rss = 0;
    thread::scope(|scope| {
        for number in 0..args.clients {
            let (sums, stop) = (&sums, &stop);
            let one = move || request_until_stopped(args, server.port, number, sums, stop);
            let spawned = thread::Builder::new()
                .stack_size(256 << 10)
                .spawn_scoped(scope, one);
            if let Err(error) = spawned {
                sums.fail(&BenchError::from(error));
            }
        }
        let warm = WARM.min(length / 2);
        thread::sleep(warm);
        warm_rss = server.rss();
        thread::sleep(length - warm);
        stop.store(true, Ordering::Relaxed);
    });
    let after = server.cpu();
    let (first, next) = sums
        .times
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let first_error = sums
        .first_error
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    Ok(LoadResult {
        clients: args.clients,
        seconds: started.elapsed().as_secs_f64(),
        requests: sums.requests.into_inner(),
        tokens: sums.tokens.into_inner(),
        errors: sums.errors.into_inner(),
        first_error,
        first,
        next,
        rss: (warm_rss, server.rss()),
        cpu: CpuTime {
            engine: after.engine - before.engine,
            outside: after.outside - before.outside,
        },
    })
}

impl LoadCounters {
    fn fail(&self, failure: &BenchError) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let mut first = self
            .first_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| failure.to_string());
    }
}

fn request_until_stopped(
    args: &ServeOptions,
    port: u16,
    number: usize,
    sums: &LoadCounters,
    stop: &AtomicBool,
) {
    let (mut first, mut next) = (Vec::new(), Vec::new());
    let mut turn = 0;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        if let Err(failure) = request(
            args,
            port,
            number * 7919 + turn,
            sums,
            (&mut first, &mut next),
        ) {
            sums.fail(&failure);
            thread::sleep(Duration::from_millis(100));
        }
    }
    let mut all = sums.times.lock().unwrap_or_else(PoisonError::into_inner);
    all.0.append(&mut first);
    all.1.append(&mut next);
}

fn request(
    args: &ServeOptions,
    port: u16,
    seed: usize,
    sums: &LoadCounters,
    (first, next): (&mut Vec<f64>, &mut Vec<f64>),
) -> Result<(), BenchError> {
    let prompt: Vec<usize> = (0..args.context / 4)
        .map(|i| 1 + (i * 31 + seed * 17) % 900)
        .collect();
    let body = json!({
        "prompt": prompt, "max_tokens": args.context / 2, "temperature": 1, "seed": seed, "stream": true,
        "ignore_eos": true, "return_token_ids": true,
    });
    let mut last = Instant::now();
    let mut stream = CompletionStream::open(port, &body)?;
    let mut count = 0;
    while stream.next()? {
        let now = Instant::now();
        let time = (now - last).as_secs_f64();
        match count {
            0 => first.push(time),
            _ => next.push(time),
        }
        (last, count) = (now, count + 1);
    }
    sums.requests.fetch_add(1, Ordering::Relaxed);
    sums.tokens.fetch_add(count, Ordering::Relaxed);
    Ok(())
}

impl LoadResult {
    /// Report as JSON.
    pub fn report(&self) -> Value {
        let CpuTime { engine, outside } = self.cpu;
        json!({
            "clients": self.clients,
            "seconds": self.seconds,
            "requests": self.requests,
            "tokens": self.tokens,
            "tokens_per_s": self.tokens as f64 / self.seconds,
            "errors": self.errors,
            "first_error": self.first_error,
            "first_token_p50_s": percentile(&self.first, 50),
            "first_token_p99_s": percentile(&self.first, 99),
            "next_token_p50_s": percentile(&self.next, 50),
            "next_token_p99_s": percentile(&self.next, 99),
            "rss_warm_bytes": self.rss.0,
            "rss_end_bytes": self.rss.1,
            "cpu_engine_s": engine,
            "cpu_outside_s": outside,
            "outside_share": outside / (engine + outside).max(1e-9),
        })
    }
}

/// Report as text.
pub fn text(load: &Value) -> String {
    let number = |name: &str| load[name].as_f64().unwrap_or(0.0);
    let time = |name: &str| load[name].as_f64().map_or("-".to_owned(), seconds);
    let mb = |name: &str| format!("{:.1} MB", number(name) / 1e6);
    let both = |name: &str| {
        let (p50, p99) = (format!("{name}_p50_s"), format!("{name}_p99_s"));
        format!("{} · {}", time(&p50), time(&p99))
    };
    let rows = [
        (
            "clients",
            format!("{} for {:.0} s", load["clients"], number("seconds")),
        ),
        (
            "requests · errors",
            format!("{} · {}", load["requests"], load["errors"]),
        ),
        ("tokens/s", format!("{:.0}", number("tokens_per_s"))),
        ("first token, p50 · p99", both("first_token")),
        ("next token, p50 · p99", both("next_token")),
        (
            "resident memory, warm · at the end",
            format!("{} · {}", mb("rss_warm_bytes"), mb("rss_end_bytes")),
        ),
        (
            "CPU time, engine threads",
            format!("{:.1} s", number("cpu_engine_s")),
        ),
        (
            "CPU time, other threads",
            format!(
                "{:.1} s, {:.1} %",
                number("cpu_outside_s"),
                number("outside_share") * 100.0
            ),
        ),
    ];
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(what, value)| vec![what.to_owned(), value])
        .collect();
    let mut text = table(&["load", ""], &rows);
    if let Some(error) = load["first_error"].as_str() {
        text += &format!("first error: {error}\n");
    }
    text
}
