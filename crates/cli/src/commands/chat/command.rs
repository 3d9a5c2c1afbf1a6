//! What can be typed beside what one says.

use std::{path::PathBuf, str::FromStr};

/// A line of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// What one says.
    Said(String),
    Help,
    /// The system message, or none.
    System(Option<String>),
    Save(PathBuf),
    Load(PathBuf),
    /// Another conversation that goes on from here.
    Fork,
    /// To another conversation.
    Switch(usize),
    /// The last question and its answer have not been.
    Undo,
    /// The last answer once more.
    Retry,
    Clear,
    Show,
    Tokens,
    Temperature(f32),
    TopP(f32),
    Seed(u64),
    /// Tokens of an answer at most.
    Max(usize),
    Quit,
}

/// All of them, with what they do.
pub const HELP: &[(&str, &str)] = &[
    ("/system [TEXT]", "set the system message, or none"),
    ("/undo", "take back the last question and its answer"),
    ("/retry", "answer the last question once more"),
    ("/fork", "another conversation that goes on from here"),
    ("/switch N", "go on with another conversation"),
    ("/show", "what was said so far"),
    (
        "/tokens",
        "how long that is, and how fast the last answer was",
    ),
    (
        "/temperature X",
        "0 takes the likeliest token; 1 is the model's own distribution",
    ),
    (
        "/top-p P",
        "choose among the likeliest whose probabilities reach P",
    ),
    ("/seed N", "the same seed gives the same answers"),
    ("/max N", "tokens of an answer at most"),
    ("/save FILE.json", "write the conversation"),
    ("/load FILE.json", "go on with one that was written"),
    ("/clear", "begin anew"),
    ("/help", "this"),
    ("/quit", "leave"),
];

impl FromStr for Line {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let Some(command) = line.trim_start().strip_prefix('/') else {
            return Ok(Line::Said(line.to_owned()));
        };
        let (name, rest) = command
            .split_once(char::is_whitespace)
            .unwrap_or((command, ""));
        let rest = rest.trim();
        let file = || match rest.is_empty() {
            true => Err(format!("/{name} wants a file: /{name} talk.json")),
            false => Ok(PathBuf::from(rest)),
        };
        Ok(match name.trim_end() {
            "help" | "?" => Line::Help,
            "system" => Line::System((!rest.is_empty()).then(|| rest.to_owned())),
            "save" => Line::Save(file()?),
            "load" => Line::Load(file()?),
            "fork" => Line::Fork,
            "switch" => Line::Switch(number(name, rest)?),
            "undo" => Line::Undo,
            "retry" => Line::Retry,
            "clear" => Line::Clear,
            "show" => Line::Show,
            "tokens" => Line::Tokens,
            "temperature" => Line::Temperature(number(name, rest)?),
            "top-p" => Line::TopP(number(name, rest)?),
            "seed" => Line::Seed(number(name, rest)?),
            "max" => match number(name, rest)? {
                0 => return Err("/max wants at least 1".to_owned()),
                most => Line::Max(most),
            },
            "quit" | "exit" | "q" => Line::Quit,
            other => return Err(format!("'/{other}' is not a command; /help lists them")),
        })
    }
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    let parsed = text.parse();
    parsed.map_err(|_| format!("/{name} wants a number, not '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::Line;

    #[test]
    fn lines_are_read() {
        let check = |line: &str, expect: Line| assert_eq!(line.parse(), Ok(expect), "{line}");
        check("Hello /there", Line::Said("Hello /there".into()));
        check("", Line::Said(String::new()));
        check("/system Be kind.", Line::System(Some("Be kind.".into())));
        check("/system", Line::System(None));
        check(" /temperature 0.5", Line::Temperature(0.5));
        check("/switch 2", Line::Switch(2));
        check("/save a b.json", Line::Save("a b.json".into()));
        for wrong in ["/fly", "/save", "/switch x", "/max 0", "/temperature", "/"] {
            assert!(wrong.parse::<Line>().is_err(), "{wrong}");
        }
    }
}
