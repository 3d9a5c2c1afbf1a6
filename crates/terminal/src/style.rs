//! Colours and lists on a terminal.

use std::io::IsTerminal;

/// Colour of a verdict.
#[derive(Clone, Copy, Debug)]
pub enum Colour {
    /// A check passed.
    Green,
    /// A check warns.
    Yellow,
    /// A check failed.
    Red,
}

/// Colours a word if standard output is a terminal and `NO_COLOR` is not set.
pub fn coloured(word: &str, colour: Colour) -> String {
    let has_colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    if !has_colour {
        return word.to_owned();
    }
    let code = match colour {
        Colour::Green => 32,
        Colour::Yellow => 33,
        Colour::Red => 31,
    };
    format!("\x1b[{code}m{word}\x1b[0m")
}

/// Token ids separated by commas, as `--tokens` takes them.
pub fn id_list(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}
