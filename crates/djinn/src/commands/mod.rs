//! One file a command, and what they share: starting an engine, and its end.

pub mod bench;
pub mod inspect;
pub mod pull;
pub mod run;
pub mod trace;

mod prompt;

use djinn_engine::{Engine, Finish, Request, SessionId, Settings, Transcript};
use djinn_model::Model;

use crate::{args::ModelArgs, failure::Failure, progress::Loading};

/// An engine laid out for these requests, with all of them opened.
fn start(
    args: &ModelArgs,
    model: Model,
    requests: Vec<Request>,
) -> Result<(Engine, Vec<SessionId>), Failure> {
    let settings = Settings::for_requests(&model, &requests, args.rows)?;
    let loading = Loading::new(&model.name, model.program.weight_bytes());
    let backend = args.device.backend();
    let mut engine = Engine::load(model, &backend, settings, &mut |p| loading.update(p))?;
    let ids = requests
        .into_iter()
        .map(|request| engine.open(request))
        .collect::<Result<_, _>>()?;
    Ok((engine, ids))
}

/// Ends a session that ran to its end, and says so where it broke down.
fn finish(engine: &mut Engine, id: SessionId) -> Result<Transcript, Failure> {
    let transcript = engine.close(id).expect("a command closes what it opened");
    if transcript.finish == Some(Finish::NotANumber) {
        return Err(Failure::Message(
            "the model computed something that is not a number: weights or edits are broken".into(),
        ));
    }
    Ok(transcript)
}
