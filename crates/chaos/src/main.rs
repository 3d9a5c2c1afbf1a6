//! `djinn-chaos`: runs a server under load and faults, and prints what was found.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use djinn_chaos::{ChaosError, ChaosSettings, FaultKind};

/// Runs a server under load and faults, and checks what it promised.
#[derive(Debug, Parser)]
#[command(name = "djinn-chaos", version)]
struct ChaosArgs {
    /// Seconds after which no further round begins
    #[arg(long, value_name = "S", default_value_t = 180)]
    seconds: u64,
    /// Seed of all choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Kinds of faults to run, separated by commas [default: all]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    faults: Vec<FaultKind>,
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

fn main() -> ExitCode {
    match start(ChaosArgs::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("djinn-chaos: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether the server kept its promises.
fn start(args: ChaosArgs) -> Result<bool, ChaosError> {
    let temporary = tempfile::tempdir()?;
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("djinn"));
    let settings = ChaosSettings {
        program: args.server.map_or_else(beside, Ok)?,
        model: args.model.canonicalize()?,
        folder: args.folder.unwrap_or_else(|| temporary.path().to_owned()),
        time: Duration::from_secs(args.seconds),
        seed: args.seed,
        faults: match args.faults.is_empty() {
            true => FaultKind::ALL.to_vec(),
            false => args.faults,
        },
    };
    println!("seed {}", settings.seed);
    let runtime = tokio::runtime::Runtime::new()?;
    let report = runtime.block_on(djinn_chaos::run(&settings))?;
    println!("{}", report.to_text());
    for broken in &report.violations {
        println!("BROKEN: {broken}");
    }
    Ok(report.violations.is_empty())
}
