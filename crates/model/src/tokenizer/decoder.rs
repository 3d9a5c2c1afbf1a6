//! Incremental decoding of tokens to text.

use super::Tokenizer;

impl Tokenizer {
    /// Returns a decoder for tokens that follow `context`, which may be empty.
    pub fn decoder(&self, context: &[u32], skip_special: bool) -> Decoder {
        Decoder::new(self.clone(), context, skip_special)
    }
}

/// Number of prompt tokens that the decoder keeps. The text of a token depends on the tokens
/// before it, but not on distant ones.
const CONTEXT_TOKENS: usize = 8;
/// Number of pending tokens at which an incomplete character becomes U+FFFD. A character has at
/// most four bytes, so at most four tokens.
const PENDING_TOKENS_MAX: usize = 8;

/// Incremental decoder of generated tokens. The text returned so far is always a prefix of
/// [`Tokenizer::decode`] of all tokens.
pub struct Decoder {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Last tokens with returned text, followed by pending tokens of an incomplete character.
    window: Vec<u32>,
    /// Number of tokens in the window with returned text.
    done: usize,
    /// Text of the first `done` tokens of the window.
    prefix: String,
}

impl Decoder {
    fn new(tokenizer: Tokenizer, context: &[u32], skip_special: bool) -> Self {
        let mut decoder = Decoder {
            tokenizer,
            skip_special,
            window: Vec::new(),
            done: 0,
            prefix: String::new(),
        };
        let last = context.iter().copied().filter(|&id| !decoder.skips(id));
        decoder.window = last.rev().take(CONTEXT_TOKENS).collect();
        decoder.window.reverse();
        decoder.mark_returned();
        // A window that starts inside a character does not decode correctly.
        while decoder.prefix.starts_with(char::REPLACEMENT_CHARACTER) {
            decoder.window.remove(0);
            decoder.mark_returned();
        }
        decoder
    }

    fn skips(&self, id: u32) -> bool {
        self.skip_special && self.tokenizer.is_special(id)
    }

    /// Decodes tokens. Decoding fails only if the tokenizer's decoder is broken; the text is then
    /// empty.
    fn text_of(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, false).unwrap_or_default()
    }

    /// Adds a token; returns the text that the token completes, if any.
    pub fn push(&mut self, id: u32) -> Option<String> {
        if self.skips(id) {
            return None;
        }
        self.window.push(id);
        let text = self.text_of(&self.window);
        let pending = self.window.len() - self.done;
        let broken = text.ends_with(char::REPLACEMENT_CHARACTER);
        if broken && pending < PENDING_TOKENS_MAX {
            return None;
        }
        self.advance(&text)
    }

    /// Returns the text of the pending tokens. An incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> Option<String> {
        let text = self.text_of(&self.window);
        self.advance(&text)
    }

    /// Returns the part of `text`, the text of the window, that no earlier call returned.
    fn advance(&mut self, text: &str) -> Option<String> {
        let new = match text.strip_prefix(self.prefix.as_str()) {
            Some(new) => new.to_owned(),
            // An invalid byte sequence that became U+FFFD may decode differently now.
            None => self.text_of(&self.window[self.done..]),
        };
        if new.is_empty() {
            return None;
        }
        self.window.drain(..self.done);
        self.mark_returned();
        Some(new)
    }

    /// Marks the text of the whole window as returned.
    fn mark_returned(&mut self) {
        self.prefix = self.text_of(&self.window);
        self.done = self.window.len();
    }
}
