//! Flags of `djinn serve`. Each is also an environment variable and a key of the configuration file.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use clap::{Args, ValueEnum};
use djinn_server::{LoadOptions, ServedModel, check_name, default_name};
use djinn_types::{ParseKvDtypeError, Size};

use super::{
    device::DeviceArgs,
    memory::MemoryArgs,
    parse::{at_least_one, seconds},
};

/// `djinn serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Every flag is also an environment variable (DJINN_PORT=8000) and a key of a TOML or YAML file
(port = 8000). Flags take precedence over variables, and variables over the file. The command prints
the settings in effect.

Without --model, the server uses the story model that ships with Djinn. To listen on addresses other
than loopback, give --keys: a TOML file with a [[key]] table for each owner, with owner and key.

Examples:
  djinn serve
  djinn serve --model ./Llama-2-13b --memory 16GB --state ./sessions
  djinn serve --model big=org/name,memory=60GB --model small=./tiny,batch=8
  djinn serve --host 0.0.0.0 --keys keys.toml --tls-cert cert.pem --tls-key key.pem
  djinn serve --config djinn.toml

  curl http://127.0.0.1:5556/v1/completions --json '{\"prompt\": \"Once upon a time\", \"max_tokens\": 40}'")]
pub struct ServeArgs {
    /// Configuration file: .toml, .yaml or .yml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port for gRPC and HTTP; 0 takes a free port
    #[arg(long, value_name = "N", default_value_t = 5556)]
    pub port: u16,
    /// Additional port for gRPC and HTTP
    #[arg(long, value_name = "N")]
    pub control_port: Option<u16>,
    /// Another additional port for gRPC and HTTP
    #[arg(long, value_name = "N")]
    pub data_port: Option<u16>,
    /// Name of this server
    #[arg(long, value_name = "NAME", default_value = "djinn")]
    pub node_id: String,
    /// Log level: error, warn, info, debug or trace; no line contains a prompt or a key
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: tracing::Level,
    /// Format of the log: text, or json with one object per line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// OpenTelemetry collector for traces of requests and turns: http://HOST:4317; traces contain no
    /// prompts
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// Seconds that running turns may continue after SIGTERM
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    pub drain: Duration,
    /// Seconds between SIGTERM, when readiness begins to fail, and the end of new requests
    #[arg(long, value_name = "S", default_value = "0", value_parser = seconds)]
    pub drain_delay: Duration,
    /// Seconds after which a pass that does not end makes the server unready
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    pub stall_timeout: Duration,
    /// Seconds after which a pass that does not end means that the device hangs: the process ends with code
    /// 70, so that a process manager starts it again; 0 waits for ever [default: 300 on a GPU, 0 on a CPU]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub watchdog: Option<Duration>,
    /// Address for metrics and health checks without a key: HOST:PORT [default: metrics need an admin key]
    #[arg(long, value_name = "ADDR")]
    pub metrics_addr: Option<SocketAddr>,

    /// Models to serve.
    #[arg(
        long,
        help_heading = "Models",
        value_name = "[NAME=]M",
        help = "Model to serve: a folder, a pulled hub id, shape:NAME, pushed:HASH, or bundled; may be \
                repeated. Options follow after commas: memory=, context=, batch=, sessions=, \
                kv-dtype="
    )]
    pub model: Vec<ModelFlag>,
    /// Folder whose subfolders clients may load; may be repeated
    #[arg(long, help_heading = "Models", value_name = "DIR")]
    pub model_dir: Vec<PathBuf>,
    /// Folder for models that clients push [default: pushed, in $DJINN_HOME]
    #[arg(long, help_heading = "Models", value_name = "DIR")]
    pub push_dir: Option<PathBuf>,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Number of the card: the same as --device cuda:N
    #[arg(long, value_name = "N", conflicts_with = "device")]
    pub gpu: Option<usize>,
    /// Number of the card, as a list with one element
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with_all = ["device", "gpu"])]
    pub gpus: Vec<usize>,

    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Accepted for compatibility: weights that do not fit always stream through a ring
    #[arg(long, help_heading = "Memory")]
    pub ring_buffer: bool,
    /// Size of the ring in gigabytes: the same as --ring
    #[arg(
        long,
        help_heading = "Memory",
        value_name = "GB",
        conflicts_with = "ring"
    )]
    pub ring_buffer_gb: Option<f64>,
    /// Number of threads that read files: the same as --workers
    #[arg(long, help_heading = "Memory", value_name = "N", value_parser = at_least_one,
          conflicts_with = "workers")]
    pub ring_buffer_workers: Option<usize>,
    /// Device memory for KV pages; if it is smaller than the longest session, pages stream [default: all
    /// memory beside the weights, or an eighth of the memory if weights stream]
    #[arg(long, help_heading = "Memory", value_name = "SIZE")]
    pub kv: Option<Size>,
    /// Copies of all weights in host memory, from which models that take turns on the device return: auto
    /// keeps them for several models while there is room, off returns from the files
    #[arg(
        long,
        help_heading = "Memory",
        value_name = "auto|on|off",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub host_copy: HostCopyArg,
    /// Folder for KV pages of waiting sessions when host memory is full
    #[arg(long, help_heading = "Memory", value_name = "DIR")]
    pub spill: Option<PathBuf>,
    /// Largest size of the file in --spill
    #[arg(
        long,
        help_heading = "Memory",
        value_name = "SIZE",
        default_value = "64GB"
    )]
    pub spill_size: Size,
    /// Memory for KV pages of ended requests, in all tiers together, or off [default: all that sessions leave
    /// free]
    #[arg(long, help_heading = "Memory", value_name = "SIZE|off")]
    pub prefix_cache: Option<SizeOrOff>,
    /// Requests that share KV pages of equal prompts: of one owner, or of all. `all` lets owners find out by
    /// the time of an answer which prompts others have sent
    #[arg(
        long,
        help_heading = "Memory",
        value_name = "WHO",
        default_value = "owner"
    )]
    pub share_prefixes: ShareArg,
    /// Largest size of the KV pages that --state keeps for the next start, or off. They contain the prompts
    /// of all requests [default: 4GB]
    #[arg(long, help_heading = "Memory", value_name = "SIZE|off")]
    pub saved_prefixes: Option<SizeOrOff>,

    /// Folder for sessions, so that they continue after a restart [default: sessions end with the process]
    #[arg(long, help_heading = "Sessions", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Tokens of the longest session [default: the longest that fits, up to the model's context]
    #[arg(long, help_heading = "Sessions", value_name = "N", value_parser = at_least_one)]
    pub context: Option<usize>,
    /// Sessions in one pass [default: 32, fewer where memory is scarce]
    #[arg(long, help_heading = "Sessions", value_name = "N", value_parser = at_least_one)]
    pub batch: Option<usize>,
    /// Sessions open at once [default: 256]
    #[arg(long, help_heading = "Sessions", value_name = "N", value_parser = at_least_one)]
    pub sessions: Option<usize>,
    /// Prompt tokens that pass through the model together [default: 512, fewer where memory is scarce]
    #[arg(long, help_heading = "Sessions", value_name = "N", value_parser = at_least_one)]
    pub rows: Option<usize>,
    /// Seconds after which an unused session ends, unless it sets its own lease
    #[arg(long, help_heading = "Sessions", value_name = "S", default_value = "900", value_parser = seconds)]
    pub lease: Duration,
    /// Longest lease that a session may set, in seconds
    #[arg(long, help_heading = "Sessions", value_name = "S", default_value = "86400", value_parser = seconds)]
    pub max_lease: Duration,

    /// TOML file with the API keys and their owners; read again on SIGHUP, as certificates are
    #[arg(long, help_heading = "Security", value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// Origins of web pages that may call the server.
    #[arg(
        long,
        help_heading = "Security",
        value_name = "ORIGIN",
        help = "Origin of web pages that may call the server, such as https://example.com; * allows every \
                origin; may be repeated"
    )]
    pub cors_origin: Vec<String>,
    /// File for the actions of admins, one JSON object per line
    #[arg(long, help_heading = "Security", value_name = "FILE")]
    pub audit_log: Option<PathBuf>,
    /// Serve without API keys on any address
    #[arg(long, help_heading = "Security")]
    pub insecure: bool,
    /// Certificate for TLS (PEM)
    #[arg(
        long,
        help_heading = "Security",
        value_name = "FILE",
        requires = "tls_key"
    )]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(
        long,
        help_heading = "Security",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub tls_key: Option<PathBuf>,
    /// CA certificate (PEM) that must have signed the certificates of clients
    #[arg(
        long,
        help_heading = "Security",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub tls_client_ca: Option<PathBuf>,
    /// Largest number of connections
    #[arg(long, help_heading = "Limits", value_name = "N", default_value_t = 4096, value_parser = at_least_one)]
    pub max_connections: usize,
    /// Largest number of connections from one address other than loopback
    #[arg(long, help_heading = "Limits", value_name = "N", default_value_t = 1024, value_parser = at_least_one)]
    pub max_connections_per_address: usize,
    /// Largest number of requests that wait for a free session of a model
    #[arg(
        long,
        help_heading = "Limits",
        value_name = "N",
        default_value_t = 1024
    )]
    pub max_waiting: usize,
    /// Seconds that a request may wait for a free session
    #[arg(long, help_heading = "Limits", value_name = "S", default_value = "60", value_parser = seconds)]
    pub queue_timeout: Duration,
    /// Largest HTTP request
    #[arg(
        long,
        help_heading = "Limits",
        value_name = "SIZE",
        default_value = "8MiB"
    )]
    pub max_body: Size,
    /// Largest gRPC message
    #[arg(
        long,
        help_heading = "Limits",
        value_name = "SIZE",
        default_value = "64MiB"
    )]
    pub max_message: Size,
    /// Largest model that a client may push
    #[arg(
        long,
        help_heading = "Limits",
        value_name = "SIZE",
        default_value = "1TB"
    )]
    pub max_upload: Size,
    /// Largest size of the captures of one request
    #[arg(
        long,
        help_heading = "Limits",
        value_name = "SIZE",
        default_value = "256MiB"
    )]
    pub max_captures: Size,
    /// Host memory for captures and checkpoints of all sessions; one of several owners may use half of it
    /// [default: an eighth of the machine's memory, at most 4GiB]
    #[arg(long, help_heading = "Limits", value_name = "SIZE")]
    pub probe_memory: Option<Size>,
    /// Largest number of sessions that one request may open: prompts times n, or branches
    #[arg(long, help_heading = "Limits", value_name = "N", default_value_t = 128, value_parser = at_least_one)]
    pub max_choices: usize,
    /// Seconds a client may take to send a request
    #[arg(long, help_heading = "Limits", value_name = "S", default_value = "15", value_parser = seconds)]
    pub patience: Duration,
    /// Seconds a request may take
    #[arg(long, help_heading = "Limits", value_name = "S", default_value = "3600", value_parser = seconds)]
    pub timeout: Duration,
}

/// Value of `--host-copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HostCopyArg {
    /// For several models, while there is room.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Value of `--log-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Value of `--model`: a model and its limits.
#[derive(Clone, Debug)]
pub struct ModelFlag(pub ServedModel);

/// Owners whose requests share KV pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShareArg {
    /// Requests of one owner.
    Owner,
    /// Requests of all owners.
    All,
}

/// Largest size of something that can be turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeOrOff {
    /// No size at all.
    Off,
    /// Largest size.
    Limit(Size),
}

impl SizeOrOff {
    /// Largest size in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            SizeOrOff::Off => 0,
            SizeOrOff::Limit(size) => size.0,
        }
    }
}

impl FromStr for SizeOrOff {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(SizeOrOff::Off),
            size => match size.parse() {
                Ok(size) => Ok(SizeOrOff::Limit(size)),
                Err(error) => Err(format!("{error}; or off")),
            },
        }
    }
}

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
            return Err(format!("'{text}' does not name a model"));
        }
        check_name(&name).map_err(|error| error.to_string())?;
        let mut layout = LoadOptions::default();
        for part in parts {
            let wrong = || {
                format!(
                    "'{part}' is not memory=SIZE, context=N, batch=N, sessions=N or kv-dtype=TYPE"
                )
            };
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            let count = || at_least_one(value).map(Some);
            match key {
                "memory" => {
                    layout.memory = Some(value.parse::<Size>().map_err(|e| e.to_string())?.0);
                }
                "context" => layout.context = count()?,
                "batch" => layout.batch = count()?,
                "sessions" => layout.sessions = count()?,
                "kv-dtype" => {
                    layout.kv_dtype = Some(
                        value
                            .parse()
                            .map_err(|e: ParseKvDtypeError| e.to_string())?,
                    );
                }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use djinn_types::KvDtype;

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
        let (name, reference, layout) = read("big=org/name,memory=2GB,batch=4,kv-dtype=f32");
        assert_eq!((name.as_str(), reference.as_str()), ("big", "org/name"));
        assert_eq!(
            (layout.memory, layout.batch, layout.kv_dtype),
            (Some(2_000_000_000), Some(4), Some(KvDtype::F32))
        );
        let (name, reference, _) = read("shape:llama-2-7b?layers=4&dtype=f16");
        assert_eq!(name, "llama-2-7b");
        assert_eq!(reference, "shape:llama-2-7b?layers=4&dtype=f16");
        let (name, reference, _) = read("a=shape:llama-2-7b?layers=4");
        assert_eq!(
            (name.as_str(), reference.as_str()),
            ("a", "shape:llama-2-7b?layers=4")
        );
        for wrong in [
            "",
            "a=",
            "x,memry=1",
            "x,batch=0",
            "x,batch",
            "x,kv-dtype=i32",
        ] {
            assert!(wrong.parse::<ModelFlag>().is_err(), "{wrong}");
        }
    }
}
