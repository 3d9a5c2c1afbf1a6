//! Tokenizers: `tokenizer.json`, then `tokenizer_config.json`, then a text.

use djinn_model::Tokenizer;

use crate::{input::section, scratch};

/// Texts that every accepted tokenizer encodes.
const TEXTS: [&str; 3] = ["", "Once upon a time", " é\u{1f600}\n\n<|endoftext|>"];
/// Number of tokens that are decoded.
const TOKENS_MAX: usize = 64;

/// Reads a tokenizer, and encodes and decodes texts with an accepted one.
pub fn run(data: &[u8]) {
    let folder = scratch::folder();
    scratch::write(folder.path(), "tokenizer.json", section(data, 0));
    let config = section(data, 1);
    if !config.is_empty() {
        scratch::write(folder.path(), "tokenizer_config.json", config);
    }
    let Ok(Some(tokenizer)) = Tokenizer::read(folder.path()) else {
        return;
    };
    let own = String::from_utf8_lossy(section(data, 2)).into_owned();
    for text in TEXTS.into_iter().chain([own.as_str()]) {
        let Ok(mut tokens) = tokenizer.encode(text) else {
            continue;
        };
        tokens.truncate(TOKENS_MAX);
        decode(&tokenizer, &tokens);
    }
    decode(&tokenizer, &[0, u32::MAX, 1]);
}

fn decode(tokenizer: &Tokenizer, tokens: &[u32]) {
    for skip_special in [false, true] {
        // A decoder may be broken, but must not panic.
        let _ = tokenizer.decode(tokens, skip_special);
        let mut decoder = tokenizer.decoder(&tokens[..tokens.len() / 2], skip_special);
        for &token in &tokens[tokens.len() / 2..] {
            decoder.push(token);
            let _ = (tokenizer.token(token), tokenizer.is_special(token));
        }
        decoder.finish();
    }
}
