//! `djinn bench sessions`

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use djinn_engine::{Blueprint, Engine, Finish, Output, PagingStats, Request, SessionId, Settings};
use djinn_memory::Size;
use djinn_model::{Model, program::Program};
use djinn_report::percentile;
use serde_json::{Value, json};

use super::{check_context, rates, some_tokens};
use crate::{
    args::{BenchSessionsArgs, Between, Settled},
    bundled, commands,
    commands::watch::Watch,
    failure::{Failure, say, say_json},
    progress::Doing,
    style::{seconds, table},
};

/// How long the link is measured.
const MEASURE: Duration = Duration::from_millis(500);

/// How long nobody looks who is expected while nothing runs.
const NAP: Duration = Duration::from_millis(50);

/// Seconds that nobody waits for.
const LONGEST: f64 = 1e6;

/// A session to come.
struct Asked {
    request: Request,
    /// Seconds after the start.
    arrives: f64,
    /// What comes after its first turn.
    turns: Vec<Turn>,
}

/// Seconds of thought, then what the tool answers, then tokens to generate.
struct Turn {
    think: f64,
    answer: Vec<u32>,
    output: usize,
}

impl Asked {
    /// Tokens it comes to.
    fn tokens(&self) -> usize {
        let later = self
            .turns
            .iter()
            .map(|turn| turn.answer.len() + turn.output);
        self.request.tokens.len() + self.request.max_tokens + later.sum::<usize>()
    }
}

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    /// At least 0 and below 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn count(&mut self, between: Between<usize>) -> usize {
        let span = (between.to - between.from + 1) as f64;
        between.from + (self.uniform() * span) as usize
    }

    fn time(&mut self, between: Between<f64>) -> f64 {
        between.from + self.uniform() * (between.to - between.from)
    }
}

/// Everything measured, in seconds.
#[derive(Default)]
struct Measured {
    /// From arrival to the first token, from one token to the next, and from the end of a
    /// thought to the next token.
    first: Vec<f64>,
    next: Vec<f64>,
    resumed: Vec<f64>,
    /// The last without what came before its turn did.
    served: Vec<f64>,
    passes: usize,
    /// In which passes ran, and bytes of weights that came for them.
    busy: f64,
    streamed: u64,
    seconds: f64,
    /// What each session generated, by its number, and why those that broke down did.
    generated: BTreeMap<usize, Vec<u32>>,
    failed: BTreeMap<usize, String>,
}

/// Many sessions in less memory than their KV takes.
pub fn sessions(args: &BenchSessionsArgs) -> Result<(), Failure> {
    let model = bundled::open(args.model.model.as_deref())?;
    let asked = asked(args, &model.program)?;
    let settled = args.model.settled()?;
    let settings = settings(args, &model, &asked)?;
    let wanted = settings.pages;
    let kv = args.kv();
    let blueprint =
        Blueprint::for_sessions(&model, settled.backend(), settings, settled.memory, &kv)?;
    if args.spill.is_some() && blueprint.disk_page_bytes() == 0 {
        eprintln!("note: no page needs to go to disk, so --spill is not used");
    }
    let mut engine = commands::load(&settled, model, blueprint, &mut Watch::default())?;
    let measured = run(args, &mut engine, &asked)?;
    let paged = engine.paging_stats()?;
    let mut report = report(args, &settled, &engine, wanted, &measured, paged)?;
    drop(engine);
    let differ = check(args, &settled, &asked, &measured)?;
    report["checked"] = json!(args.check.min(asked.len()));
    let (numbers, from): (Vec<usize>, Vec<usize>) = differ.iter().copied().unzip();
    (report["differ"], report["differ_from"]) = (json!(numbers), json!(from));
    match args.json {
        true => say_json(&report)?,
        false => say(&text(&report))?,
    }
    let complete = measured.generated.len() == asked.len();
    match complete && differ.is_empty() {
        true => Ok(()),
        false => Err(Failure::Told),
    }
}

/// Draws the sessions.
fn asked(args: &BenchSessionsArgs, program: &Program) -> Result<Vec<Asked>, Failure> {
    if args.prompt.from == 0 || args.output.from == 0 {
        let zero = "a prompt and a turn have at least one token";
        return Err(Failure::Message(zero.into()));
    }
    if args.think.from < 0.0 || args.think.to > LONGEST {
        return Err(Failure::Message(
            "--think: seconds, from 0 to a million".into(),
        ));
    }
    let longest = args.output.to.saturating_add(args.answer.to);
    let longest = args.turns.saturating_mul(longest);
    let longest = longest.saturating_add(args.prefix);
    check_context(program, longest.saturating_add(args.prompt.to))?;
    let mut random = Random(args.seed);
    let mut clock = 0.0;
    let one = |i: usize| {
        if let Some(rate) = args.arrivals {
            clock = (clock - (1.0 - random.uniform()).ln() / rate).min(LONGEST);
        }
        let prompt = random.count(args.prompt);
        let mut tokens = some_tokens(program, args.prefix, args.sessions);
        tokens.extend(some_tokens(program, prompt, i));
        let request = Request {
            tokens,
            max_tokens: random.count(args.output),
            keep: args.turns > 1,
            ..Request::default()
        };
        let mut turn = |turn: usize| Turn {
            think: random.time(args.think),
            answer: some_tokens(program, random.count(args.answer), i + turn * args.sessions),
            output: random.count(args.output),
        };
        Asked {
            turns: (1..args.turns).map(&mut turn).collect(),
            request,
            arrives: clock,
        }
    };
    Ok((0..args.sessions).map(one).collect())
}

/// What all of them come to.
fn settings(args: &BenchSessionsArgs, model: &Model, asked: &[Asked]) -> Result<Settings, Failure> {
    let requests: Vec<Request> = asked.iter().map(|asked| asked.request.clone()).collect();
    let all = Settings::for_requests(model, &requests, args.model.rows)?;
    let most = args.batch.min(asked.len());
    let context = asked.iter().map(Asked::tokens).max().unwrap_or(1);
    let pages = |asked: &Asked| asked.tokens().div_ceil(all.page_tokens);
    Ok(Settings {
        sessions: most,
        rows: args.model.rows.max(most),
        logit_rows: most,
        context,
        // Who is kept may come to all that one session can.
        pages: match args.turns {
            1 => asked.iter().map(pages).sum(),
            _ => asked.len() * context.div_ceil(all.page_tokens),
        },
        ..all
    })
}

/// A session that is under way.
struct Life {
    number: usize,
    generated: usize,
    /// Turns behind it.
    turns: usize,
    /// Since when its next token is waited for, and whether it was thinking before.
    since: Instant,
    resumed: bool,
}

fn run(
    args: &BenchSessionsArgs,
    engine: &mut Engine,
    asked: &[Asked],
) -> Result<Measured, Failure> {
    let mut measured = Measured::default();
    let mut lives: BTreeMap<SessionId, Life> = BTreeMap::new();
    // Who thinks, and until when.
    let mut thinking: Vec<(Instant, SessionId)> = Vec::new();
    let mut to_come = asked.iter().enumerate().peekable();
    let doing = Doing::new("the first sessions");
    let start = Instant::now();
    loop {
        let now = Instant::now();
        let since_start = (now - start).as_secs_f64();
        while let Some((number, next)) = to_come.next_if(|(_, a)| a.arrives <= since_start) {
            let life = Life {
                number,
                generated: 0,
                turns: 0,
                since: start + Duration::from_secs_f64(next.arrives),
                resumed: false,
            };
            lives.insert(engine.open(next.request.clone())?, life);
        }
        thinking.sort_by_key(|(until, _)| std::cmp::Reverse(*until));
        while let Some((until, id)) = thinking.pop_if(|(until, _)| *until <= now) {
            let life = lives.get_mut(&id).expect("it is open");
            let turn = &asked[life.number].turns[life.turns - 1];
            engine.say(id, &turn.answer, turn.output)?;
            (life.since, life.resumed) = (until, true);
        }
        if engine.is_idle() {
            let arrival = to_come
                .peek()
                .map(|(_, a)| start + Duration::from_secs_f64(a.arrives));
            let next = thinking.last().map(|(until, _)| *until);
            let Some(due) = [arrival, next].into_iter().flatten().min() else {
                break;
            };
            for lost in engine.tend(now) {
                note(&mut measured, engine, &mut lives, asked, &lost);
            }
            thinking.retain(|(_, id)| lives.contains_key(id));
            thread::sleep(due.saturating_duration_since(now).min(NAP));
            continue;
        }
        let before = engine.passes();
        let outputs = engine.step()?;
        measured.busy += now.elapsed().as_secs_f64();
        if engine.passes() > before {
            measured.streamed += engine.last_pass().map_or(0, |pass| pass.link_bytes);
        }
        for output in outputs {
            let id = output.session;
            let thought = note(&mut measured, engine, &mut lives, asked, &output);
            if let Some(thought) = thought {
                let until = Instant::now() + Duration::from_secs_f64(thought);
                if args.announce {
                    engine.wait(id, Some(until))?;
                }
                thinking.push((until, id));
            }
        }
        // Of those whose pages were lost nobody expects anything any more.
        thinking.retain(|(_, id)| lives.contains_key(id));
        let (done, all) = (measured.generated.len(), asked.len());
        doing.now(format!(
            "{done} of {all} sessions done, {} think",
            thinking.len()
        ));
    }
    measured.passes = engine.passes();
    measured.seconds = start.elapsed().as_secs_f64();
    Ok(measured)
}

/// Takes in what a pass gave a session, and says for how long it thinks now, if it does.
fn note(
    measured: &mut Measured,
    engine: &mut Engine,
    lives: &mut BTreeMap<SessionId, Life>,
    asked: &[Asked],
    output: &Output,
) -> Option<f64> {
    let now = Instant::now();
    let life = lives.get_mut(&output.session).expect("it is open");
    if output.token.is_some() {
        let time = (now - life.since).as_secs_f64();
        let times = match (life.generated, life.resumed) {
            (0, _) => &mut measured.first,
            (_, true) => &mut measured.resumed,
            (_, false) => &mut measured.next,
        };
        times.push(time);
        if let (true, Some(turn)) = (life.resumed, output.turn) {
            measured.served.push((now - turn).as_secs_f64());
        }
        life.generated += 1;
        (life.since, life.resumed) = (now, false);
    }
    let finish = output.finish?;
    let next = asked[life.number].turns.get(life.turns);
    if let (Finish::Length, Some(turn)) = (finish, next) {
        life.turns += 1;
        return Some(turn.think);
    }
    let transcript = engine.close(output.session).expect("it is open");
    match finish {
        Finish::Length => {
            measured.generated.insert(life.number, transcript.generated);
        }
        other => {
            let why = transcript.failure.unwrap_or_else(|| other.to_string());
            measured.failed.insert(life.number, why);
        }
    }
    lives.remove(&output.session);
    None
}

/// Runs some sessions again by themselves and says which generate something else, and from
/// which token on.
fn check(
    args: &BenchSessionsArgs,
    settled: &Settled<'_>,
    asked: &[Asked],
    measured: &Measured,
) -> Result<Vec<(usize, usize)>, Failure> {
    let count = args.check.min(asked.len());
    if count == 0 {
        return Ok(Vec::new());
    }
    let model = bundled::open(args.model.model.as_deref())?;
    let numbers: Vec<usize> = (0..count).map(|i| i * asked.len() / count).collect();
    let positions = |&number: &usize| asked[number].tokens();
    let context = numbers.iter().map(positions).max().unwrap_or(1);
    let rows = args.model.rows;
    let settings = Settings::for_sessions(&model.program, 1, context, rows)?;
    let blueprint = Blueprint::draw(&model, settled.backend(), settings, settled.memory)?;
    let mut engine = commands::load(settled, model, blueprint, &mut Watch::default())?;
    let mut differ = Vec::new();
    for number in numbers {
        let asked = &asked[number];
        let id = engine.open(asked.request.clone())?;
        let mut turns = asked.turns.iter();
        loop {
            while !engine.is_idle() {
                engine.step()?;
            }
            let Some(turn) = turns.next() else { break };
            engine.say(id, &turn.answer, turn.output)?;
        }
        let alone = engine.close(id).expect("it is open").generated;
        let Some(found) = measured.generated.get(&number) else {
            continue;
        };
        if *found != alone {
            let same = found.iter().zip(&alone).take_while(|(a, b)| a == b);
            differ.push((number, same.count()));
        }
    }
    Ok(differ)
}

fn report(
    args: &BenchSessionsArgs,
    settled: &Settled<'_>,
    engine: &Engine,
    wanted: usize,
    measured: &Measured,
    paged: PagingStats,
) -> Result<Value, Failure> {
    let (model, blueprint) = (engine.model(), engine.blueprint());
    let (used, link) = match settled.backend().card() {
        None => (None, None),
        Some(card) => {
            let used = card.used();
            let link = rates::link(settled, model, blueprint, MEASURE, 0.0)?;
            (used, Some(link))
        }
    };
    let over_link = (measured.streamed + paged.copied_in.bytes) as f64;
    let tokens = measured.first.len() + measured.next.len() + measured.resumed.len();
    let way = |traffic: djinn_engine::Traffic| {
        json!({
            "bytes": traffic.bytes, "seconds": traffic.seconds, "gb_per_s": traffic.gb_per_s(),
            "share_of_link": link.map(|link| traffic.gb_per_s() / link),
        })
    };
    let rate = |traffic: djinn_engine::Traffic| json!({"bytes": traffic.bytes, "gb_per_s": traffic.gb_per_s()});
    Ok(json!({
        "model": model.name, "seed": args.seed,
        "sessions": args.sessions, "completed": measured.generated.len(),
        "failed": measured.failed, "seconds": measured.seconds, "tokens": tokens,
        "tokens_per_s": tokens as f64 / measured.seconds,
        "passes": measured.passes,
        "tokens_per_pass": tokens as f64 / measured.passes.max(1) as f64,
        "first_token_s": percentiles(&measured.first),
        "token_s": percentiles(&measured.next),
        "resume_to_token_s": percentiles(&measured.resumed),
        "resume_without_queue_s": percentiles(&measured.served),
        "kv_wanted_bytes": wanted as u64 * blueprint.page_bytes(),
        "device": {
            "name": engine.device().detail, "budget_bytes": blueprint.memory().budget,
            "kv_bytes": engine.footprint().kv, "kv_peak_bytes": paged.device_peak,
            "used_bytes": used,
        },
        "host": {
            "kv_bytes": blueprint.host_page_bytes(), "kv_peak_bytes": paged.host_peak,
        },
        "disk": {
            "kv_bytes": blueprint.disk_page_bytes(), "kv_peak_bytes": paged.disk_peak,
        },
        "shared_tokens": engine.adopted(),
        "link_gb_per_s": link, "paged_out": way(paged.copied_out), "paged_back": way(paged.copied_in),
        "spilled": rate(paged.spilled), "fetched": rate(paged.fetched),
        "streamed_bytes": measured.streamed,
        "link_share": link.map(|link| over_link / measured.busy / link / 1e9),
    }))
}

/// Of times, those that so many percent do not exceed.
fn percentiles(times: &[f64]) -> Value {
    let at = |percent: usize| percentile(times, percent);
    json!({"count": times.len(), "p50": at(50), "p90": at(90), "p99": at(99), "max": at(100)})
}

fn text(report: &Value) -> String {
    let number = |key: &str| report.pointer(key).and_then(Value::as_f64);
    let size = |key: &str| Size(number(key).unwrap_or(0.0) as u64);
    let time = |key: String| number(&key).map_or_else(|| "–".to_owned(), seconds);
    let line = |name: &str, key: &str| {
        let of = |what: &str| time(format!("/{key}/{what}"));
        vec![name.to_owned(), of("p50"), of("p90"), of("p99"), of("max")]
    };
    let lines = [
        line("arrival to first token", "first_token_s"),
        line("a token", "token_s"),
        line("resume to next token", "resume_to_token_s"),
        line("without queueing", "resume_without_queue_s"),
    ];
    let moved = |key: &str| {
        let rate = number(&format!("/{key}/gb_per_s")).unwrap_or(0.0);
        let share = number(&format!("/{key}/share_of_link"));
        let share = share.map_or_else(String::new, |s| format!(", {:.0} % of the link", s * 100.0));
        let bytes = size(&format!("/{key}/bytes"));
        format!("{bytes} at {rate:.1} GB/s{share}")
    };
    let mut text = format!(
        "{}: {} of {} sessions complete in {}, {:.1} tokens/s, {:.1} a pass\n{}\
         \x20 KV wanted     {} in all\n\
         \x20 on the device {} at most of {}\n\
         \x20 on the host   {} at most of {}\n\
         \x20 paged out     {}\n\
         \x20 paged back    {}\n",
        report["model"].as_str().unwrap_or_default(),
        report["completed"],
        report["sessions"],
        time("/seconds".into()),
        number("/tokens_per_s").unwrap_or(0.0),
        number("/tokens_per_pass").unwrap_or(0.0),
        table(&["", "half", "90 %", "99 %", "longest"], &lines),
        size("/kv_wanted_bytes"),
        size("/device/kv_peak_bytes"),
        size("/device/kv_bytes"),
        size("/host/kv_peak_bytes"),
        size("/host/kv_bytes"),
        moved("paged_out"),
        moved("paged_back"),
    );
    if number("/disk/kv_bytes") > Some(0.0) {
        let (peak, all) = (size("/disk/kv_peak_bytes"), size("/disk/kv_bytes"));
        let (out, back) = (size("/spilled/bytes"), size("/fetched/bytes"));
        text += &format!(
            "  on disk       {peak} at most of {all}; {out} went there, {back} came back\n"
        );
    }
    if number("/shared_tokens") > Some(0.0) {
        let shared = &report["shared_tokens"];
        text += &format!("  shared        {shared} tokens that others had computed\n");
    }
    for (number, why) in report["failed"].as_object().into_iter().flatten() {
        let why = why.as_str().unwrap_or_default();
        text += &format!("  FAILED        session {number}: {why}\n");
    }
    let (checked, differ) = (&report["checked"], &report["differ"]);
    if checked.as_u64().unwrap_or(0) > 0 {
        let differ = differ.as_array().map_or(0, Vec::len);
        text += &match differ {
            0 => format!("  alone         the same tokens, {checked} of {checked}\n"),
            n => format!(
                "  alone         OTHER TOKENS in {n} of {checked}: {}, from token {}\n",
                report["differ"], report["differ_from"]
            ),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::percentiles;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let expect = json!({"count": 200, "p50": 100.0, "p90": 180.0, "p99": 198.0, "max": 200.0});
        assert_eq!(percentiles(&times), expect);
        assert_eq!(percentiles(&[7.0])["p99"], 7.0);
        assert!(percentiles(&[])["p50"].is_null());
    }
}
