//! Lines of a chat: messages and commands.

use std::{path::PathBuf, str::FromStr};

/// A line of a chat.
#[derive(Clone, Debug, PartialEq)]
pub enum ChatLine {
    /// Message to the model.
    Message(String),
    /// Lists the commands.
    Help,
    /// Sets the system message, or removes it.
    System(Option<String>),
    /// Writes the conversation to a file.
    Save(PathBuf),
    /// Reads a conversation from a file.
    Load(PathBuf),
    /// Copies the conversation and switches to the copy.
    Fork,
    /// Switches to another conversation.
    Switch(usize),
    /// Removes the last question and its answer.
    Undo,
    /// Answers the last question again.
    Retry,
    /// Removes all messages.
    Clear,
    /// Prints the conversation.
    Show,
    /// Prints the length of the conversation.
    Tokens,
    /// Sets the temperature.
    Temperature(f32),
    /// Sets the probability mass that tokens are sampled from.
    TopP(f32),
    /// Sets the seed.
    Seed(u64),
    /// Sets the longest answer in tokens.
    Max(usize),
    /// Ends the chat.
    Quit,
}

/// Usage and description of every command.
pub const HELP: &[(&str, &str)] = &[
    ("/system [TEXT]", "set the system message, or none"),
    ("/undo", "remove the last question and its answer"),
    ("/retry", "answer the last question once more"),
    ("/fork", "copy this conversation and continue the copy"),
    ("/switch N", "continue another conversation"),
    ("/show", "print this conversation"),
    (
        "/tokens",
        "print the length of this conversation and the speed of the last answer",
    ),
    (
        "/temperature X",
        "0 takes the most likely token; 1 samples from the model's distribution",
    ),
    (
        "/top-p P",
        "sample from the most likely tokens whose probabilities add up to P",
    ),
    ("/seed N", "the same seed gives the same answers"),
    ("/max N", "limit answers to N tokens"),
    ("/save FILE.json", "write this conversation to a file"),
    ("/load FILE.json", "continue a conversation from a file"),
    ("/clear", "remove all messages"),
    ("/help", "list the commands"),
    ("/quit", "end the chat"),
];

impl FromStr for ChatLine {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let Some(command) = line.trim_start().strip_prefix('/') else {
            return Ok(ChatLine::Message(line.to_owned()));
        };
        let (name, rest) = command
            .split_once(char::is_whitespace)
            .unwrap_or((command, ""));
        let rest = rest.trim();
        let file = || match rest.is_empty() {
            true => Err(format!("/{name} needs a file: /{name} talk.json")),
            false => Ok(PathBuf::from(rest)),
        };
        Ok(match name.trim_end() {
            "help" | "?" => ChatLine::Help,
            "system" => ChatLine::System((!rest.is_empty()).then(|| rest.to_owned())),
            "save" => ChatLine::Save(file()?),
            "load" => ChatLine::Load(file()?),
            "fork" => ChatLine::Fork,
            "switch" => ChatLine::Switch(number(name, rest)?),
            "undo" => ChatLine::Undo,
            "retry" => ChatLine::Retry,
            "clear" => ChatLine::Clear,
            "show" => ChatLine::Show,
            "tokens" => ChatLine::Tokens,
            "temperature" => ChatLine::Temperature(number(name, rest)?),
            "top-p" => ChatLine::TopP(number(name, rest)?),
            "seed" => ChatLine::Seed(number(name, rest)?),
            "max" => match number(name, rest)? {
                0 => return Err("/max needs a number of at least 1".to_owned()),
                most => ChatLine::Max(most),
            },
            "quit" | "exit" | "q" => ChatLine::Quit,
            other => return Err(format!("'/{other}' is not a command; /help lists them")),
        })
    }
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    let parsed = text.parse();
    parsed.map_err(|_| format!("/{name} needs a number, not '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::ChatLine;

    #[test]
    fn lines_are_read() {
        let check = |line: &str, expect: ChatLine| assert_eq!(line.parse(), Ok(expect), "{line}");
        check("Hello /there", ChatLine::Message("Hello /there".into()));
        check("", ChatLine::Message(String::new()));
        check(
            "/system Be kind.",
            ChatLine::System(Some("Be kind.".into())),
        );
        check("/system", ChatLine::System(None));
        check(" /temperature 0.5", ChatLine::Temperature(0.5));
        check("/switch 2", ChatLine::Switch(2));
        check("/save a b.json", ChatLine::Save("a b.json".into()));
        for wrong in ["/fly", "/save", "/switch x", "/max 0", "/temperature", "/"] {
            assert!(wrong.parse::<ChatLine>().is_err(), "{wrong}");
        }
    }
}
