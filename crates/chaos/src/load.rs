//! The load run: hours of mixed requests without faults except planned restarts.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use djinn_types::Size;

use crate::{
    crew::Crew,
    dice::Dice,
    error::ChaosError,
    server::{Launch, OWNERS, ProcessUsage, RestartingServer},
    world::World,
};

/// Time in which agents act between two samples.
const ROUND: Duration = Duration::from_secs(28);
/// Rounds between two planned restarts.
const RESTART_ROUNDS: usize = 16;
/// Rounds between two pushes of a model.
const PUSH_ROUNDS: usize = 2;
/// Agents of each owner.
const AGENTS: usize = 1;
/// Pause between two calls on the inside of the model.
const WHITE_BOX_PAUSE: Duration = Duration::from_millis(700);

/// Settings of a load run.
#[derive(Clone, Debug)]
pub struct LoadSettings {
    /// Path of the `djinn` program.
    pub program: PathBuf,
    /// Folder of the model.
    pub model: PathBuf,
    /// Folder of a small model to push.
    pub pushed: PathBuf,
    /// Folder for everything that the run writes.
    pub folder: PathBuf,
    /// Time after which no further round begins.
    pub time: Duration,
    /// Seed of all choices.
    pub seed: u64,
}

/// Counts at the end of a round.
#[derive(Clone, Copy, Debug)]
struct LoadSample {
    time: Duration,
    start: u64,
    requests: u64,
    tokens: u64,
    errors: u64,
    usage: ProcessUsage,
}

/// Results of a load run.
#[derive(Debug)]
pub struct LoadReport {
    samples: Vec<LoadSample>,
    /// Broken promises, and errors that were not provoked.
    pub violations: Vec<String>,
}

impl LoadReport {
    /// Markdown table with a line for each sample.
    pub fn to_markdown(&self) -> String {
        let mut text = "| time (s) | start | requests | tokens | errors | RSS | descriptors |\n\
                        |---:|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
        for sample in &self.samples {
            text += &format!("{}\n", sample.row());
        }
        text
    }
}

impl LoadSample {
    /// Row of the table of samples.
    fn row(&self) -> String {
        format!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            self.time.as_secs(),
            self.start,
            self.requests,
            self.tokens,
            self.errors,
            Size(self.usage.rss),
            self.usage.descriptors
        )
    }
}

/// Runs mixed requests for a time. Every error counts, because no fault is injected.
pub async fn load(settings: &LoadSettings) -> Result<LoadReport, ChaosError> {
    let launch = Launch {
        program: settings.program.clone(),
        model: settings.model.clone(),
        home: settings.folder.join("server"),
        is_tight: true,
        shim: None,
    };
    let world = Arc::new(World::new(RestartingServer::start(launch).await?).await?);
    let mut crew = Crew::new(&world, settings.seed, AGENTS);
    let (start, mut samples) = (Instant::now(), Vec::new());
    while start.elapsed() < settings.time && world.findings.violations().is_empty() {
        if !samples.is_empty() && samples.len().is_multiple_of(RESTART_ROUNDS) {
            restart(&world).await?;
        }
        if samples.len().is_multiple_of(PUSH_ROUNDS) {
            let since = world.board.mark();
            if let Err(problem) = world.push_and_run(&settings.pushed).await {
                world.judge("push", since, problem);
            }
        }
        let until = Instant::now() + ROUND;
        let dice = Dice::new(settings.seed, samples.len() as u64);
        let inside = tokio::spawn(white_box(Arc::clone(&world), until, dice));
        crew.act(until).await;
        inside.await.expect("the calls do not panic");
        let usage = crew.rest().await?;
        crew.take_ended();
        let sample = sample(&world, start.elapsed(), usage).await;
        eprintln!("{}", sample.row());
        samples.push(sample);
    }
    Ok(LoadReport {
        samples,
        violations: world.findings.violations(),
    })
}

/// Calls the inside of the model until the time is over.
async fn white_box(world: Arc<World>, until: Instant, mut dice: Dice) {
    while Instant::now() < until {
        let owner = *dice.pick(&OWNERS);
        let since = world.board.mark();
        let number = dice.below(1000);
        if let Err(problem) = world.branch_and_compare(owner, number).await {
            world.judge("branches", since, problem);
        }
        tokio::time::sleep(WHITE_BOX_PAUSE).await;
    }
}

/// Restarts the server while no request runs.
async fn restart(world: &World) -> Result<(), ChaosError> {
    let (start, status) = world.server.terminate().await?;
    if !status.success() {
        let text = format!("the server ended after SIGTERM with {status}");
        world.findings.broken(text);
    }
    world.server.restart(start).await
}

async fn sample(world: &World, time: Duration, usage: ProcessUsage) -> LoadSample {
    LoadSample {
        time,
        start: world.server.place().await.start,
        requests: world.findings.get("requests"),
        tokens: world.findings.get("tokens"),
        errors: world.findings.violations().len() as u64,
        usage,
    }
}
