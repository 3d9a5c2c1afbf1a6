//! Log-probabilities, in the two shapes that OpenAI's clients know.

use djinn_engine::Logprob;
use serde_json::{Map, Value, json};

use crate::host::Words;

/// Whether and how they are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Parallel lists, as completions have them.
    Lists,
    /// A list of tokens, as chats have it.
    Content,
}

/// One token as chats tell it.
fn entry(words: &Words, logprob: &Logprob) -> Value {
    let text = words.piece(logprob.token);
    json!({ "token": text, "logprob": logprob.logprob, "bytes": text.as_bytes() })
}

/// Those of some tokens; each begins with the token itself. Text of completions begins at `offset`.
pub fn told(shape: Shape, words: &Words, tokens: &[Vec<Logprob>], mut offset: usize) -> Value {
    if shape == Shape::Content {
        let one = |all: &Vec<Logprob>| {
            let mut token = entry(words, &all[0]);
            token["top_logprobs"] = all[1..].iter().map(|l| entry(words, l)).collect();
            token
        };
        let content: Vec<Value> = tokens
            .iter()
            .filter(|all| !all.is_empty())
            .map(one)
            .collect();
        return json!({ "content": content, "refusal": null });
    }
    let (mut texts, mut numbers, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for all in tokens.iter().filter(|all| !all.is_empty()) {
        let text = words.piece(all[0].token);
        let top: Map<String, Value> = all[1..]
            .iter()
            .map(|l| (words.piece(l.token), l.logprob.into()))
            .collect();
        offsets.push(offset);
        offset += text.chars().count();
        texts.push(text);
        numbers.push(all[0].logprob);
        tops.push(Value::Object(top));
    }
    json!({ "tokens": texts, "token_logprobs": numbers, "top_logprobs": tops, "text_offset": offsets })
}
