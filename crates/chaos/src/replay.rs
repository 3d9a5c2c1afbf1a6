//! Comparison with an uninterrupted run of the same inputs on a quiet server.

use std::sync::Arc;

use djinn_client::{Error, EventStream, ModelHandle, SessionHandle, TurnEvent, v1};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    record::KeptRecord,
    script::{ScriptStep, resume_at, sampling},
    world::{MODEL, World},
};

/// Sessions that are replayed at the same time.
const CONCURRENT: usize = 6;

/// Runs the inputs of all sessions again and compares the tokens. Returns the differences.
pub async fn replay_all(quiet: Arc<World>, records: Vec<KeptRecord>) -> Vec<String> {
    let (room, mut tasks) = (Arc::new(Semaphore::new(CONCURRENT)), JoinSet::new());
    for record in records {
        let (quiet, room) = (Arc::clone(&quiet), Arc::clone(&room));
        tasks.spawn(async move {
            let _place = room.acquire_owned().await;
            match replay(&quiet, &record).await {
                Ok(difference) => difference,
                Err(error) => Some(format!("{}: cannot be replayed: {error}", record.name)),
            }
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

/// Runs the inputs of a session again. Returns the difference, if any.
async fn replay(quiet: &World, record: &KeptRecord) -> Result<Option<String>, Error> {
    let model = quiet.server.client(record.owner).await?.model(MODEL);
    let mut session: Option<SessionHandle> = None;
    let mut difference = None;
    for step in &record.steps {
        let next = run_step(&model, session.as_ref(), step, record).await?;
        difference = difference.or(next.difference);
        if let Some(old) = session.filter(|old| old.name() != next.session.name()) {
            old.delete().await?;
        }
        session = Some(next.session);
    }
    let session = session.expect("the first step opens the session");
    let tokens = session.info().await?.token_ids;
    session.delete().await?;
    if tokens != record.tokens {
        let equal = tokens
            .iter()
            .zip(&record.tokens)
            .take_while(|(a, b)| a == b);
        difference = Some(format!(
            "{}: token {} of {} differs from an uninterrupted run",
            record.name,
            equal.count(),
            record.tokens.len()
        ));
    }
    Ok(difference)
}

/// Session after a step, and the first difference found in the step.
struct ReplayedStep {
    session: SessionHandle,
    difference: Option<String>,
}

async fn run_step(
    model: &ModelHandle,
    session: Option<&SessionHandle>,
    step: &ScriptStep,
    record: &KeptRecord,
) -> Result<ReplayedStep, Error> {
    let open = || session.expect("the first step opens the session");
    let events = match step {
        ScriptStep::Open(step) => step.request(model).open().await?,
        ScriptStep::Turn(step) => open().generate(step.request()).await?,
        ScriptStep::Fork(seed) => {
            let session = open().fork(Some(sampling(*seed))).await?;
            let difference = None;
            return Ok(ReplayedStep {
                session,
                difference,
            });
        }
        ScriptStep::Reload => {
            let session = model.load(open().save().await?).await?;
            let difference = None;
            return Ok(ReplayedStep {
                session,
                difference,
            });
        }
    };
    let session = events.session().clone();
    let difference = run_turn(&session, events, record).await?;
    Ok(ReplayedStep {
        session,
        difference,
    })
}

/// Runs a turn through all its breakpoints, and compares the activations there.
async fn run_turn(
    session: &SessionHandle,
    mut events: EventStream,
    record: &KeptRecord,
) -> Result<Option<String>, Error> {
    let mut difference = None;
    while let Some(at) = next_pause(&mut events).await? {
        let found = session.activation("", "").await?.data;
        let known = record.activations.get(&at.position);
        if known.is_some_and(|known| *known != found) {
            difference = Some(format!(
                "{}: the activation at position {} differs from an uninterrupted run",
                record.name, at.position
            ));
        }
        events = session.resume(resume_at(&at)).await?;
    }
    Ok(difference)
}

async fn next_pause(events: &mut EventStream) -> Result<Option<v1::Paused>, Error> {
    while let Some(event) = events.next().await? {
        if let TurnEvent::Paused(at) = event {
            return Ok(Some(at));
        }
    }
    Ok(None)
}
