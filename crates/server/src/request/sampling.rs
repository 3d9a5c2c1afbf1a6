//! Sampling parameters of a request.

use std::time::{SystemTime, UNIX_EPOCH};

use djinn_engine::Sampling;
use djinn_model::Generation;
use djinn_wire::v1;

/// Sampling parameters of a request; `None` takes the model's recommendation.
#[derive(Clone, Debug, Default)]
pub struct SamplingSpec {
    /// Temperature; 0 is greedy.
    pub temperature: Option<f32>,
    /// Temperature if neither the request nor the model sets one.
    pub default_temperature: f32,
    /// Samples from this many most likely tokens.
    pub top_k: Option<usize>,
    /// Samples from the most likely tokens with probabilities that sum to this value.
    pub top_p: Option<f32>,
    /// Excludes tokens below this share of the most likely token's probability.
    pub min_p: Option<f32>,
    /// Penalty on tokens that occur in the prompt or the generated text.
    pub repetition_penalty: Option<f32>,
    /// Penalty on tokens that were generated.
    pub presence_penalty: Option<f32>,
    /// Penalty on generated tokens, multiplied by their count.
    pub frequency_penalty: Option<f32>,
    /// Values added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed; `None` draws one.
    pub seed: Option<u64>,
    /// Number of alternatives to report with each token.
    pub logprobs: Option<usize>,
}

impl SamplingSpec {
    /// Fills unset parameters from the model's recommendation.
    pub fn resolve(&self, model: &Generation) -> Sampling {
        let recommended = match model.do_sample {
            true => model.temperature,
            false => self.default_temperature,
        };
        Sampling {
            temperature: self.temperature.unwrap_or(recommended),
            top_k: self.top_k.unwrap_or(model.top_k),
            top_p: self.top_p.unwrap_or(model.top_p),
            min_p: self.min_p.unwrap_or(model.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(model.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(fresh_seed),
            logprobs: self.logprobs,
        }
    }

    /// Name of the first parameter that differs from the parameters of an existing session.
    pub fn first_difference(&self, session: &Sampling) -> Option<&'static str> {
        fn differs<T: PartialEq>(asked: Option<T>, own: T) -> bool {
            asked.is_some_and(|asked| asked != own)
        }
        let fields = [
            (
                "temperature",
                differs(self.temperature, session.temperature),
            ),
            ("top_k", differs(self.top_k, session.top_k)),
            ("top_p", differs(self.top_p, session.top_p)),
            ("min_p", differs(self.min_p, session.min_p)),
            (
                "repetition_penalty",
                differs(self.repetition_penalty, session.repetition_penalty),
            ),
            (
                "presence_penalty",
                differs(self.presence_penalty, session.presence_penalty),
            ),
            (
                "frequency_penalty",
                differs(self.frequency_penalty, session.frequency_penalty),
            ),
            ("seed", differs(self.seed, session.seed)),
            (
                "logit_bias",
                !self.logit_bias.is_empty() && self.logit_bias != session.logit_bias,
            ),
        ];
        let first = fields.into_iter().find(|(_, differs)| *differs);
        first.map(|(name, _)| name)
    }
}

impl From<v1::Sampling> for SamplingSpec {
    fn from(message: v1::Sampling) -> Self {
        let mut logit_bias: Vec<(u32, f32)> = message.logit_bias.into_iter().collect();
        logit_bias.sort_by_key(|(token, _)| *token);
        SamplingSpec {
            temperature: message.temperature,
            default_temperature: 0.0,
            top_k: message.top_k.map(|k| k as usize),
            top_p: message.top_p,
            min_p: message.min_p,
            repetition_penalty: message.repetition_penalty,
            presence_penalty: message.presence_penalty,
            frequency_penalty: message.frequency_penalty,
            logit_bias,
            seed: message.seed,
            logprobs: message.logprobs.map(|n| n as usize),
        }
    }
}

/// Draws a seed that is short enough to type again.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| u64::from(d.subsec_nanos()) ^ d.as_secs()) % 1_000_000
}
