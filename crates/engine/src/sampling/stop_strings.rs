//! Text of generated tokens, up to a stop string.

use djinn_model::Decoder;

/// Decodes tokens into text and detects stop strings.
///
/// Text that may be the beginning of a stop string is held back until that is decided.
pub(crate) struct TextStream {
    decoder: Decoder,
    watch: StopMatcher,
}

impl TextStream {
    /// Creates a stream that starts with this decoder.
    pub fn new(decoder: Decoder, stops: Vec<String>) -> Self {
        TextStream {
            decoder,
            watch: StopMatcher::new(stops),
        }
    }

    /// Adds a token. Returns the released text, and whether a stop string was reached.
    pub fn push(&mut self, token: u32) -> (String, bool) {
        match self.decoder.push(token) {
            Some(text) => self.watch.push(&text),
            None => (String::new(), false),
        }
    }

    /// Returns the text held back at the end, and whether it reached a stop string.
    pub fn finish(&mut self) -> (String, bool) {
        let rest = self.decoder.finish().unwrap_or_default();
        let (mut text, stopped) = self.watch.push(&rest);
        if !stopped {
            text.push_str(&self.watch.rest());
        }
        (text, stopped)
    }
}

/// Finds the first of several stop strings in text that arrives in pieces.
struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

impl StopMatcher {
    fn new(stops: Vec<String>) -> Self {
        StopMatcher {
            stops: stops.into_iter().filter(|s| !s.is_empty()).collect(),
            held: String::new(),
        }
    }

    fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let found = self
            .stops
            .iter()
            .filter_map(|s| self.held.find(s.as_str()))
            .min();
        if let Some(at) = found {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.open_prefix();
        let held = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, held), false)
    }

    /// Number of bytes at the end that may begin a stop string.
    fn open_prefix(&self) -> usize {
        let longest = |stop: &String| {
            (1..stop.len())
                .rev()
                .find(|&n| stop.is_char_boundary(n) && self.held.ends_with(&stop[..n]))
                .unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }

    fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::StopMatcher;

    /// Feeds the pieces; returns what came out and whether it stopped.
    fn feed(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut watch = StopMatcher::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut out = String::new();
        for piece in pieces {
            let (text, stopped) = watch.push(piece);
            out.push_str(&text);
            if stopped {
                return (out, true);
            }
        }
        out.push_str(&watch.rest());
        (out, false)
    }

    #[test]
    fn stops_across_pieces() {
        let check = |stops: &[&str], pieces: &[&str], text: &str, stopped: bool| {
            assert_eq!(
                feed(stops, pieces),
                (text.to_owned(), stopped),
                "{stops:?} {pieces:?}"
            );
        };
        check(&[], &["a", "b"], "ab", false);
        check(&["END"], &["abcE", "N", "Dxyz"], "abc", true);
        check(&["END"], &["abcE", "N", "X"], "abcENX", false);
        check(&["b", "abc"], &["ab"], "a", true);
        check(&["é!"], &["caf", "é", "?"], "café?", false);
        check(&["aab"], &["aaa", "b"], "a", true);
        check(&[""], &["ab"], "ab", false);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(text in "[ab]{0,30}", stop in "[ab]{1,4}", cuts in prop::collection::vec(0usize..30, 0..6)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let expect = match text.find(&stop) {
                Some(at) => (text[..at].to_owned(), true),
                None => (text.clone(), false),
            };
            prop_assert_eq!(feed(&[&stop], &pieces), expect);
        }
    }
}
