//! Token counts of the prompts of a request.

use serde_json::{Value, json};

/// Number of tokens of each prompt of a request, and the number of choices of each.
pub struct PromptTokens {
    tokens: Vec<usize>,
    choices: usize,
}

impl PromptTokens {
    /// Creates the counts of prompts with `choices` choices each.
    pub fn new(tokens: impl Iterator<Item = usize>, choices: usize) -> Self {
        PromptTokens {
            tokens: tokens.collect(),
            choices,
        }
    }

    /// Number of tokens of all prompts.
    pub fn total(&self) -> usize {
        self.tokens.iter().sum()
    }

    /// Token counts of an answer, as its field `usage`. `cached` is the number of tokens that each
    /// choice found in the prefix cache. A prompt counts once, and its choices share what one of
    /// them computes, so the least number counts.
    pub fn usage(&self, cached: &[usize], completion: usize) -> Value {
        let prompts = cached.chunks(self.choices.max(1)).zip(&self.tokens);
        let least = prompts.map(|(choices, &tokens)| {
            let least = choices.iter().min().copied().unwrap_or(0);
            least.min(tokens)
        });
        let (prompt, cached) = (self.total(), least.sum::<usize>());
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": { "cached_tokens": cached },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::PromptTokens;

    #[test]
    fn a_prompt_with_several_choices_counts_once() {
        let prompts = PromptTokens::new([40, 20].into_iter(), 2);
        let usage = prompts.usage(&[32, 0, 16, 16], 9);
        assert_eq!(usage["prompt_tokens"], 60);
        assert_eq!(usage["total_tokens"], 69);
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 16);
    }
}
