//! Everything that the parts of a run share.

use std::{future::Future, time::Duration};

use djinn_client::{Client, Error};

use crate::{
    answers::OneShotTable,
    board::{FaultBoard, FaultMark},
    error::ChaosError,
    findings::Findings,
    server::{OWNERS, OwnerKey, RestartingServer},
};

/// Time without an event after which a call counts as stuck.
const SILENCE_LIMIT: Duration = Duration::from_secs(180);
/// Name of the model on the server.
pub const MODEL: &str = "stories";

/// Texts that prompts are made of.
const TEXTS: [&str; 6] = [
    "Once upon a time there was a little dog",
    " One day Tom and Lily went to the park",
    " The big red ball rolled down the hill and",
    " Mom said that it was time to sleep, but",
    " She looked at the sky and saw",
    " Then the cat",
];

/// Failure of a call on a session.
#[derive(Debug)]
pub enum CallProblem {
    /// The server broke a promise.
    Broken(String),
    /// The call failed, and another attempt may succeed.
    Failed(String),
}

impl From<Error> for CallProblem {
    fn from(error: Error) -> Self {
        use djinn_client::ErrorCode as Code;
        let text = format!("{}: {error}", error.code().name());
        match error.code() {
            Code::Unsupported
            | Code::Unauthenticated
            | Code::Forbidden
            | Code::NotFound
            | Code::Conflict
            | Code::TooLarge
            | Code::Local => CallProblem::Broken(text),
            // A server that cannot read its weights refuses requests as invalid.
            Code::Invalid
            | Code::Limited
            | Code::Timeout
            | Code::Replaced
            | Code::Unavailable
            | Code::Internal => CallProblem::Failed(text),
        }
    }
}

/// Server, faults and results of a run.
pub struct World {
    /// Server under test.
    pub server: RestartingServer,
    /// Times of faults.
    pub board: FaultBoard,
    /// Results.
    pub findings: Findings,
    /// Requests without a session, and their answers.
    pub oneshots: OneShotTable,
    /// Tokens of texts that prompts are made of.
    pub phrases: Vec<Vec<u32>>,
}

impl World {
    /// Prepares a run on a server.
    pub async fn new(server: RestartingServer) -> Result<Self, ChaosError> {
        let model = server.client(OWNERS[0]).await?.model(MODEL);
        let mut phrases = Vec::new();
        for text in TEXTS {
            phrases.push(model.tokenize_more(text).await?);
        }
        Ok(World {
            server,
            board: FaultBoard::default(),
            findings: Findings::default(),
            oneshots: OneShotTable::default(),
            phrases,
        })
    }

    /// Client of an owner.
    pub async fn client(&self, owner: OwnerKey) -> Result<Client, CallProblem> {
        Ok(self.server.client(owner).await?)
    }

    /// Sends a request and waits for its answer.
    pub async fn patiently<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, CallProblem> {
        self.findings.count("requests");
        in_time(call).await
    }

    /// Reports a failed call that no fault explains.
    pub fn judge(&self, what: &str, since: FaultMark, problem: CallProblem) {
        match problem {
            CallProblem::Broken(text) => self.findings.broken(format!("{what}: {text}")),
            CallProblem::Failed(text) if !self.board.overlaps(since) => {
                self.findings.count("errors");
                let text = format!("{what}: failed without a fault: {text}");
                self.findings.broken(text);
            }
            CallProblem::Failed(_) => self.findings.count("calls failed in faults"),
        }
    }
}

/// Waits for an answer or an event, and reports one that does not arrive.
pub async fn in_time<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, CallProblem> {
    match tokio::time::timeout(SILENCE_LIMIT, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(CallProblem::Failed(format!(
            "no answer within {} s",
            SILENCE_LIMIT.as_secs()
        ))),
    }
}
