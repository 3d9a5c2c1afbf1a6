//! What can be typed.

use std::str::FromStr;

/// A command of the debugger.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Help,
    Break(String),
    Breaks,
    /// The breakpoint with this number, or all.
    Delete(Option<usize>),
    Continue,
    StepHook,
    StepBlock,
    Until(String),
    Print(What),
    Edit(String),
    Branch(usize),
    Sessions,
    Switch(u64),
    Undo,
    Save(String),
    Quit,
}

/// What can be shown.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// What is at the hook: norms and the largest elements.
    Here,
    Norms,
    /// So many of the largest elements of the last row.
    Largest(usize),
    Attention {
        block: usize,
        head: usize,
    },
    Lens,
    Tokens,
}

/// All of them, with what they do: what `help` prints and the terminal completes.
pub const HELP: &[(&str, &str)] = &[
    (
        "break HOOK[@POSITIONS][,step=N][,token=ID][,norm>X]",
        "stop there; * stands for any text",
    ),
    ("breaks", "list breakpoints"),
    ("delete N|all", "remove one, or all"),
    (
        "run, continue",
        "go on to the next breakpoint, or to the end",
    ),
    ("step", "go on to the next hook"),
    ("next", "go on to the end of this block, or of the next"),
    ("until HOOK", "go on to that hook"),
    (
        "print",
        "what is here: norms by position, the largest elements",
    ),
    ("print norms", "the length of every row"),
    ("print largest N", "the largest elements of the last row"),
    (
        "print attention BLOCK HEAD",
        "where the last token looks, without the changes made here",
    ),
    (
        "print lens",
        "what would be said behind every block, without the changes made here",
    ),
    ("print tokens", "what was read and generated"),
    (
        "edit CHANGE[@POSITIONS]",
        "change what is here before it goes on: scale=0.9, zero, clamp=-1..1, add=FILE*2, replace=FILE, …",
    ),
    (
        "branch [N]",
        "so many sessions that go on from here beside this one",
    ),
    ("sessions", "list them"),
    ("switch ID", "go on with another"),
    ("undo", "back to where it stopped before"),
    ("save FILE.safetensors", "write what is here"),
    ("help", "this"),
    ("quit", "leave"),
];

impl FromStr for Command {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let line = line.trim();
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let need = |what: &str| match rest.is_empty() {
            true => Err(format!("{name} wants {what}")),
            false => Ok(rest.to_owned()),
        };
        let number = |text: &str| {
            let parsed = text.parse::<usize>();
            parsed.map_err(|_| format!("'{text}' is not a number"))
        };
        Ok(match name {
            "help" | "h" | "?" => Command::Help,
            "break" | "b" => Command::Break(need("a hook: break blocks.3.hook_resid_post")?),
            "breaks" => Command::Breaks,
            "delete" | "d" => match need("a number, or all")?.as_str() {
                "all" => Command::Delete(None),
                which => Command::Delete(Some(number(which)?)),
            },
            "run" | "r" | "continue" | "c" => Command::Continue,
            "step" | "s" => Command::StepHook,
            "next" | "n" => Command::StepBlock,
            "until" | "u" => Command::Until(need("a hook")?),
            "print" | "p" => Command::Print(parse_what(rest)?),
            "edit" | "e" => Command::Edit(need("a change: edit scale=0.9@-1")?),
            "branch" => match rest {
                "" => Command::Branch(1),
                count => Command::Branch(number(count)?.max(1)),
            },
            "sessions" => Command::Sessions,
            "switch" => Command::Switch(number(&need("a session's number")?)? as u64),
            "undo" => Command::Undo,
            "save" => Command::Save(need("a file: save here.safetensors")?),
            "quit" | "q" | "exit" => Command::Quit,
            other => return Err(format!("'{other}' is not a command; help lists them")),
        })
    }
}

fn parse_what(text: &str) -> Result<What, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |text: &str| {
        let parsed = text.parse::<usize>();
        parsed.map_err(|_| format!("'{text}' is not a number"))
    };
    Ok(match words[..] {
        [] => What::Here,
        ["norms"] => What::Norms,
        ["largest"] => What::Largest(10),
        ["largest", n] => What::Largest(number(n)?.max(1)),
        ["attention", block, head] => What::Attention {
            block: number(block)?,
            head: number(head)?,
        },
        ["attention", ..] => return Err("print attention wants a block and a head".to_owned()),
        ["lens"] => What::Lens,
        ["tokens"] => What::Tokens,
        _ => {
            return Err(format!(
                "'{text}' cannot be printed (norms, largest N, attention BLOCK HEAD, lens, tokens)"
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{Command, What};

    #[test]
    fn commands_are_read() {
        let check = |line: &str, expect: Command| assert_eq!(line.parse(), Ok(expect), "{line}");
        check(" c ", Command::Continue);
        check(
            "b blocks.*.x@-1,norm>2",
            Command::Break("blocks.*.x@-1,norm>2".into()),
        );
        check("print", Command::Print(What::Here));
        check(
            "p attention 3 1",
            Command::Print(What::Attention { block: 3, head: 1 }),
        );
        check("branch 4", Command::Branch(4));
        check("delete all", Command::Delete(None));
        for bad in [
            "",
            "fly",
            "break",
            "print attention",
            "switch x",
            "p flowers",
        ] {
            assert!(bad.parse::<Command>().is_err(), "{bad}");
        }
    }
}
