//! `djinn serve`

use std::net::SocketAddr;

use djinn_engine::{KvMemory, SpillConfig};
use djinn_server::{
    LoadOptions, Running, ServedModel, ServerConfig, ServerLimits, TlsFiles, TraceExporter,
};
use djinn_types::Size;

use crate::{
    args::{DeviceName, ServeArgs, Setting, settle_serve},
    bundled,
    failure::{Failure, say},
};

/// The commit this was built from.
pub const COMMIT: &str = env!("DJINN_COMMIT");

/// What the model that ships with Djinn is called beside others.
const BUNDLED: &str = "bundled";

/// Serves models until it is told to stop.
pub fn serve() -> Result<(), Failure> {
    let (args, settings) = settle_serve().map_err(Failure::Message)?;
    eprint!("{}", shown(&settings));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(djinn_device::host::cores().clamp(2, 8))
        .thread_name("serve")
        .enable_all()
        .build()
        .map_err(|error| Failure::Message(format!("no threads to serve with: {error}")))?;
    runtime.block_on(async {
        let traces = args
            .otlp
            .as_ref()
            .map(|url| TraceExporter::to(url, &args.node_id))
            .transpose();
        let traces = traces.map_err(|error| Failure::Message(format!("--otlp: {error}")))?;
        start_log(args.log_level, traces.as_ref());
        let served = run(config(args)?).await;
        if let Some(traces) = traces {
            traces.end();
        }
        served
    })
}

async fn run(config: ServerConfig) -> Result<(), Failure> {
    let speaks_tls = config.tls.is_some();
    let running = djinn_server::start(config).await?;
    // Whoever closed standard output does not want to hear of it.
    let ready = |running: &Running| drop(say(&ready(running, speaks_tls)));
    Ok(running.run_until_signal(ready).await?)
}

/// The line that says where: whoever started this waits for it.
fn ready(running: &Running, speaks_tls: bool) -> String {
    let mut text = String::new();
    for address in &running.addresses {
        text += &format!("Server ready, listening on {address}\n");
    }
    if let Some(address) = running.addresses.first() {
        let scheme = if speaks_tls { "https" } else { "http" };
        eprintln!("try: curl {scheme}://{address}/v1/models");
    }
    text
}

fn start_log(level: tracing::Level, traces: Option<&TraceExporter>) {
    use tracing_subscriber::{
        Layer, filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt,
    };
    // What libraries have to say is for who looks for it.
    let quiet = level.min(tracing::Level::WARN);
    let targets = Targets::new()
        .with_default(quiet)
        .with_target("djinn", level);
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(ansi)
        .with_target(false);
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

/// What took effect, and who said so.
fn shown(settings: &[Setting]) -> String {
    let width = settings
        .iter()
        .map(|setting| setting.name.len())
        .max()
        .unwrap_or(0);
    let line = |setting: &Setting| {
        format!(
            "  {:width$} = {}  ({})\n",
            setting.name, setting.value, setting.from
        )
    };
    settings.iter().map(line).collect()
}

fn config(args: ServeArgs) -> Result<ServerConfig, Failure> {
    let mut device = args.device.clone();
    if args.gpus.len() > 1 {
        return Err(Failure::Message(
            "--gpus: a server runs on one card; start one for each, with a port of its own".into(),
        ));
    }
    if let Some(gpu) = args.gpu.or(args.gpus.first().copied()) {
        device.device = DeviceName::Cuda(gpu);
    }
    let chosen = device.choose()?;
    chosen.say();
    let mut memory = args.memory.clone();
    if let Some(gb) = args.ring_buffer_gb {
        memory.ring = Some(Size((gb * 1e9) as u64));
    }
    memory.workers = memory.workers.or(args.ring_buffer_workers);
    let memory = memory.settled(chosen.backend.free_memory()?);
    let ports = [Some(args.port), args.control_port, args.data_port];
    let mut listen: Vec<SocketAddr> = Vec::new();
    for port in ports.into_iter().flatten() {
        let address = SocketAddr::new(args.host, port);
        if port == 0 || !listen.contains(&address) {
            listen.push(address);
        }
    }
    let home = || djinn_hub::ModelPaths::from_env().map(|paths| paths.home);
    Ok(ServerConfig {
        listen,
        node: args.node_id,
        backend: chosen.backend,
        memory,
        kv: KvMemory {
            device: args.kv.map(|size| size.0),
            spill: args.spill.map(|folder| SpillConfig {
                folder,
                bytes: args.spill_size.0,
            }),
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
            rows: Some(args.rows),
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
        commit: COMMIT.to_owned(),
    })
}

/// A model, where `bundled` stands for the one that ships with Djinn.
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

/// The model that ships with Djinn.
fn bundled_model() -> Result<ServedModel, Failure> {
    let folder = bundled::bundled()?.to_string_lossy().into_owned();
    Ok(ServedModel {
        name: djinn_server::default_name(&folder),
        reference: folder,
        layout: LoadOptions::default(),
    })
}
