//! Environment variables that commands read. An unknown variable of Djinn is refused, as an unknown key of
//! a configuration file is: a misspelled setting would have no effect otherwise.

use std::{collections::BTreeSet, ffi::OsString};

use clap::Command;

/// Beginning of all variables of Djinn.
const PREFIX: &str = "DJINN_";
/// Beginning of variables that only tests read.
const TEST_PREFIX: &str = "DJINN_TEST_";
/// Variables that are no flags: the home folder, the address of a server for clients, the program that
/// scripts and tests of the Python package start, and the commit that cargo sets for programs it runs.
const OTHERS: [&str; 4] = ["DJINN_HOME", "DJINN_SERVER", "DJINN_BIN", "DJINN_COMMIT"];
/// Similarity from which a known name is suggested.
const SIMILAR: f64 = 0.75;

/// Refuses variables of Djinn that no command reads. `cli` is the whole command line.
pub fn check(cli: &Command, names: impl IntoIterator<Item = OsString>) -> Result<(), String> {
    let known = known(cli);
    let names = names
        .into_iter()
        .map(|name| name.to_string_lossy().into_owned());
    let is_unknown = |name: &String| {
        name.starts_with(PREFIX) && !name.starts_with(TEST_PREFIX) && !known.contains(name)
    };
    let unknown: BTreeSet<String> = names.filter(is_unknown).collect();
    let Some(name) = unknown.first() else {
        return Ok(());
    };
    // The common beginning would make all names similar.
    let setting = |name: &str| name[PREFIX.len()..].to_uppercase();
    let asked = setting(name);
    let score = |one: &String| strsim::jaro_winkler(&asked, &setting(one));
    let scored = known.iter().map(|one| (score(one), one));
    let nearest = scored.max_by(|(a, _), (b, _)| a.total_cmp(b));
    let hint = match nearest {
        Some((score, one)) if score >= SIMILAR => format!("; did you mean {one}?"),
        _ => "; unset it, or see djinn serve --help for all settings".to_owned(),
    };
    Err(format!("unknown environment variable {name}{hint}"))
}

/// Names of all variables that commands read.
fn known(cli: &Command) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = OTHERS.map(str::to_owned).into();
    add_flags(cli, &mut names);
    names
}

fn add_flags(command: &Command, names: &mut BTreeSet<String>) {
    let variables = command.get_arguments().filter_map(|arg| arg.get_env());
    let variables = variables.map(|name| name.to_string_lossy().into_owned());
    names.extend(variables.filter(|name| name.starts_with(PREFIX)));
    for subcommand in command.get_subcommands() {
        add_flags(subcommand, names);
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::args::command;

    #[test]
    fn unknown_variables_are_refused_with_the_nearest_name() {
        let check = |names: &[&str]| check(&command(), names.iter().map(|name| (*name).into()));
        let fine = [
            "DJINN_HOME",
            "DJINN_SERVER",
            "DJINN_KEY",
            "DJINN_PORT",
            "DJINN_MODEL_DIR",
            "DJINN_PYTHON",
            "DJINN_TEST_CARD",
            "DJINN",
            "PATH",
            "OTHER_DJINN_X",
        ];
        assert_eq!(check(&fine), Ok(()));
        for (name, hint) in [
            ("DJINN_PROT", "did you mean DJINN_PORT?"),
            ("DJINN_MODELDIR", "did you mean DJINN_MODEL_DIR?"),
            ("DJINN_port", "did you mean DJINN_PORT?"),
            ("DJINN_HOEM", "did you mean DJINN_HOME?"),
            ("DJINN_XYZZY_QUUX", "DJINN_XYZZY_QUUX"),
        ] {
            let error = check(&["HOME", name]).expect_err(name);
            assert!(error.contains(name) && error.contains(hint), "{error}");
        }
    }
}
