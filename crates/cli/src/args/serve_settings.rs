//! Settings of `djinn serve` from flags, the environment and a configuration file, in that order.
//!
//! The list of flags is the list of settings: clap parses all three sources, so that values of the file are
//! checked as values of flags are.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fmt::Display,
    path::{Path, PathBuf},
};

use clap::{ArgMatches, Command, FromArgMatches, parser::ValueSource};

use super::serve::ServeArgs;

/// Environment variables of Djinn's predecessors, and the flags they set.
const LEGACY: [(&str, &str); 3] = [
    ("GENIE_VMU_RING_BUFFER", "ring-buffer"),
    ("GENIE_VMU_RING_BUFFER_GB", "ring-buffer-gb"),
    ("GENIE_VMU_RING_BUFFER_WORKERS", "ring-buffer-workers"),
];

/// Groups of flags that set the same setting.
const SYNONYMS: [&[&str]; 3] = [
    &["device", "gpu", "gpus"],
    &["ring", "ring-buffer-gb"],
    &["workers", "ring-buffer-workers"],
];

/// A setting in effect.
#[derive(Debug)]
pub struct Setting {
    /// Name of the flag.
    pub name: String,
    /// Value in effect.
    pub value: String,
    /// Source of the value: a flag, a variable, a file or the default.
    pub source: String,
}

/// A value from the environment or from a file.
#[derive(Clone, Debug)]
struct Assignment {
    flag: String,
    value: String,
    source: String,
}

/// Gives every flag of `djinn serve` its environment variable.
pub fn with_environment(cli: Command) -> Command {
    cli.mut_subcommand("serve", |serve| {
        serve.mut_args(|arg| match arg.get_long() {
            Some(long) if long != "help" => {
                // Flags are built a few times in a process, so the leak is bounded.
                let name: &'static str = variable(long).leak();
                arg.env(name).hide_env(true)
            }
            _ => arg,
        })
    })
}

/// Environment variable of a flag.
fn variable(flag: &str) -> String {
    format!("DJINN_{}", id(flag).to_uppercase())
}

/// Name of a flag in clap's matches.
fn id(flag: &str) -> String {
    flag.replace('-', "_")
}

/// Settings of this process, and the source of each. `cli` is the whole command line.
pub fn resolve(cli: &Command) -> Result<(ServeArgs, Vec<Setting>), String> {
    let legacy = LEGACY.iter().filter_map(|(variable, flag)| {
        Some(Assignment {
            flag: (*flag).to_owned(),
            value: std::env::var(variable).ok()?,
            source: (*variable).to_owned(),
        })
    });
    resolve_from(cli, std::env::args_os().collect(), legacy.collect())
}

/// Settings of `djinn serve --config FILE`, with this process's environment.
pub fn resolve_file(cli: &Command, file: &Path) -> Result<ServeArgs, String> {
    let words = ["djinn", "serve", "--config"].map(OsString::from);
    let words = words.into_iter().chain([file.into()]).collect();
    Ok(resolve_from(cli, words, Vec::new())?.0)
}

fn resolve_from(
    cli: &Command,
    mut words: Vec<OsString>,
    legacy: Vec<Assignment>,
) -> Result<(ServeArgs, Vec<Setting>), String> {
    let flags = Flags::new(cli);
    let first = flags.parse(&words)?;
    let names = flags.names();
    let is_given = |flag: &&String| is_given(&first, flag);
    let mut given: BTreeSet<String> = names.iter().filter(is_given).cloned().collect();
    let file = match first.get_one::<PathBuf>("config") {
        Some(path) => read(path, &names)?,
        None => Vec::new(),
    };
    let mut sources: Vec<(String, String)> = Vec::new();
    for layer in [legacy, file] {
        let in_layer: Vec<String> = layer.iter().map(|set| set.flag.clone()).collect();
        for set in layer {
            if given.iter().any(|name| is_same(name, &set.flag)) {
                continue;
            }
            words.extend(flags.as_word(&set)?);
            sources.push((set.flag, set.source));
        }
        given.extend(in_layer);
    }
    let matches = flags.parse(&words)?;
    let args = ServeArgs::from_arg_matches(&matches).map_err(|error| one_line(&error))?;
    let settings = names
        .iter()
        .filter_map(|flag| flags.setting(&matches, flag, &sources))
        .collect();
    Ok((args, settings))
}

/// Whether two flags set the same setting.
fn is_same(one: &str, other: &str) -> bool {
    let together = |group: &&[&str]| group.contains(&one) && group.contains(&other);
    one == other || SYNONYMS.iter().any(together)
}

/// Whether a flag or its variable was given.
fn is_given(matches: &ArgMatches, flag: &str) -> bool {
    matches!(
        matches.value_source(&id(flag)),
        Some(ValueSource::CommandLine | ValueSource::EnvVariable)
    )
}

fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let problem = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = problem.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

/// Flags of `djinn serve`.
struct Flags {
    cli: Command,
}

impl Flags {
    fn new(cli: &Command) -> Self {
        let mut cli = cli.clone();
        cli.build();
        Flags { cli }
    }

    fn serve(&self) -> &Command {
        let serve = self.cli.find_subcommand("serve");
        serve.expect("serve is a command")
    }

    fn names(&self) -> Vec<String> {
        let named = self
            .serve()
            .get_arguments()
            .filter_map(|arg| arg.get_long());
        named
            .filter(|long| !["help", "version"].contains(long))
            .map(str::to_owned)
            .collect()
    }

    fn takes_value(&self, flag: &str) -> bool {
        let mut args = self.serve().get_arguments();
        let arg = args.find(|arg| arg.get_long() == Some(flag));
        arg.is_none_or(|arg| arg.get_action().takes_values())
    }

    fn parse(&self, words: &[OsString]) -> Result<ArgMatches, String> {
        let matches = self.cli.clone().try_get_matches_from(words);
        let matches = matches.map_err(|error| one_line(&error))?;
        let (_, serve) = matches.subcommand().ok_or("the command is not serve")?;
        Ok(serve.clone())
    }

    /// Word of the command line that makes an assignment; none for a switch that is off.
    fn as_word(&self, set: &Assignment) -> Result<Option<OsString>, String> {
        let Assignment {
            flag,
            value,
            source,
        } = set;
        Ok(match (self.takes_value(flag), value.as_str()) {
            (true, _) => Some(format!("--{flag}={value}").into()),
            (false, "true" | "1" | "on" | "yes") => Some(format!("--{flag}").into()),
            (false, "false" | "0" | "off" | "no" | "") => None,
            (false, other) => {
                return Err(format!("{source}: {flag} must be on or off, not '{other}'"));
            }
        })
    }

    fn setting(
        &self,
        matches: &ArgMatches,
        flag: &str,
        sources: &[(String, String)],
    ) -> Option<Setting> {
        let source = matches.value_source(&id(flag))?;
        let value = match self.takes_value(flag) {
            false => matches.get_flag(&id(flag)).to_string(),
            true => {
                let raw = matches.get_raw(&id(flag))?;
                let texts = raw.map(|value| value.to_string_lossy().into_owned());
                texts.collect::<Vec<_>>().join(" ")
            }
        };
        let assigned = sources.iter().find(|(name, _)| name == flag);
        let source = match (assigned, source) {
            (Some((_, source)), _) => source.clone(),
            (None, ValueSource::CommandLine) => "flag".to_owned(),
            (None, ValueSource::EnvVariable) => variable(flag),
            (None, _) => "default".to_owned(),
        };
        // Switches that are off by default are not listed.
        let is_off = value == "false" && source == "default";
        (!is_off).then(|| Setting {
            name: flag.to_owned(),
            value,
            source,
        })
    }
}

/// Reads a configuration file. Its keys are flags, with `-` or `_`.
fn read(path: &Path, known: &[String]) -> Result<Vec<Assignment>, String> {
    let source = path.display().to_string();
    let error = |problem: &dyn Display| format!("{source}: {problem}");
    let text = std::fs::read_to_string(path).map_err(|e| error(&e))?;
    let is_toml = path
        .extension()
        .is_none_or(|end| end.eq_ignore_ascii_case("toml"));
    let table: serde_json::Map<String, serde_json::Value> = match is_toml {
        true => toml::from_str(&text).map_err(|e| error(&e.message()))?,
        false => serde_saphyr::from_str(&text).map_err(|e| error(&e))?,
    };
    let mut assignments = Vec::new();
    for (key, value) in table {
        let flag = key.replace('_', "-");
        if !known.contains(&flag) || flag == "config" {
            return Err(error(&format!(
                "unknown setting '{key}'; djinn serve --help lists all settings"
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
                        "'{key}' must be a text, a number, true, false, or a list of these"
                    )));
                }
            };
            assignments.push(Assignment {
                flag: flag.clone(),
                value,
                source: source.clone(),
            });
        }
    }
    Ok(assignments)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{ffi::OsString, fs};

    use clap::{Args, Command};

    use super::{Assignment, ServeArgs, Setting, resolve_from, with_environment};

    fn resolved(
        words: Vec<OsString>,
        legacy: Vec<Assignment>,
    ) -> Result<(ServeArgs, Vec<Setting>), String> {
        let serve = ServeArgs::augment_args(Command::new("serve"));
        let cli = with_environment(Command::new("djinn").subcommand(serve));
        resolve_from(&cli, words, legacy)
    }

    fn given(flags: &[&str]) -> Vec<OsString> {
        ["djinn", "serve"]
            .iter()
            .chain(flags)
            .map(OsString::from)
            .collect()
    }

    fn legacy(pairs: &[(&str, &str)]) -> Vec<Assignment> {
        let one = |(flag, value): &(&str, &str)| Assignment {
            flag: (*flag).to_owned(),
            value: (*value).to_owned(),
            source: "GENIE".to_owned(),
        };
        pairs.iter().map(one).collect()
    }

    #[test]
    fn a_file_sets_what_flags_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("djinn.toml");
        fs::write(
            &path,
            "port = 7000\nlease = 60\nmodel = ['a=x', 'b=y']\ninsecure = true\n",
        )
        .unwrap();
        let path = path.to_str().unwrap();
        let (args, settings) =
            resolved(given(&["--config", path, "--lease", "5"]), vec![]).unwrap();
        assert_eq!(
            (args.port, args.lease.as_secs(), args.insecure),
            (7000, 5, true)
        );
        assert_eq!(args.model.len(), 2);
        let source = |name: &str| {
            settings
                .iter()
                .find(|s| s.name == name)
                .unwrap()
                .source
                .clone()
        };
        assert_eq!(
            (source("port"), source("lease"), source("host")),
            (path.to_owned(), "flag".into(), "default".into())
        );
    }

    #[test]
    fn a_file_may_be_yaml() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("djinn.yaml");
        fs::write(&path, "port: 7000\nmodel_dir:\n  - /a\n  - /b\n").unwrap();
        let (args, _) = resolved(given(&["--config", path.to_str().unwrap()]), vec![]).unwrap();
        assert_eq!((args.port, args.model_dir.len()), (7000, 2));
    }

    #[test]
    fn an_invalid_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("djinn.toml");
        for (text, why) in [
            ("prot = 1\n", "'prot'"),
            ("port = 'x'\n", "port"),
            ("port = {a = 1}\n", "must be a text"),
            ("insecure = 'maybe'\n", "on or off"),
            ("port = \n", "djinn.toml"),
        ] {
            fs::write(&path, text).unwrap();
            let error = resolved(given(&["--config", path.to_str().unwrap()]), vec![]).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn legacy_variables_yield_to_flags() {
        let all = legacy(&[
            ("ring-buffer", "1"),
            ("ring-buffer-gb", "12"),
            ("ring-buffer-workers", "3"),
        ]);
        let (args, _) = resolved(given(&[]), all.clone()).unwrap();
        assert!(args.ring_buffer);
        assert_eq!(
            (args.ring_buffer_gb, args.ring_buffer_workers),
            (Some(12.0), Some(3))
        );
        let (args, _) = resolved(given(&["--ring", "1GB"]), all).unwrap();
        assert_eq!(
            (args.ring_buffer_gb, args.memory.ring.map(|s| s.0)),
            (None, Some(1_000_000_000))
        );
    }
}
