//! `djinn run --server`

use std::time::Instant;

use djinn_client::{Client, EventStream, Generate, ModelHandle, TurnEvent, TurnOutput, v1};
use djinn_memory::Size;
use serde_json::{Value, json};

use super::{address, edits::edits, on, prompt};
use crate::{
    args::{RunArgs, SamplingArgs},
    commands::run::{Timing, note_what_is_unused},
    failure::{Failure, say, say_json},
    style::{id_list, seconds},
};

/// Generates text from a prompt, on a server.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    on(&args.server, async |client| run_on(&client, args).await)
}

/// What ran, and where.
struct Ran {
    model: v1::Model,
    server: v1::CapabilitiesReply,
    prompt: Vec<u32>,
    turn: TurnOutput,
    timing: Timing,
}

async fn run_on(client: &Client, args: &RunArgs) -> Result<(), Failure> {
    let began = Instant::now();
    let name = match &args.session {
        Some(session) => session.rsplit_once(':').map_or("", |(model, _)| model),
        None => args.model.model.as_deref().unwrap_or_default(),
    };
    let model = client.model(name);
    let (told, server) = (model.info().await?, client.capabilities().await?);
    let (load, asked) = (began.elapsed().as_secs_f64(), Instant::now());
    let (events, prompt) = open(client, &model, args).await?;
    let shown = match told.has_text && !args.json {
        true => Some(model.detokenize(&prompt, false).await?),
        false => None,
    };
    note_what_is_unused(told.has_chat, args, may_sample(args));
    let session = events.session().name().to_owned();
    let (turn, timing) = listen(events, shown, (load, asked)).await?;
    let ran = Ran {
        model: told,
        server,
        prompt,
        turn,
        timing,
    };
    ran.check()?;
    let kept = (args.keep || args.session.is_some()).then_some(session);
    ran.tell(args, kept.as_deref())
}

/// Begins a session, or goes on with one.
async fn open(
    client: &Client,
    model: &ModelHandle,
    args: &RunArgs,
) -> Result<(EventStream, Vec<u32>), Failure> {
    if let Some(session) = &args.session {
        let tokens = prompt::more(model, &args.prompt).await?;
        let mut told = Generate::new().tokens(tokens.clone());
        if let Some(most) = args.max_tokens {
            told = told.max_tokens(most as u64);
        }
        return Ok((client.session(session).generate(told).await?, tokens));
    }
    let tokens = prompt::tokens(model, &args.prompt).await?;
    let mut asked = model.session().tokens(tokens.clone());
    asked = asked.sampling(v1::Sampling {
        logprobs: args.logprobs.map(|n| n as u32),
        ..sampling(&args.sampling)
    });
    if let Some(most) = args.max_tokens {
        asked = asked.max_tokens(most as u64);
    }
    for stop in &args.stop {
        asked = asked.stop(stop);
    }
    for edit in edits(model, &args.changes).await? {
        asked = asked.edit(edit);
    }
    if args.ignore_eos {
        asked = asked.ignore_eos();
    }
    if args.keep {
        asked = asked.keep();
    }
    Ok((asked.open().await?, tokens))
}

/// What flags say of how tokens are chosen; the rest is the server's model's to recommend.
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

/// Hears a turn to its end. Where there is a prompt to show, text streams after it.
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

impl Ran {
    /// An error where it broke down.
    fn check(&self) -> Result<(), Failure> {
        match self.turn.finished() {
            Some(end) if !end.failure.is_empty() => Err(Failure::Message(end.failure.clone())),
            Some(end) if end.why == "not-a-number" => Err(Failure::Message(
                "the model computed something that is not a number: weights or edits are broken"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    fn tell(&self, args: &RunArgs, kept: Option<&str>) -> Result<(), Failure> {
        let seed = args.session.is_none().then_some(self.turn.opened.seed);
        if args.json {
            let mut report = self.json(seed);
            if let Some(session) = kept {
                report["session"] = json!(session);
            }
            return say_json(&report);
        }
        if !self.model.has_text {
            say(&format!("{}\n", id_list(&self.turn.tokens)))?;
        }
        let drawn = args.sampling.seed.is_none() && may_sample(args);
        let seed = seed.filter(|_| drawn);
        eprintln!("{}", self.summary(&address(&args.server), seed));
        if let Some(session) = kept {
            eprintln!(
                "session {session} is kept: djinn run --server {} --session {session} --prompt '…' goes \
                 on with it",
                address(&args.server)
            );
        }
        Ok(())
    }

    fn summary(&self, address: &str, seed: Option<u64>) -> String {
        let seed = seed.map_or(String::new(), |seed| format!(" · seed {seed}"));
        let memory = self.model.memory.unwrap_or_default();
        format!(
            "{} tokens · {:.1} tokens/s · first token {} · {} ({} weights, {} KV, {} activations) · {} at \
             {address}{seed}",
            self.turn.tokens.len(),
            self.timing.rate(self.turn.tokens.len()),
            seconds(self.timing.first_token),
            Size(memory.total_bytes),
            Size(weights(&memory)),
            Size(memory.kv_bytes),
            Size(memory.activations_bytes),
            self.server.device,
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

/// Whether chance may have a say: only the server knows what a model recommends.
fn may_sample(args: &RunArgs) -> bool {
    args.sampling.temperature.is_none_or(|x| x > 0.0)
}

fn weights(memory: &v1::ModelMemory) -> u64 {
    memory.resident_bytes + memory.ring_bytes + memory.experts_bytes
}
