//! Calls on the inside of a model, and pushes of small models.

use std::path::Path;

use djinn_client::{Error, HookEdit, Register, Resume, SessionHandle, TurnOutput, v1};

use crate::{
    script::sampling,
    server::{OWNERS, OwnerKey},
    world::{CallProblem, MODEL, World},
};

/// Hook at which sessions stop.
const HOOK: &str = "blocks.2.hook_resid_post";
/// Tokens of each turn.
const TOKENS: usize = 6;
/// Name of a pushed model on the server.
const PUSHED: &str = "pushed";
/// Device memory of a pushed model.
const PUSHED_MEMORY: u64 = 24 << 20;

impl World {
    /// Stops a session at a hook, reads the activation, and runs two branches with equal edits,
    /// which must give equal tokens.
    pub async fn branch_and_compare(
        &self,
        owner: OwnerKey,
        number: usize,
    ) -> Result<(), CallProblem> {
        self.findings.count("branches");
        let model = self.client(owner).await?.model(MODEL);
        let prompt = self.phrases[number % self.phrases.len()].clone();
        let create = model
            .session()
            .tokens(prompt)
            .max_tokens(TOKENS as u64)
            .sampling(sampling(number as u64))
            .ignore_eos()
            .breakpoint(format!("{HOOK},step=0"))
            .keep();
        let events = self.patiently(create.open()).await?;
        let base = events.session().clone();
        let paused = self.patiently(events.collect()).await?;
        let compared = match paused.paused() {
            Some(_) => self.compare_branches(&base).await,
            None => Err(CallProblem::Broken("no stop at the breakpoint".to_owned())),
        };
        self.patiently(base.delete()).await?;
        compared
    }

    async fn compare_branches(&self, base: &SessionHandle) -> Result<(), CallProblem> {
        let activation = self.patiently(base.activation("[0..8]", "")).await?;
        if activation.data.is_empty() {
            return Err(CallProblem::Broken("an activation is empty".to_owned()));
        }
        let mut turns = Vec::new();
        for branch in self.patiently(base.branch(2)).await? {
            let turn = self.patiently(run_branch(&branch)).await;
            self.patiently(branch.delete()).await?;
            turns.push(turn?);
        }
        let lengths = turns.iter().map(|turn| turn.tokens.len());
        self.findings.add("tokens", lengths.sum::<usize>() as u64);
        let is_complete = |turn: &TurnOutput| turn.tokens.len() == TOKENS;
        match turns[0].tokens == turns[1].tokens && turns.iter().all(is_complete) {
            true => Ok(()),
            false => Err(CallProblem::Broken("equal branches differ".to_owned())),
        }
    }

    /// Pushes a model, registers it, runs it, and removes it from the server.
    pub async fn push_and_run(&self, folder: &Path) -> Result<(), CallProblem> {
        self.findings.count("pushes");
        let client = self.client(OWNERS[0]).await?;
        let push = self.patiently(client.push(folder, |_| ())).await?;
        let limits = v1::ModelLimits {
            memory_bytes: PUSHED_MEMORY,
            context: 64,
            batch: 1,
            sessions: 2,
            rows: 16,
            ..v1::ModelLimits::default()
        };
        let register = Register::new(push.reference).name(PUSHED).limits(limits);
        self.patiently(client.register(register, |_| ())).await?;
        let model = client.model(PUSHED);
        let create = model.session().tokens([1, 2, 3]).max_tokens(4).ignore_eos();
        let turn = self.patiently(async { create.open().await?.collect().await });
        let turn = turn.await;
        self.patiently(model.unload(true, true)).await?;
        match turn?.tokens.len() {
            4 => Ok(()),
            count => {
                let text = format!("a pushed model generated {count} tokens instead of 4");
                Err(CallProblem::Broken(text))
            }
        }
    }
}

async fn run_branch(branch: &SessionHandle) -> Result<TurnOutput, Error> {
    let resume = Resume::new().edit(HookEdit::scale(HOOK, 0.5));
    branch.resume(resume).await?.collect().await
}
