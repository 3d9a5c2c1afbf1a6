//! More sessions than memory holds: do all come to their end, how long does it take, and are their
//! tokens those they have alone?

use std::{collections::BTreeMap, time::Instant};

use djinn_report::{Experiment, MemorySample, Run, percentile};

use super::{
    Outcome, count, limits, model_size_gb, repeat,
    talk::{Style, Told, job, positions, together},
    unlimited,
};
use crate::{
    Config, EvalError,
    baselines::{self, Reference},
    lab::{Lab, Loaded},
    sampler::Sampler,
};

const OURS: &str = "djinn";

/// Tokens by session.
pub(super) type Tokens = BTreeMap<u64, Vec<u32>>;

pub async fn run(config: &Config, lab: &Lab) -> Result<Outcome, EvalError> {
    let sessions = &config.experiment.sessions;
    let asked = limits(config, positions(config), sessions.count);
    let loaded = lab.load(OURS, asked).await?;
    let mut alone = alone(config, lab, &loaded, sessions.count).await?;
    let (warmup, runs, memory) = measure(config, lab, &loaded, OURS, &mut alone).await?;
    let vocab = loaded.dims.vocab;
    let link_ceiling = lab.status(&loaded).await?.link_ceiling;
    lab.unload(loaded).await?;

    let mut all = Vec::new();
    if config.runs("djinn_resident") {
        let loaded = lab.load("djinn_resident", unlimited(asked)).await?;
        let (warmup, runs, memory) =
            measure(config, lab, &loaded, "djinn_resident", &mut alone).await?;
        lab.unload(loaded).await?;
        let mut resident = baselines::own("djinn_resident", "Djinn, with all memory of the device");
        (resident.warmup, resident.runs, resident.memory) = (warmup, runs, memory);
        resident.sum_up();
        all.push(resident);
    }
    let more = job(config, vocab, sessions.count);
    let none = Reference::default();
    all.extend(baselines::run_all(lab, config, Experiment::MemoryPressure, &more, &none).await?);
    Ok(Outcome {
        baseline: OURS.to_owned(),
        warmup,
        runs,
        baselines: all,
        memory,
        link_ceiling: Some(link_ceiling),
        ..Outcome::default()
    })
}

/// What some of so many sessions generate with nobody beside them.
pub(super) async fn alone(
    config: &Config,
    lab: &Lab,
    loaded: &Loaded,
    all: u64,
) -> Result<Tokens, EvalError> {
    let count = config.experiment.sessions.check.min(all);
    let mut tokens = Tokens::new();
    for i in 0..count {
        let number = i * all / count;
        lab.say(&format!("session {number} alone, to compare with"));
        let told = together(config, loaded, std::iter::once(number), Style::Alone).await;
        for (number, told) in told {
            let told = told.map_err(|why| EvalError::Asked(format!("alone: {why}")))?;
            tokens.insert(number, told.tokens);
        }
    }
    Ok(tokens)
}

async fn measure(
    config: &Config,
    lab: &Lab,
    loaded: &Loaded,
    who: &str,
    known: &mut Tokens,
) -> Result<(Vec<Run>, Vec<Run>, Vec<MemorySample>), EvalError> {
    let sampler = Sampler::start(&lab.client, &loaded.told.name).await?;
    let one = async |_: u32| -> Result<Run, EvalError> {
        sampler.take_peak();
        let before = lab.status(loaded).await?;
        let begin = Instant::now();
        let numbers = 0..config.experiment.sessions.count;
        let told = together(config, loaded, numbers, Style::Kept).await;
        let total_time_ms = begin.elapsed().as_secs_f64() * 1e3;
        let after = lab.status(loaded).await?;
        let mut run = Run {
            total_time_ms,
            model_size_gb: Some(model_size_gb(lab, loaded)),
            vram_used_mb: sampler.take_peak(),
            kv_demand_gb: demand_gb(config, &after),
            ..Run::default()
        };
        count(&mut run, &before, &after)?;
        // Sessions think, and that says nothing of weights.
        run.effective_bandwidth_gbps = None;
        sum_up(&mut run, told, known);
        Ok(run)
    };
    let (warmup, runs) = repeat(config, lab, who, one).await?;
    Ok((warmup, runs, sampler.end()))
}

/// KV that all sessions would hold at their longest, in GB; not known of a server that does not say what a
/// page holds.
fn demand_gb(config: &Config, status: &djinn_client::v1::ModelStatus) -> Option<f64> {
    let page = status.device.filter(|page| page.page_tokens > 0)?;
    let pages = positions(config).div_ceil(page.page_tokens);
    Some((pages * config.experiment.sessions.count * page.page_bytes) as f64 / 1e9)
}

/// What sessions came to, put into a run. Tokens are held to those of the same session alone and in runs
/// before.
pub(super) fn sum_up(run: &mut Run, told: Vec<(u64, Result<Told, String>)>, known: &mut Tokens) {
    let (mut first, mut resumed, mut same) = (Vec::new(), Vec::new(), true);
    run.sessions = Some(told.len() as u64);
    let mut completed = 0;
    for (number, told) in told {
        match told {
            Ok(told) => {
                completed += 1;
                first.extend(told.first_ms);
                resumed.extend(told.resumed_ms);
                same &= *known.entry(number).or_insert_with(|| told.tokens.clone()) == told.tokens;
            }
            Err(why) => run.failures.push(format!("session {number}: {why}")),
        }
    }
    run.sessions_completed = Some(completed);
    run.tokens_match = Some(same && completed > 0);
    run.first_token_ms = percentile(&first, 50);
    run.resume_p50_ms = percentile(&resumed, 50);
    run.resume_p99_ms = percentile(&resumed, 99);
}

#[cfg(test)]
mod tests {
    use djinn_report::Run;

    use super::{Tokens, Told, sum_up};

    #[test]
    fn a_session_that_is_lost_or_says_something_else_is_seen() {
        let told = |tokens: &[u32]| {
            Ok(Told {
                tokens: tokens.to_vec(),
                ..Told::default()
            })
        };
        let mut known = Tokens::from([(0, vec![1, 2])]);
        let mut run = Run::default();
        sum_up(
            &mut run,
            vec![(0, told(&[1, 2])), (1, told(&[3]))],
            &mut known,
        );
        assert_eq!((run.sessions, run.sessions_completed), (Some(2), Some(2)));
        assert_eq!(run.tokens_match, Some(true));
        let mut run = Run::default();
        sum_up(
            &mut run,
            vec![(0, told(&[1, 2])), (1, told(&[4]))],
            &mut known,
        );
        assert_eq!(
            run.tokens_match,
            Some(false),
            "other than in the run before"
        );
        let mut run = Run::default();
        let lost = Err("no pages".to_owned());
        sum_up(&mut run, vec![(0, told(&[1, 2])), (1, lost)], &mut known);
        assert_eq!((run.sessions, run.sessions_completed), (Some(2), Some(1)));
        assert_eq!(run.failures, ["session 1: no pages"]);
    }
}
