//! Log-probabilities in the two JSON formats of OpenAI's API.

use djinn_engine::Logprob;
use serde_json::{Map, Value, json};

use crate::engine_thread::ChatTokenizer;

/// Log-probabilities in the format of completions: parallel lists. The text of the first token
/// begins at character `offset`. Each element of `tokens` begins with the generated token itself.
pub fn completion_logprobs(
    tokenizer: &ChatTokenizer,
    tokens: &[Vec<Logprob>],
    mut offset: usize,
) -> Value {
    let (mut texts, mut numbers, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for all in tokens.iter().filter(|all| !all.is_empty()) {
        let text = tokenizer.piece(all[0].token);
        let top: Map<String, Value> = all[1..]
            .iter()
            .map(|l| (tokenizer.piece(l.token), l.logprob.into()))
            .collect();
        offsets.push(offset);
        offset += text.chars().count();
        texts.push(text);
        numbers.push(all[0].logprob);
        tops.push(Value::Object(top));
    }
    json!({ "tokens": texts, "token_logprobs": numbers, "top_logprobs": tops, "text_offset": offsets })
}

/// Log-probabilities in the format of chats: a list of tokens. Each element of `tokens` begins
/// with the generated token itself.
pub fn chat_logprobs(tokenizer: &ChatTokenizer, tokens: &[Vec<Logprob>]) -> Value {
    let entry = |logprob: &Logprob| {
        let text = tokenizer.piece(logprob.token);
        json!({ "token": text, "logprob": logprob.logprob, "bytes": text.as_bytes() })
    };
    let token = |all: &Vec<Logprob>| {
        let mut token = entry(&all[0]);
        token["top_logprobs"] = all[1..].iter().map(entry).collect();
        token
    };
    let tokens = tokens.iter().filter(|all| !all.is_empty());
    let content: Vec<Value> = tokens.map(token).collect();
    json!({ "content": content, "refusal": null })
}
