//! Reference of the command line, generated from its flags.

use std::{fmt::Write, fs, path::Path};

use clap::{Arg, Command, CommandFactory};

use super::Cli;

/// Line about a flag or argument.
fn flag(arg: &Arg) -> String {
    let value = arg
        .get_value_names()
        .filter(|_| arg.get_action().takes_values());
    let value = value.map(|names| {
        names
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    });
    let name = match (arg.get_long(), &value) {
        (Some(long), Some(value)) => format!("--{long} {value}"),
        (Some(long), None) => format!("--{long}"),
        (None, value) => value.clone().unwrap_or_else(|| arg.get_id().to_string()),
    };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let default: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    let default = match default.is_empty() || !arg.get_action().takes_values() {
        true => String::new(),
        false => format!(" [default: {}]", default.join(" ")),
    };
    let cell = |text: String| text.replace('|', "\\|").replace('\n', " ");
    format!(
        "| `{}` | {} |\n",
        cell(name),
        cell(format!("{help}{default}"))
    )
}

fn command(text: &mut String, path: &str, command: &Command) {
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    writeln!(text, "\n## {path}\n\n{about}\n").expect("a string");
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let flags: String = command.get_arguments().filter(shown).map(flag).collect();
    if !flags.is_empty() {
        writeln!(text, "| flag | |\n|---|---|\n{flags}").expect("a string");
    }
    if let Some(more) = command.get_after_help() {
        writeln!(text, "```text\n{}\n```", more.to_string().trim()).expect("a string");
    }
    for inner in command
        .get_subcommands()
        .filter(|inner| inner.get_name() != "help")
    {
        self::command(text, &format!("{path} {}", inner.get_name()), inner);
    }
}

#[test]
fn the_reference_matches_the_flags() {
    let mut text =
        "# Command line\n\nGenerated from the help of `djinn COMMAND --help`.\n".to_owned();
    let mut cli = super::command();
    cli.build();
    // Changes of a command move it to the end of the list, so the order is that of the declaration.
    let declared = Cli::command();
    let names = declared.get_subcommands().map(Command::get_name);
    for inner in names.filter_map(|name| cli.find_subcommand(name)) {
        command(&mut text, &format!("djinn {}", inner.get_name()), inner);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(&path, &text).expect("the reference can be written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "docs/reference/cli.md does not match the flags: run UPDATE_REFERENCE=1 cargo test"
    );
}
