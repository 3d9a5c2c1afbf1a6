//! Benchmark `sessions`: many sessions in less memory than their KV takes.

mod load;
mod options;
mod report;

use djinn_engine::{Blueprint, Request, Settings};
use djinn_model::{Model, program::Program};
use serde_json::json;

use self::{
    load::{FollowUp, SessionMeasurement, SessionPlan, run},
    report::{report, text},
};
use crate::{
    BenchError, BenchReport, BenchTarget,
    random::SplitMix,
    sample::{check_context, some_tokens},
};

pub use options::SessionLoadOptions;

/// Longest time in seconds that a session may think, and that arrivals may take.
const LONGEST: f64 = 1e6;

/// Runs many sessions in less memory than their KV takes.
pub fn sessions(
    options: &SessionLoadOptions,
    target: &BenchTarget<'_>,
) -> Result<BenchReport, BenchError> {
    let model = target.host.open()?;
    let plans = draw_plans(options, &model.program)?;
    let settings = settings(options, target.rows, &model, &plans)?;
    let wanted = settings.pages;
    let kv = &options.kv;
    let blueprint = Blueprint::for_sessions(&model, target.backend, settings, target.memory, kv)?;
    if kv.spill.is_some() && blueprint.disk_page_bytes() == 0 {
        target
            .host
            .note("note: no page needs to go to disk, so --spill is not used");
    }
    let mut engine = target.host.load(model, blueprint)?;
    let measured = run(&mut engine, &plans, options.announce, target.host)?;
    let paged = engine.paging_stats()?;
    let mut report = report(options, target, &engine, wanted, &measured, paged)?;
    drop(engine);
    let differ = check(options, target, &plans, &measured)?;
    report["checked"] = json!(options.check.min(plans.len()));
    let (numbers, from): (Vec<usize>, Vec<usize>) = differ.iter().copied().unzip();
    (report["differ"], report["differ_from"]) = (json!(numbers), json!(from));
    let complete = measured.generated.len() == plans.len();
    Ok(BenchReport {
        passed: complete && differ.is_empty(),
        ..BenchReport::new(text(&report), report)
    })
}

/// Draws the lengths and times of all sessions.
fn draw_plans(
    options: &SessionLoadOptions,
    program: &Program,
) -> Result<Vec<SessionPlan>, BenchError> {
    if options.prompt.from == 0 || options.output.from == 0 {
        return Err(BenchError::Option {
            option: "--prompt and --output",
            limit: "at least one token".to_owned(),
        });
    }
    if options.think.from < 0.0 || options.think.to > LONGEST {
        return Err(BenchError::Option {
            option: "--think",
            limit: "from 0 to a million seconds".to_owned(),
        });
    }
    let longest = options.output.to.saturating_add(options.answer.to);
    let longest = options.turns.saturating_mul(longest);
    let longest = longest.saturating_add(options.prefix);
    check_context(program, longest.saturating_add(options.prompt.to))?;
    let mut random = SplitMix(options.seed);
    let mut clock = 0.0;
    let one = |i: usize| {
        if let Some(rate) = options.arrivals {
            clock = (clock - (1.0 - random.uniform()).ln() / rate).min(LONGEST);
        }
        let prompt = random.count(options.prompt);
        let mut tokens = some_tokens(program, options.prefix, options.sessions);
        tokens.extend(some_tokens(program, prompt, i));
        let request = Request {
            tokens,
            max_tokens: random.count(options.output),
            keep: options.turns > 1,
            ..Request::default()
        };
        let mut turn = |turn: usize| FollowUp {
            think: random.time(options.think),
            answer: some_tokens(
                program,
                random.count(options.answer),
                i + turn * options.sessions,
            ),
            output: random.count(options.output),
        };
        SessionPlan {
            turns: (1..options.turns).map(&mut turn).collect(),
            request,
            arrives: clock,
        }
    };
    Ok((0..options.sessions).map(one).collect())
}

/// Layout of an engine for all sessions.
fn settings(
    options: &SessionLoadOptions,
    rows: usize,
    model: &Model,
    plans: &[SessionPlan],
) -> Result<Settings, BenchError> {
    let requests: Vec<Request> = plans.iter().map(|plan| plan.request.clone()).collect();
    let all = Settings::for_requests(model, &requests, rows)?;
    let most = options.batch.min(plans.len());
    let context = plans.iter().map(SessionPlan::tokens).max().unwrap_or(1);
    let pages = |plan: &SessionPlan| plan.tokens().div_ceil(all.page_tokens);
    Ok(Settings {
        sessions: most,
        rows: rows.max(most),
        logit_rows: most,
        context,
        // A kept session reserves the full context.
        pages: match options.turns {
            1 => plans.iter().map(pages).sum(),
            _ => plans.len() * context.div_ceil(all.page_tokens),
        },
        ..all
    })
}

/// Runs some sessions again, each alone. Returns the number of each session whose tokens differ, with
/// the index of the first different token.
fn check(
    options: &SessionLoadOptions,
    target: &BenchTarget<'_>,
    plans: &[SessionPlan],
    measured: &SessionMeasurement,
) -> Result<Vec<(usize, usize)>, BenchError> {
    let count = options.check.min(plans.len());
    if count == 0 {
        return Ok(Vec::new());
    }
    let model = target.host.open()?;
    let numbers: Vec<usize> = (0..count).map(|i| i * plans.len() / count).collect();
    let positions = |&number: &usize| plans[number].tokens();
    let context = numbers.iter().map(positions).max().unwrap_or(1);
    let settings = Settings::for_sessions(&model.program, 1, context, target.rows)?;
    let blueprint = Blueprint::draw(&model, target.backend, settings, target.memory)?;
    let mut engine = target.host.load(model, blueprint)?;
    let mut differ = Vec::new();
    for number in numbers {
        let plan = &plans[number];
        let id = engine.open(plan.request.clone())?;
        let mut turns = plan.turns.iter();
        loop {
            while !engine.is_idle() {
                engine.step()?;
            }
            let Some(turn) = turns.next() else { break };
            engine
                .any_session(id)?
                .append(&turn.answer, turn.output, &[])?;
        }
        let alone = engine.close(id).expect("the session is open").generated;
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
