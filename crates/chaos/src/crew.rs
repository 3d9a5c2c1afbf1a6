//! All agents of a run: they act together, rest, and compare what the server keeps.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use djinn_client::Error;
use tokio::task::JoinSet;

use crate::{
    agent::Agent,
    dice::Dice,
    error::ChaosError,
    record::KeptRecord,
    server::{OWNERS, OwnerKey, ProcessUsage},
    usage::{UsageSample, UsageSeries},
    world::{CallProblem, World},
};

/// Time in which connections that clients left are closed.
const REST: Duration = Duration::from_secs(1);

/// All agents of a run.
pub struct Crew {
    world: Arc<World>,
    agents: Vec<(OwnerKey, Agent)>,
    /// Memory and descriptors of the server whenever the agents rested.
    pub usage: UsageSeries,
}

impl Crew {
    /// Creates some agents of each owner.
    pub fn new(world: &Arc<World>, seed: u64, count: usize) -> Self {
        let owners = OWNERS.into_iter().flat_map(|owner| vec![owner; count]);
        let agents = owners.enumerate().map(|(part, owner)| {
            let dice = Dice::new(seed, 100 + part as u64);
            (owner, Agent::new(world, owner, dice))
        });
        Crew {
            agents: agents.collect(),
            usage: UsageSeries::default(),
            world: Arc::clone(world),
        }
    }

    /// Lets all agents act at the same time.
    pub async fn act(&mut self, until: Instant) {
        let names = self.agents.iter().map(|(owner, agent)| {
            let name = agent.sessions.first().map(|kept| kept.name.clone());
            (*owner, name)
        });
        let names: Vec<(OwnerKey, Option<String>)> = names.collect();
        let mut tasks = JoinSet::new();
        for (place, (owner, mut agent)) in self.agents.drain(..).enumerate() {
            let mut others = names
                .iter()
                .filter(|(of, name)| *of != owner && name.is_some());
            let foreign = others.next().and_then(|(_, name)| name.clone());
            tasks.spawn(async move {
                agent.act(until, foreign).await;
                (place, owner, agent)
            });
        }
        let mut agents = tasks.join_all().await;
        agents.sort_by_key(|(place, ..)| *place);
        let agents = agents.into_iter().map(|(_, owner, agent)| (owner, agent));
        self.agents.extend(agents);
    }

    /// Completes all turns, compares all sessions, deletes unknown ones, and samples the process.
    pub async fn rest(&mut self) -> Result<ProcessUsage, ChaosError> {
        for (_, agent) in &mut self.agents {
            for number in (0..agent.sessions.len()).rev() {
                if let Err(CallProblem::Broken(text)) = agent.settle(number).await {
                    self.world.findings.broken(text);
                }
            }
            agent.check().await?;
        }
        for owner in OWNERS {
            self.delete_unknown(owner).await?;
        }
        tokio::time::sleep(REST).await;
        let sample = UsageSample {
            start: self.world.server.place().await.start,
            usage: self.world.server.usage().await,
        };
        if let Err(text) = self.usage.push(sample) {
            self.world.findings.broken(text);
        }
        Ok(sample.usage)
    }

    /// Deletes sessions whose opening or deleting the server did not acknowledge.
    async fn delete_unknown(&self, owner: OwnerKey) -> Result<(), Error> {
        let client = self.world.server.client(owner).await?;
        for session in client.sessions(None).await? {
            let mut kept = self.agents.iter().flat_map(|(_, agent)| &agent.sessions);
            if !kept.any(|kept| kept.name == session.session) {
                client.session(session.session).delete().await?;
                self.world.findings.count("sessions without an answer");
            }
        }
        Ok(())
    }

    /// Takes the transcripts of all sessions that were complete when they were deleted.
    pub fn take_ended(&mut self) -> Vec<KeptRecord> {
        let agents = self.agents.iter_mut();
        let ended = agents.flat_map(|(_, agent)| std::mem::take(&mut agent.ended));
        ended.collect()
    }

    /// Takes the transcripts of all sessions.
    pub fn take_records(&mut self) -> Vec<KeptRecord> {
        let mut records = self.take_ended();
        for (_, agent) in &mut self.agents {
            records.append(&mut agent.sessions);
        }
        records
    }
}
