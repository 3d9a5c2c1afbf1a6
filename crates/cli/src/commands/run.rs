//! `djinn run`

use std::time::Instant;

use djinn_analysis::check_finished;
use djinn_client::{EventStream, FinishReason, Generate, TurnEvent, TurnOutput, v1};
use djinn_terminal::{Failure, id_list, say, say_json};
use djinn_types::{Size, text::seconds};
use serde_json::{Value, json};

use super::{
    connection::{Connection, LocalEngine, LocalState, on_model},
    edits::edits,
    prompt,
    session_store::session_id,
    sizing::{PromptSize, one_prompt, one_saved_session},
    watch::Watch,
};
use crate::args::{PromptArgs, RunArgs, SamplingArgs};

/// Generates text from a prompt.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    if args.stop.iter().any(String::is_empty) {
        return Err(Failure::Message(
            "--stop is empty: give the text to stop at".into(),
        ));
    }
    let state = local_state(args)?;
    let prompt = prompt::read(&args.prompt)?;
    let size = size(args, &prompt);
    let layout = match state {
        Some(_) => one_saved_session(size, args.model.rows),
        None => one_prompt(size, args.model.rows),
    };
    let engine = LocalEngine {
        state,
        measure_link: args.watch.stats,
        ..LocalEngine::new(layout)
    };
    let mut watch = Watch::new(&args.watch)?;
    let began = Instant::now();
    on_model(&args.server, &args.model, engine, async |connection| {
        let load = began.elapsed().as_secs_f64();
        watch.begin(connection).await?;
        let finished = generate(connection, args, &prompt, load).await;
        // The record ends after a failure too, so that its table can be printed.
        let ended = watch.end(connection).await;
        let Ok(finished) = finished else {
            eprint!("{}", watch.table());
            return finished.map(drop);
        };
        finished.print(args, &watch)?;
        ended
    })
}

/// Folder of saved sessions, if flags name one.
fn local_state(args: &RunArgs) -> Result<Option<LocalState>, Failure> {
    let session = match (&args.session, &args.state) {
        (Some(_), None) if args.server.server.is_none() => {
            return Err(Failure::Message(
                "--session needs --state DIR or --server ADDR".into(),
            ));
        }
        (Some(id), Some(_)) => Some(session_id(id)?),
        _ => None,
    };
    let folder = args.state.clone();
    Ok(folder.map(|folder| LocalState { folder, session }))
}

fn size(args: &RunArgs, prompt: &PromptArgs) -> PromptSize {
    PromptSize {
        max_tokens: args.max_tokens,
        changes: args.changes.clone(),
        stop: args.stop.clone(),
        sampling: Some(args.sampling.clone()),
        ..PromptSize::new(prompt.clone())
    }
}

/// Durations of the parts of a run in seconds.
struct Timing {
    load: f64,
    first_token: f64,
    rest: f64,
}

impl Timing {
    /// Generated tokens per second, without the first token.
    fn rate(&self, tokens: usize) -> f64 {
        match tokens.saturating_sub(1) {
            0 => 0.0,
            after_first => after_first as f64 / self.rest,
        }
    }
}

/// A finished run.
struct FinishedRun {
    model: v1::Model,
    server: v1::CapabilitiesReply,
    address: Option<String>,
    /// Whether tokens may have been sampled.
    samples: bool,
    prompt: Vec<u32>,
    turn: TurnOutput,
    timing: Timing,
}

async fn generate(
    connection: &Connection,
    args: &RunArgs,
    prompt: &PromptArgs,
    load: f64,
) -> Result<FinishedRun, Failure> {
    let model = connection.model_info().await?;
    let server = connection.client.capabilities().await?;
    let streams = model.has_text && !args.json;
    finish_interrupted(connection, args, streams).await?;
    let (events, prompt, asked) = open(connection, args, prompt).await?;
    let shown = match streams {
        true => Some(connection.model.detokenize(&prompt, false).await?),
        false => None,
    };
    let samples = may_sample(connection, args);
    note_unused_flags(model.has_chat, args, samples);
    let (turn, timing) = listen(events, shown, (load, asked)).await?;
    let run = FinishedRun {
        model,
        server,
        address: connection.address.clone(),
        samples,
        prompt,
        turn,
        timing,
    };
    run.check(args)?;
    Ok(run)
}

/// Name of the session to continue.
fn session_name(connection: &Connection, args: &RunArgs) -> Option<String> {
    let id = args.session.as_ref()?;
    Some(match args.state {
        Some(_) => format!("{}:{id}", connection.model.name()),
        None => id.clone(),
    })
}

/// Lets a saved session finish the turn that was interrupted, and prints the rest of that turn.
async fn finish_interrupted(
    connection: &Connection,
    args: &RunArgs,
    streams: bool,
) -> Result<(), Failure> {
    let session = session_name(connection, args).map(|name| connection.client.session(name));
    let (Some(session), Some(generated)) = (session, connection.interrupted()) else {
        return Ok(());
    };
    let rest = session.follow(generated).await?.collect().await?;
    match streams {
        true => say(&rest.text),
        false => Ok(()),
    }
}

/// Begins a session, or continues one. Returns its events, the tokens of the prompt, and the time of the
/// request.
async fn open(
    connection: &Connection,
    args: &RunArgs,
    prompt: &PromptArgs,
) -> Result<(EventStream, Vec<u32>, Instant), Failure> {
    let model = &connection.model;
    if let Some(session) = session_name(connection, args) {
        let session = connection.client.session(session);
        let model = match args.state {
            Some(_) => model.clone(),
            None => connection.client.model(session.info().await?.model),
        };
        let tokens = prompt::more_tokens(&model, prompt).await?;
        let mut turn = Generate::new().tokens(tokens.clone());
        if let Some(most) = args.max_tokens {
            turn = turn.max_tokens(most as u64);
        }
        let asked = Instant::now();
        return Ok((session.generate(turn).await?, tokens, asked));
    }
    let tokens = prompt::tokens(model, prompt).await?;
    let mut session = model.session().tokens(tokens.clone());
    session = session.sampling(v1::Sampling {
        logprobs: args.logprobs.map(|n| n as u32),
        ..sampling(&args.sampling)
    });
    if let Some(most) = args.max_tokens {
        session = session.max_tokens(most as u64);
    }
    for stop in &args.stop {
        session = session.stop(stop);
    }
    for edit in edits(model, &args.changes).await? {
        session = session.edit(edit);
    }
    if args.ignore_eos {
        session = session.ignore_eos();
    }
    if args.keep || args.state.is_some() {
        session = session.keep();
    }
    let asked = Instant::now();
    Ok((session.open().await?, tokens, asked))
}

/// Sampling that flags set. The server takes the rest from the model's recommendation.
pub fn sampling(args: &SamplingArgs) -> v1::Sampling {
    v1::Sampling {
        temperature: args.temperature,
        top_k: args.top_k.map(|k| k as u32),
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repetition_penalty,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        logit_bias: args.logit_bias.iter().copied().collect(),
        seed: args.seed,
        logprobs: None,
    }
}

/// Random seed for a run without `--seed`, short enough to type again.
pub fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| u64::from(d.subsec_nanos()) ^ d.as_secs()) % 1_000_000
}

/// Prints notes about flags without effect.
fn note_unused_flags(has_chat: bool, args: &RunArgs, samples: bool) {
    if has_chat && !args.prompt.chat && args.prompt.prompt.is_some() {
        eprintln!("note: this model has a chat template; --chat uses it");
    }
    let SamplingArgs {
        top_k,
        top_p,
        min_p,
        ..
    } = args.sampling;
    if !samples && (top_k.is_some() || top_p.is_some() || min_p.is_some()) {
        eprintln!(
            "note: the temperature is 0, so the most likely token is taken and --top-k, --top-p and \
             --min-p have no effect"
        );
    }
}

/// Whether tokens may be sampled. The recommendation of a model on a server elsewhere is not known.
fn may_sample(connection: &Connection, args: &RunArgs) -> bool {
    match args.sampling.temperature {
        Some(temperature) => temperature > 0.0,
        None => connection.recommends_sampling().unwrap_or(true),
    }
}

/// Collects a turn. With a prompt to show, prints the prompt and streams the text after it.
async fn listen(
    mut events: EventStream,
    prompt: Option<String>,
    (load, asked): (f64, Instant),
) -> Result<(TurnOutput, Timing), Failure> {
    let stream = prompt.is_some();
    say(&prompt.unwrap_or_default())?;
    let mut turn = TurnOutput::new(events.opened().clone());
    let mut first_token = None;
    while let Some(event) = events.next().await? {
        first_token.get_or_insert_with(|| asked.elapsed().as_secs_f64());
        match &event {
            TurnEvent::Token(token) if stream => say(&token.text)?,
            TurnEvent::Finished(finished) if stream => say(&finished.text)?,
            _ => {}
        }
        turn.take(event);
    }
    if stream {
        say("\n")?;
    }
    let whole = asked.elapsed().as_secs_f64();
    let first_token = first_token.unwrap_or(whole);
    let timing = Timing {
        load,
        first_token,
        rest: whole - first_token,
    };
    Ok((turn, timing))
}

impl FinishedRun {
    fn check(&self, args: &RunArgs) -> Result<(), Failure> {
        check_finished(&self.turn)?;
        let over = self.turn.finished().filter(|end| !end.kept);
        match (over, &args.state) {
            (Some(end), Some(_)) => {
                let why = match end.reason() {
                    FinishReason::Context => "its context is full",
                    _ => &end.why,
                };
                let session = self.session_id();
                Err(Failure::Message(format!(
                    "session {session} has ended: {why}; start a new session"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Id of the session in its state folder.
    fn session_id(&self) -> &str {
        let name = &self.turn.opened.session;
        name.rsplit_once(':').map_or("", |(_, id)| id)
    }

    fn print(&self, args: &RunArgs, watch: &Watch) -> Result<(), Failure> {
        let session = &self.turn.opened.session;
        let is_kept = args.keep || args.session.is_some();
        let seed = args.session.is_none().then_some(self.turn.opened.seed);
        if args.json {
            let mut report = self.json(seed);
            if args.state.is_some() {
                report["session"] = json!(self.session_id());
            } else if is_kept {
                report["session"] = json!(session);
            }
            watch.add_to(&mut report);
            return say_json(&report);
        }
        if !self.model.has_text {
            say(&format!("{}\n", id_list(&self.turn.tokens)))?;
        }
        let drawn = args.sampling.seed.is_none() && self.samples;
        eprintln!("{}", self.summary(seed.filter(|_| drawn)));
        eprint!("{}", watch.table());
        let place = match (&args.state, &self.address) {
            (Some(folder), _) => Some((
                format!("--state {}", folder.display()),
                self.session_id().to_string(),
            )),
            (None, Some(address)) if is_kept => {
                Some((format!("--server {address}"), session.clone()))
            }
            _ => None,
        };
        if let Some((place, session)) = place {
            eprintln!(
                "session {session} is kept; continue it with: djinn run {place} --session {session} \
                 --prompt '…'"
            );
        }
        Ok(())
    }

    /// Tokens of the prompt that the prefix cache had.
    fn cached_tokens(&self) -> u64 {
        self.turn.finished().map_or(0, |end| end.cached_tokens)
    }

    fn summary(&self, seed: Option<u64>) -> String {
        let seed = seed.map_or(String::new(), |seed| format!(" · seed {seed}"));
        let memory = self.model.memory.unwrap_or_default();
        let device = &self.server.device;
        let place = match &self.address {
            Some(address) => format!("{device} at {address}"),
            None => format!("{device} ({})", self.server.device_detail),
        };
        let cached = match self.cached_tokens() {
            0 => String::new(),
            cached => format!(" ({cached} tokens from the prefix cache)"),
        };
        format!(
            "{} tokens · {:.1} tokens/s · first token {}{cached} · {} ({} weights, {} KV, {} activations) · \
             {place}{seed}",
            self.turn.tokens.len(),
            self.timing.rate(self.turn.tokens.len()),
            seconds(self.timing.first_token),
            Size(memory.total_bytes),
            Size(weights(&memory)),
            Size(memory.kv_bytes),
            Size(memory.activations_bytes),
        )
    }

    fn json(&self, seed: Option<u64>) -> Value {
        let memory = self.model.memory.unwrap_or_default();
        let logprob =
            |l: &v1::Logprob| json!({ "token": l.id, "text": l.text, "logprob": l.logprob });
        let logprobs = self.turn.logprobs.iter().map(|all| {
            let mut chosen = logprob(&all[0]);
            chosen["top"] = all[1..].iter().map(logprob).collect();
            chosen
        });
        json!({
            "model": self.model.name,
            "device": self.server.device,
            "device_detail": self.server.device_detail,
            "prompt_ids": self.prompt,
            "output_ids": self.turn.tokens,
            "text": self.turn.text,
            "cached_tokens": self.cached_tokens(),
            "finish": self.turn.finished().map(|end| &end.why),
            "seed": seed,
            "logprobs": logprobs.collect::<Vec<Value>>(),
            "tokens_per_s": self.timing.rate(self.turn.tokens.len()),
            "first_token_s": self.timing.first_token,
            "load_s": self.timing.load,
            "memory": {
                "weights_bytes": weights(&memory),
                "resident_bytes": memory.resident_bytes,
                "ring_bytes": memory.ring_bytes,
                "experts_bytes": memory.experts_bytes,
                "kv_bytes": memory.kv_bytes,
                "activations_bytes": memory.activations_bytes,
                "peak_rss_bytes": djinn_device::host::peak_rss_bytes(),
            },
        })
    }
}

fn weights(memory: &v1::ModelMemory) -> u64 {
    memory.resident_bytes + memory.ring_bytes + memory.experts_bytes
}
