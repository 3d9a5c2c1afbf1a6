//! Commands of the debugger.

use std::str::FromStr;

/// A command of the debugger.
#[derive(Clone, Debug, PartialEq)]
pub enum DebugCommand {
    /// Lists the commands.
    Help,
    /// Adds a breakpoint.
    Break(String),
    /// Lists the breakpoints.
    Breaks,
    /// Removes the breakpoint with this number, or all.
    Delete(Option<usize>),
    /// Runs to the next breakpoint.
    Continue,
    /// Runs to the next hook.
    StepHook,
    /// Runs to the end of a block.
    StepBlock,
    /// Runs to this hook.
    Until(String),
    /// Prints something about the paused session.
    Print(Printed),
    /// Edits the activation when the session resumes.
    Edit(String),
    /// Branches the session this many times.
    Branch(usize),
    /// Lists the sessions.
    Sessions,
    /// Switches to another session.
    Switch(u64),
    /// Returns to the previous pause.
    Undo,
    /// Writes the activation to a file.
    Save(String),
    /// Ends the debugger.
    Quit,
}

/// Subject of the command `print`.
#[derive(Clone, Debug, PartialEq)]
pub enum Printed {
    /// Activation at the hook: norms and largest elements.
    Activation,
    /// Norm of every row of the activation.
    Norms,
    /// Largest elements of the activation's last row.
    Largest(usize),
    /// Attention pattern of the last token.
    Attention {
        /// Number of the block.
        block: usize,
        /// Number of the head.
        head: usize,
    },
    /// Logit lens after every block.
    Lens,
    /// Tokens of the session.
    Tokens,
}

/// Usage and description of every command: printed by `help`, completed by the terminal.
pub const HELP: &[(&str, &str)] = &[
    (
        "break HOOK[@POSITIONS][,step=N][,token=ID][,norm>X]",
        "add a breakpoint; * matches any text",
    ),
    ("breaks", "list breakpoints"),
    ("delete N|all", "remove a breakpoint, or all"),
    ("run, continue", "run to the next breakpoint, or to the end"),
    ("step", "run to the next hook"),
    ("next", "run to the end of this block, or of the next one"),
    ("until HOOK", "run to that hook"),
    (
        "print",
        "norms and largest elements of the activation at this hook",
    ),
    ("print norms", "norm of every row of the activation"),
    (
        "print largest N",
        "N largest elements of the activation's last row",
    ),
    (
        "print attention BLOCK HEAD",
        "attention pattern of the last token, without edits made here",
    ),
    (
        "print lens",
        "most likely tokens after every block, without edits made here",
    ),
    ("print tokens", "tokens of the prompt and generated tokens"),
    (
        "edit CHANGE[@POSITIONS]",
        "edit the activation when the session resumes: scale=0.9, zero, clamp=-1..1, add=FILE*2, replace=FILE, …",
    ),
    (
        "branch [N]",
        "open N copies of the session, paused at this hook",
    ),
    ("sessions", "list sessions"),
    ("switch ID", "switch to another session"),
    ("undo", "return to the previous pause"),
    ("save FILE.safetensors", "write the activation at this hook"),
    ("help", "list the commands"),
    ("quit", "end the debugger"),
];

impl FromStr for DebugCommand {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let line = line.trim();
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let need = |what: &str| match rest.is_empty() {
            true => Err(format!("{name} needs {what}")),
            false => Ok(rest.to_owned()),
        };
        let number = |text: &str| {
            let parsed = text.parse::<usize>();
            parsed.map_err(|_| format!("'{text}' is not a number"))
        };
        Ok(match name {
            "help" | "h" | "?" => DebugCommand::Help,
            "break" | "b" => DebugCommand::Break(need("a hook: break blocks.3.hook_resid_post")?),
            "breaks" => DebugCommand::Breaks,
            "delete" | "d" => match need("a number, or all")?.as_str() {
                "all" => DebugCommand::Delete(None),
                which => DebugCommand::Delete(Some(number(which)?)),
            },
            "run" | "r" | "continue" | "c" => DebugCommand::Continue,
            "step" | "s" => DebugCommand::StepHook,
            "next" | "n" => DebugCommand::StepBlock,
            "until" | "u" => DebugCommand::Until(need("a hook")?),
            "print" | "p" => DebugCommand::Print(parse_printed(rest)?),
            "edit" | "e" => DebugCommand::Edit(need("a change: edit scale=0.9@-1")?),
            "branch" => match rest {
                "" => DebugCommand::Branch(1),
                count => DebugCommand::Branch(number(count)?.max(1)),
            },
            "sessions" => DebugCommand::Sessions,
            "switch" => DebugCommand::Switch(number(&need("a session's number")?)? as u64),
            "undo" => DebugCommand::Undo,
            "save" => DebugCommand::Save(need("a file: save here.safetensors")?),
            "quit" | "q" | "exit" => DebugCommand::Quit,
            other => return Err(format!("'{other}' is not a command; help lists them")),
        })
    }
}

fn parse_printed(text: &str) -> Result<Printed, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |text: &str| {
        let parsed = text.parse::<usize>();
        parsed.map_err(|_| format!("'{text}' is not a number"))
    };
    Ok(match words[..] {
        [] => Printed::Activation,
        ["norms"] => Printed::Norms,
        ["largest"] => Printed::Largest(10),
        ["largest", n] => Printed::Largest(number(n)?.max(1)),
        ["attention", block, head] => Printed::Attention {
            block: number(block)?,
            head: number(head)?,
        },
        ["attention", ..] => return Err("print attention needs a block and a head".to_owned()),
        ["lens"] => Printed::Lens,
        ["tokens"] => Printed::Tokens,
        _ => {
            return Err(format!(
                "'{text}' cannot be printed; use norms, largest N, attention BLOCK HEAD, lens or tokens"
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{DebugCommand, Printed};

    #[test]
    fn commands_are_read() {
        let check =
            |line: &str, expect: DebugCommand| assert_eq!(line.parse(), Ok(expect), "{line}");
        check(" c ", DebugCommand::Continue);
        check(
            "b blocks.*.x@-1,norm>2",
            DebugCommand::Break("blocks.*.x@-1,norm>2".into()),
        );
        check("print", DebugCommand::Print(Printed::Activation));
        check(
            "p attention 3 1",
            DebugCommand::Print(Printed::Attention { block: 3, head: 1 }),
        );
        check("branch 4", DebugCommand::Branch(4));
        check("delete all", DebugCommand::Delete(None));
        for bad in [
            "",
            "fly",
            "break",
            "print attention",
            "switch x",
            "p flowers",
        ] {
            assert!(bad.parse::<DebugCommand>().is_err(), "{bad}");
        }
    }
}
