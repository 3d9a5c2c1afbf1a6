//! Requests without a session: the same request must always give the same answer.

use djinn_client::{HookEdit, TurnOutput};
use serde_json::json;

use crate::{
    http,
    script::sampling,
    server::OwnerKey,
    world::{CallProblem, MODEL, World},
};

/// Number of different requests.
pub const ONESHOTS: usize = 8;
/// Hook that requests capture.
const CAPTURED: &str = "blocks.3.hook_resid_post";

impl World {
    /// Runs request `number` and compares the answer with earlier ones.
    pub async fn oneshot(&self, owner: OwnerKey, number: usize) -> Result<(), CallProblem> {
        self.findings.count("requests without a session");
        let answer = self.answer(owner, number).await?;
        match self.oneshots.note(number, answer) {
            true => Ok(()),
            false => Err(CallProblem::Broken(format!(
                "request {number} without a session gives another answer than before"
            ))),
        }
    }

    /// Answer of request `number`, as text.
    pub async fn answer(&self, owner: OwnerKey, number: usize) -> Result<String, CallProblem> {
        let prompt = &self.phrases[number % self.phrases.len()];
        match number % 2 {
            0 => self.captured(owner, number, prompt).await,
            _ => self.completed(owner, number, prompt).await,
        }
    }

    /// Tokens and captured activations over gRPC.
    async fn captured(
        &self,
        owner: OwnerKey,
        number: usize,
        prompt: &[u32],
    ) -> Result<String, CallProblem> {
        let model = self.client(owner).await?.model(MODEL);
        let create = model
            .session()
            .tokens(prompt)
            .max_tokens(6)
            .ignore_eos()
            .sampling(sampling(number as u64))
            .edit(HookEdit::scale("blocks.1.hook_mlp_out", 0.7))
            .capture(format!("{CAPTURED}@-1"));
        let turn = async { create.open().await?.collect().await };
        let turn: TurnOutput = self.patiently(turn).await?;
        check_failure(&turn)?;
        let values = turn.captured.get(CAPTURED).map(|tensor| &tensor.data);
        if turn.tokens.len() != 6 || values.is_none_or(Vec::is_empty) {
            let text = "a request without a session is incomplete";
            return Err(CallProblem::Broken(text.to_owned()));
        }
        Ok(format!("{:?} {values:?}", turn.tokens))
    }

    /// Text of a completion over HTTP.
    async fn completed(
        &self,
        owner: OwnerKey,
        number: usize,
        prompt: &[u32],
    ) -> Result<String, CallProblem> {
        let body = json!({
            "model": MODEL, "prompt": prompt, "max_tokens": 6, "temperature": 0.8, "seed": number,
        });
        self.findings.count("requests");
        let place = self.server.place().await;
        let bytes = body.to_string().into_bytes();
        let reply = http::post(&place.address, owner.key, "/v1/completions", &bytes).await;
        let failed = |text: String| CallProblem::Failed(text);
        let reply = reply.map_err(|error| failed(error.to_string()))?;
        match reply.status {
            200 => {
                let parsed: serde_json::Value = serde_json::from_str(&reply.body)
                    .map_err(|error| failed(format!("{error}: {}", reply.body)))?;
                Ok(parsed["choices"][0]["text"].to_string())
            }
            0 | 429 | 500.. => Err(failed(format!("HTTP {}: {}", reply.status, reply.body))),
            status => Err(CallProblem::Broken(format!(
                "HTTP {status}: {}",
                reply.body
            ))),
        }
    }
}

/// Returns the failure that ended a turn.
pub fn check_failure(turn: &TurnOutput) -> Result<(), CallProblem> {
    match turn.finished().map(|end| end.failure.as_str()) {
        None | Some("") => Ok(()),
        Some(failure) => Err(CallProblem::Failed(failure.to_owned())),
    }
}
