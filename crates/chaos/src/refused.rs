//! Requests that a server must refuse: malformed, too large, without a key, or of another owner.

use djinn_client::{Error, ErrorCode};
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    http,
    server::{BODY_MAX, CONTEXT, OwnerKey},
    world::{CallProblem, MODEL, World},
};

/// Number of different requests.
pub const REFUSED: usize = 9;

impl World {
    /// Sends request `number`, which the server must refuse. `foreign` is a session of another
    /// owner.
    pub async fn refused(
        &self,
        owner: OwnerKey,
        number: usize,
        foreign: Option<&str>,
    ) -> Result<(), CallProblem> {
        self.findings.count("requests to refuse");
        match number {
            0..5 => self.refused_grpc(owner, number, foreign).await,
            _ => self.refused_http(owner, number).await,
        }
    }

    async fn refused_grpc(
        &self,
        owner: OwnerKey,
        number: usize,
        foreign: Option<&str>,
    ) -> Result<(), CallProblem> {
        let client = self.client(owner).await?;
        let session = client.model(MODEL).session();
        let (answer, expected): (Result<(), Error>, &[ErrorCode]) = match number {
            0 => {
                let create = session.tokens(Vec::new());
                (create.open().await.map(drop), &[ErrorCode::Invalid])
            }
            1 => {
                let create = session.tokens([5]).capture("blocks.99.hook_nothing");
                (create.open().await.map(drop), &[ErrorCode::Invalid])
            }
            2 => {
                let create = session.tokens(vec![5; 4 * CONTEXT]).max_tokens(1);
                let codes = &[ErrorCode::Invalid, ErrorCode::TooLarge];
                (create.open().await.map(drop), codes)
            }
            3 => {
                let name = foreign.unwrap_or("stories:no-such-session");
                let info = client.session(name).info().await;
                let codes = &[ErrorCode::NotFound, ErrorCode::Invalid];
                (info.map(drop), codes)
            }
            _ => {
                let place = self.server.place().await;
                let stranger = self
                    .server
                    .connect(&place, "no-such-key-0123456789")
                    .await?;
                let listed = stranger.sessions(None).await;
                (listed.map(drop), &[ErrorCode::Unauthenticated])
            }
        };
        self.findings.count("requests");
        let accepted = || CallProblem::Broken(format!("request {number} was not refused"));
        let error = answer.err().ok_or_else(accepted)?;
        match expected.contains(&error.code()) {
            true => Ok(()),
            false => Err(error.into()),
        }
    }

    async fn refused_http(&self, owner: OwnerKey, number: usize) -> Result<(), CallProblem> {
        let address = self.server.place().await.address;
        let (key, body, expected) = match number {
            5 => (owner.key, b"{\"prompt\": ".to_vec(), 400),
            6 => {
                let body = json!({ "prompt": "a", "temperature": "hot" });
                (owner.key, body.to_string().into_bytes(), 400)
            }
            7 => {
                let body = json!({ "prompt": "a ".repeat(BODY_MAX) });
                (owner.key, body.to_string().into_bytes(), 413)
            }
            _ => return self.garbage(&address).await,
        };
        self.findings.count("requests");
        let reply = http::post(&address, key, "/v1/completions", &body).await;
        let reply = reply.map_err(|error| CallProblem::Failed(error.to_string()))?;
        let text = format!("request {number}: HTTP {} {}", reply.status, reply.body);
        match reply.status {
            status if status == expected => Ok(()),
            // The server may close the connection before it has read the whole body.
            0 if expected == 413 => Ok(()),
            0 | 429 | 500.. => Err(CallProblem::Failed(text)),
            _ => Err(CallProblem::Broken(text)),
        }
    }

    /// Sends bytes that are no request, and vanishes.
    async fn garbage(&self, address: &str) -> Result<(), CallProblem> {
        let sent = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(&[0x16, 0x03, 0xff, 0, 1, 2, 3, 4]).await
        };
        sent.await
            .map_err(|error| CallProblem::Failed(error.to_string()))
    }
}
