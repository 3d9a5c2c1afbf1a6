//! Settings from flags, the environment and a file, in that order: one list of flags says what there is,
//! and clap reads all three, so that a file's lines are checked as flags are.

use std::{collections::BTreeSet, ffi::OsString, path::Path};

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, parser::ValueSource};

use super::ServeArgs;
use crate::args::Cli;

/// Variables of the programs that came before, and the flags they stand for.
const OLDER: [(&str, &str); 3] = [
    ("GENIE_VMU_RING_BUFFER", "ring-buffer"),
    ("GENIE_VMU_RING_BUFFER_GB", "ring-buffer-gb"),
    ("GENIE_VMU_RING_BUFFER_WORKERS", "ring-buffer-workers"),
];

/// Flags that several names stand for: who says one has said the others.
const SAME: [&[&str]; 3] = [
    &["device", "gpu", "gpus"],
    &["ring", "ring-buffer-gb"],
    &["workers", "ring-buffer-workers"],
];

/// A setting as it took effect.
#[derive(Debug)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// What it is.
    pub value: String,
    /// Who said so.
    pub from: String,
}

/// Gives every flag of `djinn serve` its variable.
pub fn with_environment(cli: Command) -> Command {
    cli.mut_subcommand("serve", |serve| {
        serve.mut_args(|arg| match arg.get_long() {
            Some(long) if long != "help" => {
                let name = format!("DJINN_{}", long.to_uppercase().replace('-', "_"));
                // Flags are read once in a process.
                let name: &'static str = name.leak();
                arg.env(name).hide_env(true)
            }
            _ => arg,
        })
    })
}

/// The settings of this process, and each as it took effect.
pub fn settle() -> Result<(ServeArgs, Vec<Setting>), String> {
    let given: Vec<OsString> = std::env::args_os().collect();
    let older = OLDER.iter().filter_map(|(variable, flag)| {
        let value = std::env::var(variable).ok()?;
        Some(((*flag).to_owned(), value, (*variable).to_owned()))
    });
    settle_from(given, older.collect())
}

type Layer = Vec<(String, String, String)>;

fn settle_from(
    mut given: Vec<OsString>,
    older: Layer,
) -> Result<(ServeArgs, Vec<Setting>), String> {
    let first = matches(&given)?;
    let mut said: BTreeSet<String> = flags()
        .into_iter()
        .filter(|flag| is_said(&first, flag))
        .collect();
    let file = match first.get_one::<std::path::PathBuf>("config") {
        Some(path) => read(path)?,
        None => Layer::new(),
    };
    let mut from: Vec<(String, String)> = Vec::new();
    for layer in [older, file] {
        let here: BTreeSet<String> = layer.iter().map(|(flag, ..)| flag.clone()).collect();
        for (flag, value, source) in layer {
            if said.iter().any(|name| is_same(name, &flag)) {
                continue;
            }
            let takes_value = takes_value(&flag);
            match (takes_value, value.as_str()) {
                (true, _) => given.push(format!("--{flag}={value}").into()),
                (false, "true" | "1" | "on" | "yes") => given.push(format!("--{flag}").into()),
                (false, "false" | "0" | "off" | "no" | "") => {}
                (false, other) => {
                    return Err(format!("{source}: {flag} is on or off, not '{other}'"));
                }
            }
            from.push((flag, source));
        }
        said.extend(here);
    }
    let last = matches(&given)?;
    let args = ServeArgs::from_arg_matches(&last).map_err(|error| one_line(&error))?;
    let settings = flags()
        .into_iter()
        .filter_map(|flag| setting(&last, &flag, &from))
        .collect();
    Ok((args, settings))
}

/// Whether two names stand for one setting.
fn is_same(one: &str, other: &str) -> bool {
    one == other
        || SAME
            .iter()
            .any(|same| same.contains(&one) && same.contains(&other))
}

fn command() -> Command {
    with_environment(Cli::command())
}

fn matches(given: &[OsString]) -> Result<ArgMatches, String> {
    let matches = command()
        .try_get_matches_from(given)
        .map_err(|error| one_line(&error))?;
    let (_, serve) = matches
        .subcommand()
        .ok_or("djinn serve is what these are for")?;
    Ok(serve.clone())
}

fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let complaint = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = complaint.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

/// Every flag of `djinn serve`.
fn flags() -> Vec<String> {
    let mut cli = command();
    cli.build();
    let serve = cli.find_subcommand("serve").expect("a command");
    let named = serve.get_arguments().filter_map(|arg| arg.get_long());
    named
        .filter(|long| !["help", "version"].contains(long))
        .map(str::to_owned)
        .collect()
}

fn takes_value(flag: &str) -> bool {
    let cli = command();
    let serve = cli.find_subcommand("serve").expect("a command");
    let arg = serve
        .get_arguments()
        .find(|arg| arg.get_long() == Some(flag));
    arg.is_none_or(|arg| arg.get_action().takes_values())
}

fn id(flag: &str) -> String {
    flag.replace('-', "_")
}

fn is_said(matches: &ArgMatches, flag: &str) -> bool {
    let source = matches.value_source(&id(flag));
    matches!(
        source,
        Some(ValueSource::CommandLine | ValueSource::EnvVariable)
    )
}

fn setting(matches: &ArgMatches, flag: &str, from: &[(String, String)]) -> Option<Setting> {
    let source = matches.value_source(&id(flag))?;
    let value = match takes_value(flag) {
        false => matches.get_flag(&id(flag)).to_string(),
        true => {
            let raw = matches.get_raw(&id(flag))?;
            raw.map(|value| value.to_string_lossy().into_owned())
                .collect::<Vec<_>>()
                .join(" ")
        }
    };
    let layered = from.iter().find(|(name, _)| name == flag);
    let from = match (layered, source) {
        (Some((_, source)), _) => source.clone(),
        (None, ValueSource::CommandLine) => "flag".to_owned(),
        (None, ValueSource::EnvVariable) => format!("DJINN_{}", id(flag).to_uppercase()),
        (None, _) => "default".to_owned(),
    };
    // Switches that are off by default are not listed.
    let is_off = value == "false" && from == "default";
    (!is_off).then(|| Setting {
        name: flag.to_owned(),
        value,
        from,
    })
}

/// The lines of a file: its keys are flags, with `-` or `_`.
fn read(path: &Path) -> Result<Layer, String> {
    let source = path.display().to_string();
    let error = |what: &dyn std::fmt::Display| format!("{source}: {what}");
    let text = std::fs::read_to_string(path).map_err(|e| error(&e))?;
    let is_toml = path
        .extension()
        .is_none_or(|end| end.eq_ignore_ascii_case("toml"));
    let table: serde_json::Map<String, serde_json::Value> = match is_toml {
        true => toml::from_str(&text).map_err(|e| error(&e.message()))?,
        false => serde_saphyr::from_str(&text).map_err(|e| error(&e))?,
    };
    let known = flags();
    let mut layer = Layer::new();
    for (key, value) in table {
        let flag = key.replace('_', "-");
        if !known.contains(&flag) || flag == "config" {
            return Err(error(&format!(
                "'{key}' is no setting; djinn serve --help lists them"
            )));
        }
        let values = match value {
            serde_json::Value::Array(values) => values,
            one => vec![one],
        };
        for value in values {
            let value = match value {
                serde_json::Value::String(text) => text,
                serde_json::Value::Bool(_) | serde_json::Value::Number(_) => value.to_string(),
                _ => {
                    return Err(error(&format!(
                        "'{key}' is a text, a number, true or false, or a list of those"
                    )));
                }
            };
            layer.push((flag.clone(), value, source.clone()));
        }
    }
    Ok(layer)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{ffi::OsString, fs};

    use super::{Layer, settle_from};

    fn given(flags: &[&str]) -> Vec<OsString> {
        ["djinn", "serve"]
            .iter()
            .chain(flags)
            .map(OsString::from)
            .collect()
    }

    fn older(pairs: &[(&str, &str)]) -> Layer {
        let one = |(flag, value): &(&str, &str)| {
            ((*flag).to_owned(), (*value).to_owned(), "GENIE".to_owned())
        };
        pairs.iter().map(one).collect()
    }

    #[test]
    fn a_file_says_what_flags_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("djinn.toml");
        fs::write(
            &path,
            "port = 7000\nlease = 60\nmodel = ['a=x', 'b=y']\ninsecure = true\n",
        )
        .unwrap();
        let path = path.to_str().unwrap();
        let (args, settings) =
            settle_from(given(&["--config", path, "--lease", "5"]), vec![]).unwrap();
        assert_eq!(
            (args.port, args.lease.as_secs(), args.insecure),
            (7000, 5, true)
        );
        assert_eq!(args.model.len(), 2);
        let from = |name: &str| {
            settings
                .iter()
                .find(|s| s.name == name)
                .unwrap()
                .from
                .clone()
        };
        assert_eq!(
            (from("port"), from("lease"), from("host")),
            (path.to_owned(), "flag".into(), "default".into())
        );
    }

    #[test]
    fn yaml_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("djinn.yaml");
        fs::write(&path, "port: 7000\nmodel_dir:\n  - /a\n  - /b\n").unwrap();
        let (args, _) = settle_from(given(&["--config", path.to_str().unwrap()]), vec![]).unwrap();
        assert_eq!((args.port, args.model_dir.len()), (7000, 2));
    }

    #[test]
    fn a_file_that_is_wrong_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("djinn.toml");
        for (text, why) in [
            ("prot = 1\n", "'prot' is no setting"),
            ("port = 'x'\n", "port"),
            ("port = {a = 1}\n", "is a text"),
            ("insecure = 'maybe'\n", "on or off"),
            ("port = \n", "djinn.toml"),
        ] {
            fs::write(&path, text).unwrap();
            let error =
                settle_from(given(&["--config", path.to_str().unwrap()]), vec![]).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn older_variables_work_unless_flags_say_the_same() {
        let all = older(&[
            ("ring-buffer", "1"),
            ("ring-buffer-gb", "12"),
            ("ring-buffer-workers", "3"),
        ]);
        let (args, _) = settle_from(given(&[]), all.clone()).unwrap();
        assert!(args.ring_buffer);
        assert_eq!(
            (args.ring_buffer_gb, args.ring_buffer_workers),
            (Some(12.0), Some(3))
        );
        let (args, _) = settle_from(given(&["--ring", "1GB"]), all).unwrap();
        assert_eq!(
            (args.ring_buffer_gb, args.memory.ring.map(|s| s.0)),
            (None, Some(1_000_000_000))
        );
    }
}
