//! `djinn doctor`

mod card;
mod host;

use serde_json::{Value, json};

use crate::{
    args::DoctorArgs,
    failure::{Failure, say, say_json},
    style::{Colour, coloured},
};

/// Checks this machine.
pub fn doctor(args: &DoctorArgs) -> Result<(), Failure> {
    let (mut checks, on_card) = card::checks(args);
    checks.extend(host::checks(on_card.as_ref()));
    if args.json {
        say_json(&checks.iter().map(Check::json).collect())?;
    } else {
        let width = checks.iter().map(|check| check.name.len()).max();
        let lines = checks.iter().map(|check| check.text(width.unwrap_or(0)));
        say(&lines.collect::<String>())?;
    }
    let failed: Vec<&str> = checks
        .iter()
        .filter(|check| check.verdict == Verdict::Fail)
        .map(|check| check.name)
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Message(format!(
        "{} of {} checks failed: {}",
        failed.len(),
        checks.len(),
        failed.join(", ")
    )))
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Pass,
    /// It works, and could be better.
    Warn,
    /// It does not work, or not as was asked.
    Fail,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        }
    }

    fn colour(self) -> Colour {
        match self {
            Verdict::Pass => Colour::Green,
            Verdict::Warn => Colour::Yellow,
            Verdict::Fail => Colour::Red,
        }
    }
}

/// What was looked at, what was found, and what to do about it.
#[derive(Clone, Debug)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    detail: String,
    remedy: Option<String>,
}

impl Check {
    fn pass(name: &'static str, detail: impl Into<String>) -> Self {
        Check {
            name,
            verdict: Verdict::Pass,
            detail: detail.into(),
            remedy: None,
        }
    }

    fn warn(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Check {
            verdict: Verdict::Warn,
            remedy: Some(remedy.into()),
            ..Check::pass(name, detail)
        }
    }

    fn fail(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Check {
            verdict: Verdict::Fail,
            ..Check::warn(name, detail, remedy)
        }
    }

    fn text(&self, width: usize) -> String {
        let word = coloured(self.verdict.word(), self.verdict.colour());
        let line = format!("{word}  {:<width$}  {}\n", self.name, self.detail);
        match &self.remedy {
            None => line,
            Some(remedy) => format!("{line}      {:<width$}  → {remedy}\n", ""),
        }
    }

    fn json(&self) -> Value {
        json!({
            "check": self.name, "verdict": self.verdict.word().to_lowercase(),
            "detail": self.detail, "remedy": self.remedy,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Check;

    #[test]
    fn a_remedy_stands_below_its_check() {
        let check = Check::fail("link", "3.10 GB/s", "move the card");
        assert_eq!(
            check.text(6),
            "FAIL  link    3.10 GB/s\n              → move the card\n"
        );
        assert_eq!(check.json()["verdict"], "fail");
        assert_eq!(Check::pass("swap", "none").text(4), "pass  swap  none\n");
    }
}
