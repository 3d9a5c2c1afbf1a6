//! The sampler: from logits to a token.

use std::collections::{HashMap, HashSet};

use djinn_device::Draw;
use serde::{Deserialize, Serialize};

use crate::EngineError;

/// Sampling parameters of a session.
///
/// The parameters apply in this order: logit bias, repetition penalty, presence and frequency penalty,
/// temperature, top-k, top-p, min-p. Temperature 0 takes the most likely token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Temperature: 0 is greedy, 1 keeps the model's distribution.
    pub temperature: f32,
    /// Number of most likely tokens to keep; 0 keeps all.
    pub top_k: usize,
    /// Sum of probabilities of the most likely tokens to keep; 1 keeps all.
    pub top_p: f32,
    /// Minimum probability relative to the most likely token; 0 drops none.
    pub min_p: f32,
    /// Divisor of the logits of tokens that occurred, prompt included; 1 has no effect.
    pub repetition_penalty: f32,
    /// Penalty on the logits of tokens that were generated.
    pub presence_penalty: f32,
    /// Penalty on the logits of generated tokens, once for each occurrence.
    #[serde(default)]
    pub frequency_penalty: f32,
    /// Values added to the logits of some tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Random seed; the same seed gives the same tokens.
    pub seed: u64,
    /// Number of alternatives to report with each token; `None` reports no log-probabilities.
    pub logprobs: Option<usize>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

impl Sampling {
    /// Refuses parameters that are out of range.
    pub fn check(&self, vocab: usize) -> Result<(), EngineError> {
        let check = |name, value: f32, ok: bool, expect| {
            if ok && value.is_finite() {
                Ok(())
            } else {
                Err(EngineError::Sampling {
                    name,
                    value: value.to_string(),
                    expect,
                })
            }
        };
        let t = self.temperature;
        check("temperature", t, t >= 0.0, "0 (greedy) or more")?;
        let p = self.top_p;
        check("top-p", p, p > 0.0 && p <= 1.0, "above 0 and at most 1")?;
        let m = self.min_p;
        check("min-p", m, (0.0..=1.0).contains(&m), "between 0 and 1")?;
        let r = self.repetition_penalty;
        check("repetition-penalty", r, r > 0.0, "above 0 (1 does nothing)")?;
        let s = self.presence_penalty;
        check("presence-penalty", s, true, "a finite number")?;
        let f = self.frequency_penalty;
        check("frequency-penalty", f, true, "a finite number")?;
        for &(token, bias) in &self.logit_bias {
            check("logit-bias", bias, true, "a finite number")?;
            if token as usize >= vocab {
                return Err(EngineError::Sampling {
                    name: "logit-bias",
                    value: token.to_string(),
                    expect: "a token id of the vocabulary",
                });
            }
        }
        Ok(())
    }

    /// Whether the device can sample by itself. Penalties and bias change the logits first, and
    /// log-probabilities need all of them, so these run on the host.
    pub(crate) fn needs_logits_alone(&self) -> bool {
        self.repetition_penalty == 1.0
            && self.presence_penalty == 0.0
            && self.frequency_penalty == 0.0
            && self.logit_bias.is_empty()
            && self.logprobs.is_none()
    }

    /// Returns the parameters and the random number for token number `step`.
    pub(crate) fn draw(&self, step: usize) -> Draw {
        Draw {
            temperature: self.temperature,
            top_k: u32::try_from(self.top_k).unwrap_or(u32::MAX),
            top_p: self.top_p,
            min_p: self.min_p,
            at: random(self.seed, step as u64),
        }
    }
}

/// A token and its log-probability under the model, before penalties, bias and temperature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprob {
    /// Token id.
    pub token: u32,
    /// Natural logarithm of the probability.
    pub logprob: f32,
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampledToken {
    pub token: u32,
    /// The sampled token, then the most likely ones, if requested.
    pub logprobs: Vec<Logprob>,
}

/// Samples the token after `prompt + generated`. Returns `None` if the logits contain NaN.
pub(crate) fn choose(
    sampling: &Sampling,
    logits: &[f32],
    prompt: &[u32],
    generated: &[u32],
) -> Option<SampledToken> {
    let adjusted = adjust(sampling, logits, prompt, generated);
    let token = sampling.draw(generated.len()).choose(&adjusted)?;
    let logprobs = match sampling.logprobs {
        Some(top) => report(logits, token, top),
        None => Vec::new(),
    };
    Some(SampledToken { token, logprobs })
}

/// Applies bias and penalties.
fn adjust(sampling: &Sampling, logits: &[f32], prompt: &[u32], generated: &[u32]) -> Vec<f32> {
    let mut logits = logits.to_vec();
    for &(token, bias) in &sampling.logit_bias {
        logits[token as usize] += bias;
    }
    if sampling.repetition_penalty != 1.0 {
        let seen: HashSet<u32> = prompt.iter().chain(generated).copied().collect();
        for token in seen {
            let x = &mut logits[token as usize];
            // Makes the token less likely, whatever the sign of its logit.
            *x = if *x > 0.0 {
                *x / sampling.repetition_penalty
            } else {
                *x * sampling.repetition_penalty
            };
        }
    }
    if sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0 {
        let mut seen: HashMap<u32, u32> = HashMap::new();
        for &token in generated {
            *seen.entry(token).or_default() += 1;
        }
        for (token, times) in seen {
            let penalty = sampling.presence_penalty + sampling.frequency_penalty * times as f32;
            logits[token as usize] -= penalty;
        }
    }
    logits
}

/// Returns a random number that depends on seed and step alone, so that neither other sessions
/// in the batch nor a pause can change it.
fn random(seed: u64, step: u64) -> u64 {
    let mut x = seed ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2 {
        // The finaliser of splitmix64.
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
    }
    x
}

/// Returns the sampled token and the `top` most likely ones with their log-probabilities.
fn report(logits: &[f32], token: u32, top: usize) -> Vec<Logprob> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - largest).exp()).sum();
    let logprob = |token: u32| Logprob {
        token,
        logprob: (f64::from(logits[token as usize] - largest) - sum.ln()) as f32,
    };
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let top = top.min(order.len());
    let by_logit = |a: &u32, b: &u32| {
        let (x, y) = (logits[*a as usize], logits[*b as usize]);
        y.total_cmp(&x).then(a.cmp(b))
    };
    if top > 0 && top < order.len() {
        order.select_nth_unstable_by(top - 1, by_logit);
    }
    order.truncate(top);
    order.sort_unstable_by(by_logit);
    std::iter::once(token).chain(order).map(logprob).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Sampling, choose};

    fn warm(change: impl FnOnce(&mut Sampling)) -> Sampling {
        let mut sampling = Sampling {
            temperature: 1.0,
            ..Sampling::default()
        };
        change(&mut sampling);
        sampling
    }

    #[test]
    fn penalties_and_bias() {
        let logits = [1.0, 2.0, -1.0, 1.9];
        let check = |sampling: &Sampling, prompt: &[u32], generated: &[u32], expect: u32| {
            let choice = choose(sampling, &logits, prompt, generated).unwrap();
            assert_eq!(choice.token, expect, "{sampling:?}");
        };
        let greedy = |change: fn(&mut Sampling)| {
            let mut sampling = Sampling::default();
            change(&mut sampling);
            sampling
        };
        check(&greedy(|_| {}), &[], &[], 1);
        check(&greedy(|s| s.logit_bias = vec![(2, 5.0)]), &[], &[], 2);
        check(&greedy(|s| s.repetition_penalty = 1.5), &[1], &[], 3);
        check(&greedy(|s| s.repetition_penalty = 1.5), &[1], &[3], 1);
        check(&greedy(|s| s.presence_penalty = 0.5), &[1], &[], 1);
        check(&greedy(|s| s.presence_penalty = 0.5), &[], &[1], 3);
        check(&greedy(|s| s.frequency_penalty = 0.08), &[1], &[1], 1);
        check(&greedy(|s| s.frequency_penalty = 0.08), &[], &[1, 1], 3);
    }

    #[test]
    fn not_a_number_is_refused() {
        assert_eq!(
            choose(&Sampling::default(), &[0.0, f32::NAN], &[], &[]),
            None
        );
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.0f32, 1.0, 2.0];
        let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let mut counts = [0usize; 3];
        let n = 20_000;
        for seed in 0..n {
            let sampling = warm(|s| s.seed = seed);
            counts[choose(&sampling, &logits, &[], &[]).unwrap().token as usize] += 1;
        }
        for (token, &count) in counts.iter().enumerate() {
            let expect = f64::from(logits[token]).exp() / total;
            let found = count as f64 / n as f64;
            assert!((expect - found).abs() < 0.015, "{token}: {expect} {found}");
        }
    }

    #[test]
    fn logprobs_are_the_models_own() {
        let sampling = Sampling {
            logprobs: Some(2),
            logit_bias: vec![(0, 100.0)],
            ..Sampling::default()
        };
        let choice = choose(&sampling, &[0.0, (3.0f32).ln()], &[], &[]).unwrap();
        let found: Vec<(u32, f32)> = choice
            .logprobs
            .iter()
            .map(|l| (l.token, l.logprob.exp()))
            .collect();
        let expect = [(0, 0.25), (1, 0.75), (0, 0.25)];
        assert_eq!(found.len(), expect.len());
        for ((t, p), (et, ep)) in found.iter().zip(expect) {
            assert_eq!(*t, et);
            assert!((p - ep).abs() < 1e-6);
        }
    }

    proptest! {
        #[test]
        fn always_chooses_something_kept(
            logits in prop::collection::vec(prop_oneof![-50f32..50.0, Just(f32::NEG_INFINITY)], 1..40),
            temperature in 0.0f32..3.0, top_k in 0usize..50, top_p in 0.01f32..=1.0,
            min_p in 0.0f32..=1.0, seed: u64,
        ) {
            let sampling = Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::default() };
            let token = choose(&sampling, &logits, &[], &[]).unwrap().token as usize;
            prop_assert!(token < logits.len());
            let any_finite = logits.iter().any(|x| x.is_finite());
            prop_assert!(!any_finite || logits[token].is_finite());
        }
    }
}
