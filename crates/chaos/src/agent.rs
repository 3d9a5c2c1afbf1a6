//! A client that keeps several sessions and does something seeded with them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use djinn_client::Error;
use serde_json::json;

use crate::{
    dice::Dice,
    http,
    oneshot::ONESHOTS,
    record::KeptRecord,
    refused::REFUSED,
    script::{OpenStep, ScriptStep, TurnStep, sampling},
    server::{CONTEXT, OwnerKey},
    world::{CallProblem, MODEL, World},
};

/// Sessions that an agent keeps.
const SESSIONS: usize = 3;
/// Pause after a failed call.
const BACKOFF: Duration = Duration::from_millis(50);
/// Tokens beyond which a session is deleted, so that its last turn fits into the context.
const TOKENS_MAX: usize = CONTEXT / 2;

/// A client that keeps several sessions.
pub struct Agent {
    world: Arc<World>,
    owner: OwnerKey,
    dice: Dice,
    /// Sessions that the server must keep.
    pub sessions: Vec<KeptRecord>,
    /// Sessions that were complete when they were deleted.
    pub ended: Vec<KeptRecord>,
}

impl Agent {
    /// Creates an agent without sessions.
    pub fn new(world: &Arc<World>, owner: OwnerKey, dice: Dice) -> Self {
        Agent {
            world: Arc::clone(world),
            owner,
            dice,
            sessions: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Acts until the time is over. `foreign` is a session of another owner.
    pub async fn act(&mut self, until: Instant, foreign: Option<String>) {
        while Instant::now() < until {
            let since = self.world.board.mark();
            let (what, done) = self.act_once(foreign.as_deref()).await;
            if let Err(problem) = done {
                let what = format!("{} {what}", self.owner.name);
                self.world.judge(&what, since, problem);
                tokio::time::sleep(BACKOFF).await;
            }
        }
    }

    async fn act_once(&mut self, foreign: Option<&str>) -> (&'static str, Result<(), CallProblem>) {
        if self.sessions.len() < SESSIONS {
            return ("open", self.open().await);
        }
        let number = self.dice.below(SESSIONS);
        match self.dice.below(20) {
            0..9 => ("turn", self.turn(number).await),
            9 => ("fork", self.fork(number).await),
            10 => ("save and load", self.reload(number).await),
            11 | 12 => ("wait", self.wait(number).await),
            13 => ("leave a stream over HTTP", self.leave_http().await),
            14 | 15 => {
                let number = self.dice.below(REFUSED);
                let refused = self.world.refused(self.owner, number, foreign);
                ("a request to refuse", refused.await)
            }
            16 => ("cancel", self.cancel().await),
            _ => {
                let number = self.dice.below(ONESHOTS);
                let answer = self.world.oneshot(self.owner, number);
                ("a request without a session", answer.await)
            }
        }
    }

    fn phrase(&mut self) -> Vec<u32> {
        self.dice.pick(&self.world.phrases).clone()
    }

    /// Number of tokens after which the client vanishes, if it does.
    fn patience(&mut self) -> Option<usize> {
        self.dice.one_in(3).then(|| self.dice.between(0, 6))
    }

    async fn open(&mut self) -> Result<(), CallProblem> {
        let is_debugged = self.dice.one_in(3);
        let step = OpenStep {
            prompt: self.phrase(),
            max_tokens: self.dice.between(4, 24),
            seed: self.dice.number() >> 16,
            is_edited: self.dice.one_in(4),
            breakpoints: match is_debugged {
                true => vec![
                    "blocks.1.hook_resid_post,step=1".to_owned(),
                    "blocks.3.hook_mlp_out,step=3".to_owned(),
                ],
                false => Vec::new(),
            },
        };
        let limit = self.patience();
        let world = Arc::clone(&self.world);
        let model = world.client(self.owner).await?.model(MODEL);
        let events = world.patiently(step.request(&model).open()).await?;
        let name = events.session().name().to_owned();
        let mut kept = KeptRecord::opened(self.owner, &name, step);
        world.findings.count("turns");
        let read = world.read(events, &mut kept, limit).await;
        self.sessions.push(kept);
        self.read_over(self.sessions.len() - 1, read.map(drop))
    }

    /// Gives up a session about which the server broke a promise.
    fn read_over(
        &mut self,
        number: usize,
        read: Result<(), CallProblem>,
    ) -> Result<(), CallProblem> {
        if matches!(read, Err(CallProblem::Broken(_))) {
            self.sessions.remove(number);
        }
        read
    }

    /// Completes the current turn of a session.
    pub async fn settle(&mut self, number: usize) -> Result<(), CallProblem> {
        let settled = self.world.settle(&mut self.sessions[number]).await;
        self.read_over(number, settled.map_err(CallProblem::Broken))
    }

    async fn turn(&mut self, number: usize) -> Result<(), CallProblem> {
        self.settle(number).await?;
        if self.sessions[number].tokens.len() > TOKENS_MAX {
            return self.retire(number).await;
        }
        let step = TurnStep {
            tokens: self.phrase(),
            max_tokens: self.dice.between(2, 24),
            is_edited: self.dice.one_in(4),
        };
        let limit = self.patience();
        let world = Arc::clone(&self.world);
        let kept = &mut self.sessions[number];
        kept.pending = Some(step.clone());
        let session = world.client(self.owner).await?.session(&kept.name);
        let events = world.patiently(session.generate(step.request())).await?;
        kept.turn_accepted();
        world.findings.count("turns");
        let read = world.read(events, kept, limit).await;
        self.read_over(number, read.map(drop))
    }

    /// Deletes a complete session.
    async fn retire(&mut self, number: usize) -> Result<(), CallProblem> {
        let session = self.session(number).await?;
        self.world.patiently(session.delete()).await?;
        let kept = self.sessions.remove(number);
        self.ended.push(kept);
        Ok(())
    }

    async fn session(&self, number: usize) -> Result<djinn_client::SessionHandle, CallProblem> {
        let client = self.world.client(self.owner).await?;
        Ok(client.session(&self.sessions[number].name))
    }

    /// Continues in a fork; the original is deleted.
    async fn fork(&mut self, number: usize) -> Result<(), CallProblem> {
        self.settle(number).await?;
        let (session, seed) = (self.session(number).await?, self.dice.number() >> 16);
        let fork = self.world.patiently(session.fork(Some(sampling(seed))));
        let name = fork.await?.name().to_owned();
        self.world.findings.count("forks");
        let mut fork = self.sessions[number].clone();
        fork.name = name;
        fork.steps.push(ScriptStep::Fork(seed));
        let original = std::mem::replace(&mut self.sessions[number], fork);
        self.ended.push(original);
        self.world.patiently(session.delete()).await
    }

    /// Continues in a copy that was saved and loaded.
    async fn reload(&mut self, number: usize) -> Result<(), CallProblem> {
        self.settle(number).await?;
        let session = self.session(number).await?;
        let model = self.world.client(self.owner).await?.model(MODEL);
        let saved = self.world.patiently(session.save()).await?;
        let loaded = self.world.patiently(model.load(saved)).await?;
        self.world.findings.count("saves and loads");
        let kept = &mut self.sessions[number];
        loaded.name().clone_into(&mut kept.name);
        kept.steps.push(ScriptStep::Reload);
        self.world.patiently(session.delete()).await
    }

    /// Announces an absence, so that KV pages leave the device.
    async fn wait(&mut self, number: usize) -> Result<(), CallProblem> {
        self.settle(number).await?;
        let session = self.session(number).await?;
        self.world.patiently(session.waiting(None)).await?;
        self.world.findings.count("waits");
        Ok(())
    }

    /// Opens a stream over HTTP and vanishes.
    async fn leave_http(&mut self) -> Result<(), CallProblem> {
        let prompt = self.phrase();
        let body = json!({
            "model": MODEL, "prompt": prompt, "max_tokens": 40, "stream": true, "ignore_eos": true,
        });
        let bytes = self.dice.between(1, 600);
        self.world.findings.count("requests");
        let address = self.world.server.place().await.address;
        let body = body.to_string().into_bytes();
        let path = "/v1/completions";
        let left = http::post_and_leave(&address, self.owner.key, path, &body, bytes).await;
        self.world.findings.count("streams left by the client");
        left.map_err(|error| CallProblem::Failed(error.to_string()))
    }

    /// Sends a request and cancels it before its first event.
    async fn cancel(&mut self) -> Result<(), CallProblem> {
        let prompt = self.phrase();
        let model = self.world.client(self.owner).await?.model(MODEL);
        let create = model.session().tokens(prompt).max_tokens(60).ignore_eos();
        let opened = create.open();
        let soon = Duration::from_micros(self.dice.between(0, 20_000) as u64);
        self.world.findings.count("requests");
        match tokio::time::timeout(soon, opened).await {
            Ok(Err(error)) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Compares all sessions with the server's. Call it without faults.
    pub async fn check(&mut self) -> Result<(), Error> {
        let client = self.world.server.client(self.owner).await?;
        let listed = client.sessions(None).await?;
        for kept in &mut self.sessions {
            let is_listed = listed.iter().any(|session| session.session == kept.name);
            if !is_listed {
                let text = format!("{}: the kept session is not listed", kept.name);
                self.world.findings.broken(text);
                continue;
            }
            let info = client.session(&kept.name).info().await?;
            if let Err(text) = kept.compare(&info) {
                self.world.findings.broken(text);
            }
        }
        Ok(())
    }
}
