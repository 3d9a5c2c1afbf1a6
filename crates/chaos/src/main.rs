//! `djinn-chaos`: runs a server under load and faults, and prints what was found.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Parser, Subcommand};
use djinn_chaos::{ChaosError, ChaosSettings, FaultKind, LoadSettings};

/// Runs a server under load and faults, and checks what it promised.
#[derive(Debug, Parser)]
#[command(name = "djinn-chaos", version, args_conflicts_with_subcommands = true)]
struct ChaosArgs {
    #[command(flatten)]
    run: RunFlags,
    /// Kinds of faults to run, separated by commas [default: all]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    faults: Vec<FaultKind>,
    #[command(subcommand)]
    mode: Option<ChaosMode>,
}

/// Runs other than the one with faults.
#[derive(Debug, Subcommand)]
enum ChaosMode {
    /// Mixed requests without faults, except planned restarts; prints a Markdown table
    Load {
        #[command(flatten)]
        run: RunFlags,
        /// Folder of a small model to push
        #[arg(long, value_name = "DIR", default_value = "testdata/golden/llama2")]
        push: PathBuf,
    },
}

/// Flags of every run.
#[derive(Debug, Args)]
struct RunFlags {
    /// Seconds after which no further round begins
    #[arg(long, value_name = "S", default_value_t = 180)]
    seconds: u64,
    /// Seed of all choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Path of the djinn program [default: djinn beside this program]
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    /// Folder of the model
    #[arg(long, value_name = "DIR", default_value = "models/stories-7m")]
    model: PathBuf,
    /// Folder that keeps the server's files and log [default: a temporary folder]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl RunFlags {
    fn program(&self) -> Result<PathBuf, ChaosError> {
        match &self.server {
            Some(path) => Ok(path.canonicalize()?),
            None => Ok(std::env::current_exe()?.with_file_name("djinn")),
        }
    }
}

fn main() -> ExitCode {
    match start(ChaosArgs::parse()) {
        Ok(violations) if violations.is_empty() => ExitCode::SUCCESS,
        Ok(violations) => {
            for broken in violations {
                println!("BROKEN: {broken}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("djinn-chaos: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs what the flags ask for, and returns the broken promises.
fn start(args: ChaosArgs) -> Result<Vec<String>, ChaosError> {
    let temporary = tempfile::tempdir()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let folder = |run: &RunFlags| match &run.folder {
        Some(folder) => folder.clone(),
        None => temporary.path().to_owned(),
    };
    if let Some(ChaosMode::Load { run, push }) = args.mode {
        let settings = LoadSettings {
            program: run.program()?,
            model: run.model.canonicalize()?,
            pushed: push.canonicalize()?,
            folder: folder(&run),
            time: Duration::from_secs(run.seconds),
            seed: run.seed,
        };
        let report = runtime.block_on(djinn_chaos::load(&settings))?;
        println!("{}", report.to_markdown());
        return Ok(report.violations);
    }
    let run = args.run;
    let settings = ChaosSettings {
        program: run.program()?,
        model: run.model.canonicalize()?,
        folder: folder(&run),
        time: Duration::from_secs(run.seconds),
        seed: run.seed,
        faults: match args.faults.is_empty() {
            true => FaultKind::ALL.to_vec(),
            false => args.faults,
        },
    };
    println!("seed {}", settings.seed);
    let report = runtime.block_on(djinn_chaos::run(&settings))?;
    println!("{}", report.to_text());
    Ok(report.violations)
}
