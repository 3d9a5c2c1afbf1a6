//! `djinn serve`

use std::{net::SocketAddr, time::Duration};

use djinn_device::DeviceName;
use djinn_engine::{KvMemory, PrefixCacheSettings, SharePrefixes, SpillConfig};
use djinn_server::{
    HostCopy, LoadOptions, OperationSettings, Running, ServeError, ServedModel, ServerConfig,
    ServerLimits, TlsFiles, TraceExporter,
};
use djinn_terminal::{Failure, say};
use djinn_types::Size;

use crate::{
    args::{HostCopyArg, LogFormat, ServeArgs, Setting, ShareArg, SizeOrOff, serve_settings},
    bundled,
};

/// Commit that the program was built from.
pub const COMMIT: &str = env!("DJINN_COMMIT");

/// Time after which a pass on a card that does not end means that the card hangs.
const WATCHDOG_DEFAULT: Duration = Duration::from_secs(300);
/// Reference of the model that ships with Djinn.
const BUNDLED: &str = "bundled";

/// Serves models until a signal ends the process.
pub fn serve() -> Result<(), Failure> {
    let (args, settings) = serve_settings().map_err(Failure::Message)?;
    eprint!("{}", to_text(&settings));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(djinn_device::host::cores().clamp(2, 8))
        .thread_name("serve")
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::Message(format!("cannot start threads of the server: {error}"))
        })?;
    let served = runtime.block_on(async {
        let traces = args
            .otlp
            .as_ref()
            .map(|url| TraceExporter::to(url, &args.node_id))
            .transpose();
        let traces = traces.map_err(|error| Failure::Message(format!("--otlp: {error}")))?;
        start_log(args.log_level, args.log_format, traces.as_ref());
        let served = run(config(args)?).await;
        if let Some(traces) = traces {
            traces.end();
        }
        served
    });
    // Work that still runs on other threads does not hold up the end of the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    served
}

async fn run(config: ServerConfig) -> Result<(), Failure> {
    let has_tls = config.tls.is_some();
    let running = djinn_server::start(config).await?;
    // A closed standard output is not an error of the server.
    let ready = |running: &Running| drop(say(&ready(running, has_tls)));
    match running.run_until_signal(ready).await {
        Err(ServeError::Fatal(reason)) => djinn_server::exit_after_fatal(&reason),
        served => Ok(served?),
    }
}

/// Line with the addresses of the server. Programs that start a server wait for it.
fn ready(running: &Running, has_tls: bool) -> String {
    let mut text = String::new();
    for address in &running.addresses {
        text += &format!("Server ready, listening on {address}\n");
    }
    if let Some(address) = running.addresses.first() {
        let scheme = if has_tls { "https" } else { "http" };
        eprintln!("try: curl {scheme}://{address}/v1/models");
    }
    text
}

fn start_log(level: tracing::Level, format: LogFormat, traces: Option<&TraceExporter>) {
    use tracing_subscriber::{
        Layer, filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt,
    };
    // Libraries log warnings only, unless the level asks for less.
    let quiet = level.min(tracing::Level::WARN);
    let targets = Targets::new()
        .with_default(quiet)
        .with_target("djinn", level);
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(ansi).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let spans = traces.map(|traces| {
        traces
            .layer()
            .with_filter(tracing::level_filters::LevelFilter::INFO)
    });
    let _ = tracing_subscriber::registry()
        .with(spans)
        .with(lines.with_filter(targets))
        .try_init();
}

/// Default host memory for captures and checkpoints: an eighth of the machine's memory, at most the server's
/// default.
fn probe_memory() -> u64 {
    let limit = ServerLimits::default().probe_bytes;
    djinn_device::host::all_memory().map_or(limit, |all| (all / 8).min(limit))
}

/// Settings in effect, with their sources.
fn to_text(settings: &[Setting]) -> String {
    let width = settings
        .iter()
        .map(|setting| setting.name.len())
        .max()
        .unwrap_or(0);
    let line = |setting: &Setting| {
        format!(
            "  {:width$} = {}  ({})\n",
            setting.name, setting.value, setting.source
        )
    };
    settings.iter().map(line).collect()
}

/// Configuration of a server with these settings.
pub fn config(args: ServeArgs) -> Result<ServerConfig, Failure> {
    let mut device = args.device.clone();
    if args.gpus.len() > 1 {
        return Err(Failure::Message(
            "--gpus: a server runs on one card; start a server on its own port for each card"
                .into(),
        ));
    }
    if let Some(gpu) = args.gpu.or(args.gpus.first().copied()) {
        device.device = DeviceName::Cuda(gpu);
    }
    let chosen = device.choose()?;
    if let Some(note) = chosen.note() {
        eprintln!("{note}");
    }
    let mut memory = args.memory.clone();
    if let Some(gb) = args.ring_buffer_gb {
        memory.ring = Some(Size((gb * 1e9) as u64));
    }
    memory.workers = memory.workers.or(args.ring_buffer_workers);
    let memory = memory.resolve(chosen.backend.free_memory()?);
    let ports = [Some(args.port), args.control_port, args.data_port];
    let mut listen: Vec<SocketAddr> = Vec::new();
    for port in ports.into_iter().flatten() {
        let address = SocketAddr::new(args.host, port);
        if port == 0 || !listen.contains(&address) {
            listen.push(address);
        }
    }
    let on_card = chosen.backend.card().is_some();
    if args.host_copy == HostCopyArg::On && !on_card {
        eprintln!("note: --host-copy on has no effect: a CPU reads weights from their files");
    }
    let watchdog = args.watchdog.or(on_card.then_some(WATCHDOG_DEFAULT));
    let home = || djinn_hub::ModelPaths::from_env().map(|paths| paths.home);
    Ok(ServerConfig {
        listen,
        node: args.node_id,
        backend: chosen.backend,
        memory,
        host_copy: match args.host_copy {
            HostCopyArg::Auto => HostCopy::Auto,
            HostCopyArg::On => HostCopy::On,
            HostCopyArg::Off => HostCopy::Off,
        },
        kv: KvMemory {
            device: args.kv.map(|size| size.0),
            spill: args.spill.map(|folder| SpillConfig {
                folder,
                bytes: args.spill_size.0,
            }),
        },
        prefix_cache: PrefixCacheSettings {
            share: match args.share_prefixes {
                ShareArg::Owner => SharePrefixes::Owner,
                ShareArg::All => SharePrefixes::All,
            },
            limit: args.prefix_cache.map(SizeOrOff::bytes),
            saved: args.saved_prefixes.map(SizeOrOff::bytes),
        },
        models: match args.model.is_empty() {
            true => vec![bundled_model()?],
            false => {
                let models = args.model.into_iter().map(|model| named(model.0));
                models.collect::<Result<_, Failure>>()?
            }
        },
        layout: LoadOptions {
            context: args.context,
            batch: args.batch,
            sessions: args.sessions,
            rows: args.rows,
            ..LoadOptions::default()
        },
        model_dirs: args.model_dir,
        pushed: match args.push_dir {
            Some(folder) => folder,
            None => home()?.join("pushed"),
        },
        state: args.state,
        keys: args.keys,
        tls: args
            .tls_cert
            .zip(args.tls_key)
            .map(|(certificate, key)| TlsFiles {
                certificate,
                key,
                client_ca: args.tls_client_ca,
            }),
        limits: ServerLimits {
            connections: args.max_connections,
            connections_per_address: args.max_connections_per_address,
            queue: args.max_waiting,
            queue_wait: args.queue_timeout,
            stall: args.stall_timeout,
            probe_bytes: args.probe_memory.map_or_else(probe_memory, |size| size.0),
            body_bytes: args.max_body.0 as usize,
            message_bytes: args.max_message.0 as usize,
            upload_bytes: args.max_upload.0,
            capture_bytes: args.max_captures.0,
            batch: args.max_choices,
            patience: args.patience,
            deadline: args.timeout,
            lease: args.lease.min(args.max_lease),
            longest_lease: args.max_lease,
            ..ServerLimits::default()
        },
        drain: args.drain,
        insecure: args.insecure,
        operation: OperationSettings {
            metrics_listen: args.metrics_addr,
            cors_origins: args.cors_origin,
            drain_delay: args.drain_delay,
            audit: args.audit_log,
            watchdog: watchdog.filter(|limit| !limit.is_zero()),
        },
        commit: COMMIT.to_owned(),
    })
}

/// Model of a flag; `bundled` means the model that ships with Djinn.
fn named(model: ServedModel) -> Result<ServedModel, Failure> {
    if model.reference != BUNDLED {
        return Ok(model);
    }
    let bundled = bundled_model()?;
    let name = match model.name.as_str() {
        BUNDLED => bundled.name,
        _ => model.name,
    };
    Ok(ServedModel {
        name,
        reference: bundled.reference,
        layout: model.layout,
    })
}

/// Model that ships with Djinn.
fn bundled_model() -> Result<ServedModel, Failure> {
    let folder = bundled::bundled()?.to_string_lossy().into_owned();
    Ok(ServedModel {
        name: djinn_server::default_name(&folder),
        reference: folder,
        layout: LoadOptions::default(),
    })
}
