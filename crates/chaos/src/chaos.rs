//! The chaos run: rounds of load and faults, and the checks between them.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{
    board::FaultMark,
    crew::Crew,
    dice::Dice,
    error::ChaosError,
    faults::{FaultDeck, FaultKind, run_faults},
    oneshot::ONESHOTS,
    replay::replay_all,
    server::{Launch, OWNERS, OwnerKey, RestartingServer},
    shim::FaultShim,
    usage::UsageSeries,
    world::{CallProblem, MODEL, World},
};

/// Longest time that a small request of any owner may wait while the server is up and no fault
/// is active.
pub const WAIT_LIMIT: Duration = Duration::from_secs(20);
/// Time in which agents begin new requests in a round.
const ROUND: Duration = Duration::from_secs(8);
/// Agents of each owner.
const AGENTS: usize = 2;
/// Faults in one round.
const FAULTS: usize = 2;
/// Rounds of a cycle. Faults end the process only in the first half, so that the memory of one
/// process can be compared over several rounds.
const CYCLE: usize = 6;
/// Pause between two small requests of one owner.
const PROBE_PAUSE: Duration = Duration::from_millis(500);

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct ChaosSettings {
    /// Path of the `djinn` program.
    pub program: PathBuf,
    /// Folder of the model.
    pub model: PathBuf,
    /// Folder for everything that the run writes.
    pub folder: PathBuf,
    /// Time after which no further round begins.
    pub time: Duration,
    /// Seed of all choices.
    pub seed: u64,
    /// Kinds of faults to run.
    pub faults: Vec<FaultKind>,
}

/// Results of a run.
#[derive(Debug)]
pub struct ChaosReport {
    /// Counts by kind.
    pub counts: std::collections::BTreeMap<&'static str, u64>,
    /// Broken promises.
    pub violations: Vec<String>,
    /// Longest wait of a small request.
    pub longest_wait: Duration,
    /// Memory and descriptors at the ends of rounds.
    pub usage: UsageSeries,
    /// Number of rounds.
    pub rounds: usize,
}

/// Runs load and faults for a time, then checks everything that the server acknowledged.
pub async fn run(settings: &ChaosSettings) -> Result<ChaosReport, ChaosError> {
    let home = settings.folder.join("server");
    std::fs::create_dir_all(&home)?;
    let (state, spill) = (Launch::state(&home), Launch::spill(&home));
    let launch = Launch {
        shim: Some(FaultShim::build(&home, &state, &spill)?),
        ..launch(settings, home, true)
    };
    let world = Arc::new(World::new(RestartingServer::start(launch).await?).await?);
    let mut run = ChaosRun::new(settings, world);
    let start = Instant::now();
    while start.elapsed() < settings.time && run.world.findings.violations().is_empty() {
        run.round().await?;
    }
    run.restart_and_check().await?;
    run.compare_with_quiet_run(settings).await?;
    let findings = &run.world.findings;
    Ok(ChaosReport {
        counts: findings.counts(),
        violations: findings.violations(),
        longest_wait: findings.longest_wait(),
        usage: run.crew.usage,
        rounds: run.rounds,
    })
}

/// Way in which servers of a run are started.
pub fn launch(settings: &ChaosSettings, home: PathBuf, is_tight: bool) -> Launch {
    Launch {
        program: settings.program.clone(),
        model: settings.model.clone(),
        home,
        is_tight,
        shim: None,
    }
}

struct ChaosRun {
    world: Arc<World>,
    crew: Crew,
    deck: FaultDeck,
    dice: Dice,
    rounds: usize,
}

impl ChaosRun {
    fn new(settings: &ChaosSettings, world: Arc<World>) -> Self {
        let seed = settings.seed;
        ChaosRun {
            crew: Crew::new(&world, seed, AGENTS),
            deck: FaultDeck::new(Dice::new(seed, 1), &settings.faults),
            dice: Dice::new(seed, 2),
            rounds: 0,
            world,
        }
    }

    /// Runs load with faults, waits until everything is complete, and checks it.
    async fn round(&mut self) -> Result<(), ChaosError> {
        let keeps_process = self.rounds % CYCLE >= CYCLE / 2;
        let kinds = (0..FAULTS).filter_map(|_| self.deck.draw(keeps_process));
        let kinds: Vec<FaultKind> = kinds.collect();
        let dice = Dice::new(self.dice.number(), 3);
        let faults = tokio::spawn(run_faults(Arc::clone(&self.world), kinds, dice));
        let until = Instant::now() + ROUND;
        let probes = self.start_probes(until);
        self.crew.act(until).await;
        probes.join_all().await;
        faults.await.expect("the faults do not panic")?;
        self.rounds += 1;
        self.crew.rest().await?;
        let found = self.world.findings.get("requests");
        println!("round {}: {found} requests so far", self.rounds);
        Ok(())
    }

    /// Starts a task for each owner that measures how long small requests wait.
    fn start_probes(&self, until: Instant) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for owner in OWNERS {
            let world = Arc::clone(&self.world);
            tasks.spawn(async move {
                while Instant::now() < until {
                    let (since, start) = (world.board.mark(), Instant::now());
                    let answer = probe(&world, owner).await;
                    judge_probe(&world, owner, since, start.elapsed(), answer);
                    tokio::time::sleep(PROBE_PAUSE).await;
                }
            });
        }
        tasks
    }

    /// Kills the server a last time and checks that all sessions are there.
    async fn restart_and_check(&mut self) -> Result<(), ChaosError> {
        let world = Arc::clone(&self.world);
        world.run_fault(FaultKind::Kill, &mut self.dice).await?;
        self.crew.rest().await.map(drop)
    }

    /// Runs the inputs of all sessions on a quiet server and compares the tokens.
    async fn compare_with_quiet_run(&mut self, settings: &ChaosSettings) -> Result<(), ChaosError> {
        let (_, status) = self.world.server.terminate().await?;
        let findings = &self.world.findings;
        if !status.success() {
            findings.broken(format!("the server ended after SIGTERM with {status}"));
        }
        let launch = launch(settings, settings.folder.join("quiet"), false);
        let quiet = Arc::new(World::new(RestartingServer::start(launch).await?).await?);
        let records = self.crew.take_records();
        findings.add("sessions compared", records.len() as u64);
        for difference in replay_all(Arc::clone(&quiet), records).await {
            findings.broken(difference);
        }
        let answers = self.world.oneshots.answers();
        for number in (0..ONESHOTS).filter(|number| answers.contains_key(number)) {
            match quiet.answer(OWNERS[0], number).await {
                Ok(answer) if answers.get(&number) == Some(&answer) => {}
                other => findings.broken(format!(
                    "request {number} without a session gives another answer on a quiet server: {other:?}"
                )),
            }
        }
        Ok(())
    }
}

/// Small request of an owner.
async fn probe(world: &World, owner: OwnerKey) -> Result<(), CallProblem> {
    let model = world.client(owner).await?.model(MODEL);
    let create = model
        .session()
        .tokens(world.phrases[5].clone())
        .max_tokens(1);
    let turn = world.patiently(async { create.open().await?.collect().await });
    crate::oneshot::check_failure(&turn.await?)
}

fn judge_probe(
    world: &World,
    owner: OwnerKey,
    since: FaultMark,
    time: Duration,
    answer: Result<(), CallProblem>,
) {
    let name = owner.name;
    match answer {
        Err(problem) => world.judge(&format!("small request of {name}"), since, problem),
        Ok(()) if world.board.overlaps(since) => {}
        Ok(()) => {
            world.findings.waited(time);
            if time > WAIT_LIMIT {
                world.findings.broken(format!(
                    "a small request of {name} waited {:.1} s without a fault",
                    time.as_secs_f64()
                ));
            }
        }
    }
}
