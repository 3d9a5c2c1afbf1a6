//! Faults: each begins, is held for a while, ends, and the server recovers.

use std::{str::FromStr, sync::Arc, time::Duration};

use djinn_client::Error;

use crate::{
    dice::Dice,
    error::ChaosError,
    script::sampling,
    server::OWNERS,
    shim::DiskFault,
    world::{MODEL, World},
};

/// Time in which the server must serve again after a fault is over.
const RECOVERY_LIMIT: Duration = Duration::from_secs(120);
/// Pause between two attempts to use the server.
const RETRY: Duration = Duration::from_millis(100);
/// Calls in a row that must succeed.
const SUCCESSES: usize = 3;

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A disk fails.
    Disk(DiskFault),
    /// The process is killed and started again.
    Kill,
    /// The process is asked to end while turns run, and started again.
    Terminate,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [FaultKind; 7] = [
        FaultKind::Disk(DiskFault::WeightsError),
        FaultKind::Kill,
        FaultKind::Disk(DiskFault::StateFull),
        FaultKind::Disk(DiskFault::WeightsStall),
        FaultKind::Terminate,
        FaultKind::Disk(DiskFault::SyncFailure),
        FaultKind::Disk(DiskFault::SpillFull),
    ];

    /// Whether the fault ends the process.
    pub fn ends_process(self) -> bool {
        matches!(self, FaultKind::Kill | FaultKind::Terminate)
    }

    /// Name in flags.
    pub fn slug(self) -> &'static str {
        match self {
            FaultKind::Disk(DiskFault::WeightsError) => "weights-error",
            FaultKind::Disk(DiskFault::WeightsStall) => "weights-stall",
            FaultKind::Disk(DiskFault::StateFull) => "state-full",
            FaultKind::Disk(DiskFault::SyncFailure) => "sync-failure",
            FaultKind::Disk(DiskFault::SpillFull) => "spill-full",
            FaultKind::Kill => "kill",
            FaultKind::Terminate => "terminate",
        }
    }

    /// Name in the table of results.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Disk(DiskFault::WeightsError) => "fault: weights unreadable",
            FaultKind::Disk(DiskFault::WeightsStall) => "fault: weights stall",
            FaultKind::Disk(DiskFault::StateFull) => "fault: state disk full",
            FaultKind::Disk(DiskFault::SyncFailure) => "fault: sync fails",
            FaultKind::Disk(DiskFault::SpillFull) => "fault: spill disk full",
            FaultKind::Kill => "fault: SIGKILL",
            FaultKind::Terminate => "fault: SIGTERM",
        }
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = FaultKind::ALL.into_iter().find(|kind| kind.slug() == text);
        let all = || FaultKind::ALL.map(FaultKind::slug).join(", ");
        found.ok_or_else(|| format!("'{text}' is not a fault; the faults are {}", all()))
    }
}

/// Seeded order of faults, in which every kind comes equally often.
#[derive(Debug)]
pub struct FaultDeck {
    dice: Dice,
    kinds: Vec<FaultKind>,
    left: Vec<FaultKind>,
}

impl FaultDeck {
    /// Creates a deck of these kinds.
    pub fn new(dice: Dice, kinds: &[FaultKind]) -> Self {
        FaultDeck {
            dice,
            kinds: kinds.to_vec(),
            left: Vec::new(),
        }
    }

    /// Draws the next fault, if the deck has any. `keeps_process` postpones faults that end the
    /// process.
    pub fn draw(&mut self, keeps_process: bool) -> Option<FaultKind> {
        let is_allowed = |kind: &FaultKind| !(keeps_process && kind.ends_process());
        if !self.left.iter().any(is_allowed) {
            let mut more = self.kinds.clone();
            self.dice.shuffle(&mut more);
            self.left.extend(more);
        }
        let at = self.left.iter().position(is_allowed)?;
        Some(self.left.remove(at))
    }
}

impl World {
    /// Runs one fault from its begin until the server has recovered.
    pub async fn run_fault(&self, kind: FaultKind, dice: &mut Dice) -> Result<(), ChaosError> {
        self.board.begin();
        self.findings.count(kind.name());
        let hold = Duration::from_millis(dice.between(200, 2000) as u64);
        let done = match kind {
            FaultKind::Disk(fault) => self.fail_disk(fault, hold, dice).await,
            FaultKind::Kill => self.restart_after_kill().await,
            FaultKind::Terminate => self.restart_after_drain().await,
        };
        let recovered = match done {
            Ok(()) => self.recover(kind).await,
            failed => failed,
        };
        self.board.end();
        recovered
    }

    async fn fail_disk(
        &self,
        fault: DiskFault,
        hold: Duration,
        dice: &mut Dice,
    ) -> Result<(), ChaosError> {
        let shim = self.server.launch().shim.as_ref();
        let shim = shim.expect("the server runs with the library of faults");
        let value = match fault {
            DiskFault::WeightsStall => dice.between(5, 60) as u32,
            _ => 1,
        };
        let before = shim.hits(fault)?;
        shim.set(fault, value)?;
        tokio::time::sleep(hold).await;
        shim.set(fault, 0)?;
        let hits = u64::from(shim.hits(fault)?.wrapping_sub(before));
        self.findings.add("calls that a disk fault hit", hits);
        Ok(())
    }

    async fn restart_after_kill(&self) -> Result<(), ChaosError> {
        let start = self.server.kill().await?;
        self.server.restart(start).await
    }

    async fn restart_after_drain(&self) -> Result<(), ChaosError> {
        let (start, status) = self.server.terminate().await?;
        if !status.success() {
            let text = format!("the server ended after SIGTERM with {status}");
            self.findings.broken(text);
        }
        self.server.restart(start).await
    }

    /// Waits until the server opens, runs and deletes kept sessions again.
    async fn recover(&self, kind: FaultKind) -> Result<(), ChaosError> {
        let start = tokio::time::Instant::now();
        let mut successes = 0;
        while successes < SUCCESSES {
            let tried = tokio::time::timeout(RECOVERY_LIMIT, self.try_server()).await;
            match tried.unwrap_or(Ok(false)) {
                Ok(true) => successes += 1,
                tried if start.elapsed() > RECOVERY_LIMIT => {
                    let (name, limit) = (kind.name(), RECOVERY_LIMIT.as_secs());
                    let error = tried
                        .err()
                        .map_or("a turn fails or hangs".to_owned(), |e| e.to_string());
                    self.findings.broken(format!(
                        "{name}: the server did not recover within {limit} s: {error}"
                    ));
                    // A restart lets the run continue.
                    self.restart_after_kill().await?;
                    return Ok(());
                }
                _ => {
                    successes = 0;
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        Ok(())
    }

    /// Opens, runs and deletes a kept session. Returns whether the turn ran to its end.
    async fn try_server(&self) -> Result<bool, Error> {
        let model = self.server.client(OWNERS[0]).await?.model(MODEL);
        let prompt = self.phrases[0].clone();
        let create = model.session().tokens(prompt).sampling(sampling(1)).keep();
        let events = create.max_tokens(1).open().await?;
        let session = events.session().clone();
        let turn = events.collect().await;
        session.delete().await?;
        Ok(turn?.tokens.len() == 1)
    }
}

/// Runs the faults of a round one after another.
pub async fn run_faults(
    world: Arc<World>,
    kinds: Vec<FaultKind>,
    mut dice: Dice,
) -> Result<(), ChaosError> {
    for kind in kinds {
        let pause = Duration::from_millis(dice.between(200, 2500) as u64);
        tokio::time::sleep(pause).await;
        world.run_fault(kind, &mut dice).await?;
    }
    Ok(())
}
