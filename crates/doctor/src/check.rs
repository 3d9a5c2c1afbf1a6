//! Result of one check.

use serde_json::{Value, json};

/// Verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckVerdict {
    /// The check passed.
    Pass,
    /// Everything works, but could be better.
    Warn,
    /// Something does not work, or is slower than required.
    Fail,
}

impl CheckVerdict {
    /// Word for the verdict in tables.
    pub fn word(self) -> &'static str {
        match self {
            CheckVerdict::Pass => "pass",
            CheckVerdict::Warn => "warn",
            CheckVerdict::Fail => "FAIL",
        }
    }
}

/// Subject of a check, its verdict, what was found, and a remedy for a problem.
#[derive(Clone, Debug)]
pub struct MachineCheck {
    /// Subject of the check.
    pub name: &'static str,
    /// Verdict.
    pub verdict: CheckVerdict,
    /// Finding of the check.
    pub detail: String,
    /// Remedy for a problem.
    pub remedy: Option<String>,
}

impl MachineCheck {
    pub(crate) fn pass(name: &'static str, detail: impl Into<String>) -> Self {
        MachineCheck {
            name,
            verdict: CheckVerdict::Pass,
            detail: detail.into(),
            remedy: None,
        }
    }

    pub(crate) fn warn(
        name: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        MachineCheck {
            verdict: CheckVerdict::Warn,
            remedy: Some(remedy.into()),
            ..MachineCheck::pass(name, detail)
        }
    }

    pub(crate) fn fail(
        name: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        MachineCheck {
            verdict: CheckVerdict::Fail,
            ..MachineCheck::warn(name, detail, remedy)
        }
    }

    /// Returns the check as lines of a table: `verdict` is its possibly coloured word, and names are `width` columns
    /// wide. The remedy stands below the check.
    pub fn text(&self, verdict: &str, width: usize) -> String {
        let line = format!("{verdict}  {:<width$}  {}\n", self.name, self.detail);
        match &self.remedy {
            None => line,
            Some(remedy) => format!("{line}      {:<width$}  → {remedy}\n", ""),
        }
    }

    /// Returns the check as JSON.
    pub fn json(&self) -> Value {
        json!({
            "check": self.name, "verdict": self.verdict.word().to_lowercase(),
            "detail": self.detail, "remedy": self.remedy,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::MachineCheck;

    #[test]
    fn a_remedy_stands_below_its_check() {
        let check = MachineCheck::fail("link", "3.10 GB/s", "move the card");
        assert_eq!(
            check.text("FAIL", 6),
            "FAIL  link    3.10 GB/s\n              → move the card\n"
        );
        assert_eq!(check.json()["verdict"], "fail");
        let check = MachineCheck::pass("swap", "none");
        assert_eq!(check.text("pass", 4), "pass  swap  none\n");
    }
}
