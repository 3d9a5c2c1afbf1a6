//! `djinn doctor`

use djinn_doctor::{CheckVerdict, DoctorOptions, MachineCheck, examine};
use djinn_terminal::{Colour, Failure, coloured, say, say_json};

use crate::{args::DoctorArgs, progress::Spinner};

/// Checks this machine.
pub fn doctor(args: &DoctorArgs) -> Result<(), Failure> {
    let options = DoctorOptions {
        device: args.device,
        threshold: args.threshold,
    };
    let checks = {
        let spinner = Spinner::new("checking");
        examine(options, &mut |step| spinner.show(step.to_owned()))
    };
    match args.json {
        true => say_json(&checks.iter().map(MachineCheck::json).collect())?,
        false => say(&text(&checks))?,
    }
    let is_failed = |check: &&MachineCheck| check.verdict == CheckVerdict::Fail;
    let failed: Vec<&str> = checks
        .iter()
        .filter(is_failed)
        .map(|check| check.name)
        .collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::Message(format!(
            "{} of {} checks failed: {}",
            failed.len(),
            checks.len(),
            failed.join(", ")
        ))),
    }
}

fn text(checks: &[MachineCheck]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max();
    let line = |check: &MachineCheck| {
        let colour = match check.verdict {
            CheckVerdict::Pass => Colour::Green,
            CheckVerdict::Warn => Colour::Yellow,
            CheckVerdict::Fail => Colour::Red,
        };
        let verdict = coloured(check.verdict.word(), colour);
        check.text(&verdict, width.unwrap_or(0))
    };
    checks.iter().map(line).collect()
}
