//! Flags of `djinn serve`. Each is an environment variable and a line of a file too: see [`layers`].

use std::{net::IpAddr, path::PathBuf, str::FromStr, time::Duration};

use clap::Args;
use djinn_server::{LoadOptions, ServedModel, check_name, default_name};
use djinn_types::Size;

use super::{DeviceArgs, MemoryArgs, at_least_one};

mod layers;

pub use layers::{Setting, settle, with_environment};

/// `djinn serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Every flag is also a variable, DJINN_ and its name in capitals (DJINN_PORT=8000), and a line of a TOML or
YAML file (port = 8000): flags come first, then variables, then the file. What took effect is printed.

Without --model it serves the story model that ships with Djinn. Listening on other addresses than this
machine's own wants --keys: a file with a [[key]] table for everybody, with owner and key.

Examples:
  djinn serve
  djinn serve --model ./Llama-2-13b --memory 16GB --state ./sessions
  djinn serve --model big=org/name,memory=60GB --model small=./tiny,batch=8
  djinn serve --host 0.0.0.0 --keys keys.toml --tls-cert cert.pem --tls-key key.pem
  djinn serve --config djinn.toml

  curl http://127.0.0.1:5556/v1/completions -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 40}'")]
pub struct ServeArgs {
    /// Take settings from this file too: .toml, .yaml or .yml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port for gRPC and HTTP; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 5556)]
    pub port: u16,
    /// Listen on this port too; it speaks the same
    #[arg(long, value_name = "N")]
    pub control_port: Option<u16>,
    /// Listen on this port too; it speaks the same
    #[arg(long, value_name = "N")]
    pub data_port: Option<u16>,
    /// What this server is called among others
    #[arg(long, value_name = "NAME", default_value = "djinn")]
    pub node_id: String,
    /// error, warn, info, debug or trace; no line has a prompt or a key
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: tracing::Level,
    /// Send traces of requests and turns to this OpenTelemetry collector, as http://HOST:4317; they have
    /// no prompts
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// How long turns may go on after SIGTERM, in seconds
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    pub drain: Duration,

    /// A model to serve.
    #[arg(
        long,
        help_heading = "Models",
        value_name = "[NAME=]M",
        help = "A folder, a pulled hub id, shape:NAME, pushed:HASH, or bundled; may be repeated. After it, with commas: \
                memory=, context=, batch=, sessions="
    )]
    pub model: Vec<ModelFlag>,
    /// Folders below this one may be loaded by clients; may be repeated
    #[arg(long, help_heading = "Models", value_name = "DIR")]
    pub model_dir: Vec<PathBuf>,
    /// Keep models that clients push here [default: pushed, in Djinn's own folder]
    #[arg(long, help_heading = "Models", value_name = "DIR")]
    pub push_dir: Option<PathBuf>,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// The card to run on, by number: the same as --device cuda:N
    #[arg(long, value_name = "N", conflicts_with = "device")]
    pub gpu: Option<usize>,
    /// The same, as a list of one
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with_all = ["device", "gpu"])]
    pub gpus: Vec<usize>,

    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Let weights stream through a ring; they do anyway where they do not fit
    #[arg(long, help_heading = "Memory")]
    pub ring_buffer: bool,
    /// Gigabytes of the ring: the same as --ring
    #[arg(
        long,
        help_heading = "Memory",
        value_name = "GB",
        conflicts_with = "ring"
    )]
    pub ring_buffer_gb: Option<f64>,
    /// Threads that read files: the same as --workers
    #[arg(long, help_heading = "Memory", value_name = "N", value_parser = at_least_one,
          conflicts_with = "workers")]
    pub ring_buffer_workers: Option<usize>,
    /// Memory of the device for KV [default: what weights leave, or an eighth where they stream]
    #[arg(long, help_heading = "Memory", value_name = "SIZE")]
    pub kv: Option<Size>,
    /// Let KV of sessions that wait go to a file in this folder when host memory is full
    #[arg(long, help_heading = "Memory", value_name = "DIR")]
    pub spill: Option<PathBuf>,
    /// How large that file may get
    #[arg(
        long,
        help_heading = "Memory",
        value_name = "SIZE",
        default_value = "64GB"
    )]
    pub spill_size: Size,

    /// Keep sessions in this folder, so that they go on after a restart [default: they end with the
    /// process]
    #[arg(long, help_heading = "Sessions", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Positions of the longest session [default: the model's context, at most 4096]
    #[arg(long, help_heading = "Sessions", value_name = "N", value_parser = at_least_one)]
    pub context: Option<usize>,
    /// Sessions in one pass [default: 32]
    #[arg(long, help_heading = "Sessions", value_name = "N", value_parser = at_least_one)]
    pub batch: Option<usize>,
    /// Sessions open at once [default: 256]
    #[arg(long, help_heading = "Sessions", value_name = "N", value_parser = at_least_one)]
    pub sessions: Option<usize>,
    /// Tokens of prompts that pass through the model together
    #[arg(long, help_heading = "Sessions", value_name = "N", default_value_t = djinn_engine::Settings::ROWS,
          value_parser = at_least_one)]
    pub rows: usize,
    /// Seconds after which an unused session ends, unless it sets its own lease
    #[arg(long, help_heading = "Sessions", value_name = "S", default_value = "900", value_parser = seconds)]
    pub lease: Duration,
    /// The longest that a session may say
    #[arg(long, help_heading = "Sessions", value_name = "S", default_value = "604800", value_parser = seconds)]
    pub max_lease: Duration,

    /// Who may come in: a TOML file; read again on SIGHUP
    #[arg(
        long,
        help_heading = "Safety",
        value_name = "FILE",
        help = "Who may come in: a TOML file with a table for every key; read again on SIGHUP"
    )]
    pub keys: Option<PathBuf>,
    /// Let everybody in who can reach this machine
    #[arg(long, help_heading = "Safety")]
    pub insecure: bool,
    /// Speak TLS with this certificate (PEM)
    #[arg(
        long,
        help_heading = "Safety",
        value_name = "FILE",
        requires = "tls_key"
    )]
    pub tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(
        long,
        help_heading = "Safety",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub tls_key: Option<PathBuf>,
    /// Let in only who has a certificate that this one signed (PEM)
    #[arg(
        long,
        help_heading = "Safety",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub tls_client_ca: Option<PathBuf>,
    /// Connections at once
    #[arg(long, help_heading = "Limits", value_name = "N", default_value_t = 4096, value_parser = at_least_one)]
    pub max_connections: usize,
    /// Bytes of a request over HTTP
    #[arg(
        long,
        help_heading = "Limits",
        value_name = "SIZE",
        default_value = "8MiB"
    )]
    pub max_body: Size,
    /// Bytes of a message over gRPC
    #[arg(
        long,
        help_heading = "Limits",
        value_name = "SIZE",
        default_value = "64MiB"
    )]
    pub max_message: Size,
    /// Bytes of a model that a client pushes
    #[arg(
        long,
        help_heading = "Limits",
        value_name = "SIZE",
        default_value = "1TB"
    )]
    pub max_upload: Size,
    /// Bytes that a session may read at hooks
    #[arg(
        long,
        help_heading = "Limits",
        value_name = "SIZE",
        default_value = "1GiB"
    )]
    pub max_captures: Size,
    /// Sessions that one request may begin: prompts times n, or branches
    #[arg(long, help_heading = "Limits", value_name = "N", default_value_t = 128, value_parser = at_least_one)]
    pub max_choices: usize,
    /// Seconds a client may take to send a request
    #[arg(long, help_heading = "Limits", value_name = "S", default_value = "15", value_parser = seconds)]
    pub patience: Duration,
    /// Seconds a request may take
    #[arg(long, help_heading = "Limits", value_name = "S", default_value = "3600", value_parser = seconds)]
    pub timeout: Duration,
}

/// A model and what it is laid out for, as a flag says it.
#[derive(Clone, Debug)]
pub struct ModelFlag(pub ServedModel);

impl FromStr for ModelFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or_default();
        let (name, reference) = match first.split_once('=') {
            Some((name, reference)) if check_name(name).is_ok() => (name.to_owned(), reference),
            _ => (default_name(first), first),
        };
        if reference.is_empty() {
            return Err(format!("'{text}' names no model"));
        }
        check_name(&name).map_err(|error| error.to_string())?;
        let mut layout = LoadOptions::default();
        for part in parts {
            let wrong =
                || format!("'{part}' is none of memory=SIZE, context=N, batch=N and sessions=N");
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            let count = || at_least_one(value).map(Some);
            match key {
                "memory" => {
                    layout.memory = Some(value.parse::<Size>().map_err(|e| e.to_string())?.0);
                }
                "context" => layout.context = count()?,
                "batch" => layout.batch = count()?,
                "sessions" => layout.sessions = count()?,
                _ => return Err(wrong()),
            }
        }
        Ok(ModelFlag(ServedModel {
            name,
            reference: reference.to_owned(),
            layout,
        }))
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("'{text}' is not seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("'{text}' is not seconds, 0 or more"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::ModelFlag;

    #[test]
    fn models() {
        let read = |text: &str| {
            let ModelFlag(model) = text.parse().unwrap();
            (model.name, model.reference, model.layout)
        };
        let (name, reference, _) = read("/models/stories-7m");
        assert_eq!(
            (name.as_str(), reference.as_str()),
            ("stories-7m", "/models/stories-7m")
        );
        let (name, reference, layout) = read("big=org/name,memory=2GB,batch=4");
        assert_eq!((name.as_str(), reference.as_str()), ("big", "org/name"));
        assert_eq!(
            (layout.memory, layout.batch),
            (Some(2_000_000_000), Some(4))
        );
        let (name, reference, _) = read("shape:llama-2-7b?layers=4&dtype=f16");
        assert_eq!(name, "llama-2-7b");
        assert_eq!(reference, "shape:llama-2-7b?layers=4&dtype=f16");
        let (name, reference, _) = read("a=shape:llama-2-7b?layers=4");
        assert_eq!(
            (name.as_str(), reference.as_str()),
            ("a", "shape:llama-2-7b?layers=4")
        );
        for wrong in ["", "a=", "x,memry=1", "x,batch=0", "x,batch"] {
            assert!(wrong.parse::<ModelFlag>().is_err(), "{wrong}");
        }
    }
}
