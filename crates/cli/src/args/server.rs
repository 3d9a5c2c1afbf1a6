//! Flags of the server that a command uses.

use std::path::PathBuf;

use clap::{Args, Command};

/// Server to use, and its key and certificate.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// Use the model of a server: HOST:PORT, or https://HOST:PORT. --model is then a name on that server,
    /// and this machine loads nothing
    #[arg(long, help_heading = "Server", value_name = "ADDR")]
    pub server: Option<String>,
    /// API key; set DJINN_KEY to keep it out of process listings
    #[arg(
        long,
        help_heading = "Server",
        value_name = "KEY",
        env = "DJINN_KEY",
        hide_env_values = true
    )]
    pub key: Option<String>,
    /// CA certificate (PEM) that signed the server's certificate [default: the system's]
    #[arg(long, help_heading = "Server", value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

/// Flags about this machine, which have no effect on a server.
const LOCAL: [&str; 13] = [
    "device",
    "threads",
    "rows",
    "memory",
    "ring",
    "resident",
    "host_memory",
    "chunk",
    "workers",
    "prefetch",
    "kv_dtype",
    "elastic",
    "state",
];

/// Commands that can use a server, with more flags to refuse there, and flags to accept after all.
const REMOTE: [(&str, &[&str], &[&str]); 7] = [
    ("run", &[], &[]),
    ("trace", &[], &[]),
    ("lens", &[], &[]),
    ("debug", &[], &[]),
    ("chat", &["context"], &[]),
    ("plan", &[], &["memory", "kv_dtype"]),
    ("patch", &[], &[]),
];

/// Subcommands of `djinn steer` that can use a server.
const REMOTE_STEER: [&str; 2] = ["make", "measure"];

/// Refuses flags about this machine together with `--server`.
pub fn with_conflicts(mut cli: Command) -> Command {
    for (name, more, less) in REMOTE {
        cli = cli.mut_subcommand(name, |command| refuse_local(command, more, less));
    }
    for name in REMOTE_STEER {
        cli = cli.mut_subcommand("steer", |steer| {
            steer.mut_subcommand(name, |command| refuse_local(command, &[], &[]))
        });
    }
    cli = cli.mut_subcommand("bench", |bench| {
        bench.mut_subcommand("prefix", |command| refuse_local(command, &[], &[]))
    });
    let there = "Run the experiment on this server: HOST:PORT, or https://HOST:PORT. A folder is pushed \
                 first; this requires an admin key";
    for name in [
        "virtual-memory",
        "memory-pressure",
        "resume-latency",
        "steering",
        "agents",
    ] {
        cli = cli.mut_subcommand("eval", |eval| {
            eval.mut_subcommand(name, |command| {
                command.mut_arg("server", |server| {
                    server.help(there).conflicts_with_all(["device", "threads"])
                })
            })
        });
    }
    let which = "Address of the server: HOST:PORT, or https://HOST:PORT";
    let usual = "Address of the server: HOST:PORT, or https://HOST:PORT [default: DJINN_SERVER, or \
                 127.0.0.1:5556]";
    for (name, help) in [("sessions", which), ("models", usual), ("top", usual)] {
        cli = cli.mut_subcommand(name, |command| {
            command.mut_arg("server", |server| server.help(help))
        });
    }
    // Subcommands take these flags too.
    for name in ["sessions", "models"] {
        cli = cli.mut_subcommand(name, |mut command| {
            for flag in ["server", "key", "ca"] {
                command = command.mut_arg(flag, |arg| arg.global(true));
            }
            command
        });
    }
    cli
}

/// Refuses a command's flags about this machine together with `--server`.
fn refuse_local(command: Command, more: &[&'static str], less: &[&str]) -> Command {
    let has = |flag: &&str| command.get_arguments().any(|arg| arg.get_id() == *flag);
    let local = LOCAL.iter().chain(more).copied();
    let refused: Vec<&'static str> = local
        .filter(|flag| !less.contains(flag))
        .filter(has)
        .collect();
    command.mut_arg("server", |server| server.conflicts_with_all(refused))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::error::ErrorKind;

    use crate::args::command;

    #[test]
    fn flags_about_this_machine_are_refused() {
        let parse = |line: &str| {
            let words = line.split_whitespace();
            let parsed = command().try_get_matches_from(words);
            parsed.map(drop).map_err(|error| error.kind())
        };
        for line in [
            "djinn run --server a:1 --memory 1GB",
            "djinn run --server a:1 --state x",
            "djinn trace --server a:1 --capture logits --device cpu",
            "djinn lens --threads 1 --server a:1",
            "djinn plan --server a:1 --ring 1GB",
            "djinn patch --server a:1 --clean a --corrupt b --answer c --instead d --device cpu",
            "djinn steer make --server a:1 --positive a --negative b --out x.gguf --memory 1GB",
            "djinn eval agents --config c --server a:1 --device cpu",
            "djinn eval agents --config c --server a:1 --host-memory 1GB",
        ] {
            assert_eq!(parse(line), Err(ErrorKind::ArgumentConflict), "{line}");
        }
        for line in [
            "djinn run --server a:1 --model m",
            "djinn plan --server a:1 --memory 1GB --link 1GB --pieces --model shape:llama-2-7b",
            "djinn patch --server a:1 --clean a --corrupt b --answer c --instead d",
            "djinn sessions --server a:1 list",
            "djinn sessions list --server a:1",
        ] {
            assert_eq!(parse(line), Ok(()), "{line}");
        }
    }
}
