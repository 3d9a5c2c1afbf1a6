//! `djinn bench`

use std::cell::OnceCell;

use djinn_analysis::loaded_info;
use djinn_bench::{
    BenchError, BenchHost, BenchReport, BenchTarget, DecodeOptions, ElasticOptions, HookOptions,
    LinkOptions, LongOptions, OperationOptions, PrefillOptions, PrefixOptions, RestoreOptions,
    ServeOptions, SessionLoadOptions, StreamOptions, SwapOptions,
};
use djinn_device::{ChosenDevice, DeviceName};
use djinn_engine::{Blueprint, Engine, Settings, SizeRange};
use djinn_model::Model;
use djinn_server::LoadOptions;
use djinn_terminal::{Failure, say, say_json};

use super::{
    connection::{LocalEngine, on_model, on_model_twice},
    loading,
    sizing::interactive,
};
use crate::{
    args::{
        Bench, BenchArgs, BenchLinkArgs, BenchMemoryArgs, BenchOperationsArgs, BenchPrefixArgs,
        BenchServeArgs, BenchSessionsArgs, BenchSwapArgs, ModelArgs, ResolvedModel,
    },
    bundled,
    progress::Spinner,
};

/// Runs a benchmark and prints its report.
pub fn bench(args: BenchArgs) -> Result<(), Failure> {
    match args.benchmark {
        Bench::Memory(args) => print(memory(&args)?, args.json),
        Bench::Link(args) => print(link(&args)?, args.json),
        Bench::Operations(args) => print(operations(&args)?, args.json),
        Bench::Decode(args) => {
            let options = DecodeOptions {
                tokens: args.tokens,
                context: args.context,
                sessions: usize::from(args.sessions),
            };
            let report = on_target(&args.model, |target| djinn_bench::decode(&options, target))?;
            print(report, args.json)
        }
        Bench::Prefill(args) => {
            let options = PrefillOptions {
                tokens: args.tokens,
                repeat: args.repeat,
            };
            let report = on_target(&args.model, |target| djinn_bench::prefill(&options, target))?;
            print(report, args.json)
        }
        Bench::Prefix(args) => print(prefix(&args)?, args.json),
        Bench::Swap(args) => print(swap(&args)?, args.json),
        Bench::Stream(args) => {
            let options = StreamOptions {
                repeat: args.repeat,
                tokens: args.tokens,
            };
            let report = on_target(&args.model, |target| djinn_bench::stream(&options, target))?;
            print(report, args.json)
        }
        Bench::Restore(args) => {
            let options = RestoreOptions {
                context: args.context,
                repeat: args.repeat,
            };
            let report = on_target(&args.model, |target| djinn_bench::restore(&options, target))?;
            print(report, args.json)
        }
        Bench::Long(args) => {
            let options = LongOptions {
                context: args.context,
                tokens: args.tokens,
                kv: args.kv.map(|size| size.0),
            };
            let report = on_target(&args.model, |target| djinn_bench::long(&options, target))?;
            print(report, args.json)
        }
        Bench::Elastic(args) => {
            let options = ElasticOptions {
                phases: args.phases,
                tokens: args.tokens,
                output: args.output,
                measure: args.measure,
                compare: !args.alone,
            };
            let report = on_target(&args.model, |target| djinn_bench::elastic(&options, target))?;
            print(report, args.json)
        }
        Bench::Hooks(args) => {
            let options = HookOptions {
                context: args.context,
                blocks: args.blocks,
                tokens: args.tokens,
                repeat: args.repeat,
            };
            let report = on_target(&args.model, |target| djinn_bench::hooks(&options, target))?;
            print(report, args.json)
        }
        Bench::Sessions(args) => {
            let options = session_options(&args);
            let report = on_target(&args.model, |target| {
                djinn_bench::sessions(&options, target)
            })?;
            print(report, args.json)
        }
        Bench::Serve(args) => {
            let options = serve_options(&args)?;
            let report = on_target(&args.model, |target| djinn_bench::serve(&options, target))?;
            print(report, args.json)
        }
    }
}

/// Prints a report. A failed check ends the command with exit status 2.
fn print(report: BenchReport, json: bool) -> Result<(), Failure> {
    match json {
        true => say_json(&report.json)?,
        false => say(&report.text)?,
    }
    match (report.passed, json, report.verdict) {
        (false, true, Some(verdict)) => return Err(Failure::Message(verdict)),
        (_, false, Some(verdict)) => say(&format!("{verdict}\n"))?,
        _ => {}
    }
    match report.passed {
        true => Ok(()),
        false => Err(Failure::Reported),
    }
}

/// Runs a benchmark on the model, device and memory that flags name.
fn on_target(
    args: &ModelArgs,
    run: impl FnOnce(&BenchTarget<'_>) -> Result<BenchReport, BenchError>,
) -> Result<BenchReport, Failure> {
    let resolved = args.resolve()?;
    let host = TerminalHost {
        resolved: &resolved,
        spinner: OnceCell::new(),
    };
    let target = BenchTarget {
        backend: resolved.backend(),
        threads: args.device.threads,
        memory: resolved.memory,
        has_budget: args.memory.memory.is_some(),
        rows: args.rows.unwrap_or(Settings::ROWS),
        host: &host,
    };
    Ok(run(&target)?)
}

/// Opens and loads models for benchmarks, and shows progress on standard error.
struct TerminalHost<'a> {
    resolved: &'a ResolvedModel,
    spinner: OnceCell<Spinner>,
}

impl BenchHost for TerminalHost<'_> {
    fn open(&self) -> Result<Model, BenchError> {
        bundled::open(self.resolved.args.model.as_deref()).map_err(host_error)
    }

    fn load(&self, model: Model, blueprint: Blueprint) -> Result<Engine, BenchError> {
        loading::load(self.resolved, model, blueprint).map_err(host_error)
    }

    fn progress(&self, text: &str) {
        let spinner = self.spinner.get_or_init(|| Spinner::new(text));
        spinner.show(text.to_owned());
    }

    fn note(&self, text: &str) {
        eprintln!("{text}");
    }
}

fn host_error(failure: Failure) -> BenchError {
    match failure {
        Failure::Message(message) => BenchError::Host(message),
        other => BenchError::Host(format!("{other:?}")),
    }
}

fn prefix(args: &BenchPrefixArgs) -> Result<BenchReport, Failure> {
    let options = PrefixOptions {
        tokens: args.tokens,
        repeat: args.repeat,
    };
    let (context, rows) = (args.tokens + 1, args.model.rows);
    let settings = move |model: &Model| {
        let demand = interactive(Some(context), rows);
        Ok(SizeRange::for_sessions(&model.program, demand)?)
    };
    let engine = LocalEngine::new(Box::new(settings));
    on_model(&args.server, &args.model, engine, async |connection| {
        let info = connection.model_info().await?;
        Ok(djinn_bench::prefix(&options, &connection.model, &info).await?)
    })
}

fn swap(args: &BenchSwapArgs) -> Result<BenchReport, Failure> {
    let options = SwapOptions {
        tokens: args.tokens,
        rounds: args.rounds,
    };
    let layout = LoadOptions {
        context: Some(args.tokens + 1),
        rows: args.model.rows,
        ..LoadOptions::default()
    };
    on_model_twice(&args.model, layout, async |models| {
        let info = loaded_info(&models[0]).await?;
        Ok(djinn_bench::swap(&options, models, &info).await?)
    })
}

fn memory(args: &BenchMemoryArgs) -> Result<BenchReport, Failure> {
    let chosen = args.device.choose()?;
    let device = chosen.to_string();
    if chosen.backend.card().is_some() {
        if args.device.threads.is_some() {
            eprintln!("note: --threads has no effect: the card computes");
        }
        if args.size.is_some() {
            eprintln!("note: --size has no effect: a card's memory is measured by copies of 2 GiB");
        }
        return Ok(djinn_bench::card_memory(&*chosen.backend, &device)?);
    }
    let report = djinn_bench::processor_memory(&device, args.device.threads, args.size)?;
    print_device(&chosen);
    Ok(report)
}

/// Prints the device, unless the user named it.
fn print_device(chosen: &ChosenDevice) {
    if let Some(note) = chosen.note() {
        eprintln!("{note}");
    }
}

fn link(args: &BenchLinkArgs) -> Result<BenchReport, Failure> {
    let of_files = args.model.is_some() || args.workers.is_some() || args.seconds.is_some();
    let device = match args.device {
        DeviceName::Auto if of_files => DeviceName::Cpu,
        device => device,
    };
    let options = LinkOptions {
        workers: args.workers,
        chunk: args.chunk.map(|size| size.0),
        seconds: args.seconds,
        repeat: args.repeat,
        threshold: args.threshold,
    };
    let chosen = device.choose(None)?;
    match chosen.backend.card() {
        None => {
            let model = bundled::open(args.model.as_deref())?;
            let report = djinn_bench::file_link(&options, &model)?;
            print_device(&chosen);
            Ok(report)
        }
        Some(_) if of_files => Err(Failure::Message(format!(
            "--model, --workers and --seconds measure reading files, which {device} does not do; leave \
             them out, or use --device cpu"
        ))),
        Some(card) => {
            let spinner = Spinner::new("");
            let progress = |text: &str| spinner.show(text.to_owned());
            Ok(djinn_bench::card_link(&options, card, &progress)?)
        }
    }
}

fn operations(args: &BenchOperationsArgs) -> Result<BenchReport, Failure> {
    let model = bundled::open(args.model.as_deref())?;
    let options = OperationOptions {
        rows: args.rows.clone(),
        context: args.context,
    };
    let backend = args.device.choose()?.backend;
    Ok(djinn_bench::operations(&options, &*backend, &model)?)
}

fn session_options(args: &BenchSessionsArgs) -> SessionLoadOptions {
    SessionLoadOptions {
        sessions: args.sessions,
        batch: args.batch,
        arrivals: args.arrivals,
        prompt: args.prompt,
        prefix: args.prefix,
        output: args.output,
        answer: args.answer,
        turns: args.turns,
        think: args.think,
        announce: args.announce,
        kv: args.kv(),
        check: args.check,
        seed: args.seed,
    }
}

fn serve_options(args: &BenchServeArgs) -> Result<ServeOptions, Failure> {
    let ModelArgs { device, memory, .. } = &args.model;
    let device_flags = [
        Some(format!("--device={}", device.device)),
        device.threads.map(|n| format!("--threads={n}")),
    ];
    let flags = device_flags.into_iter().flatten();
    Ok(ServeOptions {
        program: std::env::current_exe()?,
        flags: flags.chain(memory.to_flags()).collect(),
        model: args.model.model.clone(),
        rows: args.model.rows.unwrap_or(Settings::ROWS),
        context: args.context,
        batch: args.batch,
        clients: args.clients,
        seconds: args.seconds,
        silent: args.silent,
        kv: args.kv,
        push: args.push.clone(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser;

    use super::serve_options;
    use crate::args::BenchServeArgs;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: BenchServeArgs,
    }

    #[test]
    fn the_server_of_a_benchmark_gets_all_flags_of_device_and_memory() {
        let flags = [
            "--device=cpu",
            "--threads=2",
            "--memory=100000000B",
            "--ring=1000000B",
            "--resident=none",
            "--host-memory=0.5",
            "--kv-dtype=f16",
            "--chunk=65536B",
            "--workers=2",
            "--prefetch=off",
            "--elastic=on",
        ];
        let parsed = Flags::parse_from(["djinn"].iter().chain(&flags));
        assert_eq!(serve_options(&parsed.args).unwrap().flags, flags);
    }
}
