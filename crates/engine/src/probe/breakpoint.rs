//! Breakpoints, and their text form:
//! `HOOK[@POSITIONS][,step=N][,token=ID][,norm>X]`.

use std::{fmt, str::FromStr};

use djinn_model::{Site, hook, program::Program};
use djinn_types::text::shown;
use serde::{Deserialize, Serialize};

use super::positions::Positions;
use crate::error::{EngineError, ParseError, ParsedText};

/// A breakpoint that is not bound to a model yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BreakSpec {
    /// Name of a hook, or of several with `*`.
    pub hook: String,
    /// Rows that the breakpoint pauses at.
    #[serde(flatten)]
    pub when: BreakCondition,
}

/// Condition of a breakpoint. A row matches if all parts of the condition hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BreakCondition {
    /// Positions that match.
    #[serde(default)]
    pub positions: Positions,
    /// Number of tokens generated before the row: 0 is the prompt, and appended tokens count with
    /// the generated token before them.
    #[serde(default)]
    pub step: Option<usize>,
    /// Token that matches.
    #[serde(default)]
    pub token: Option<u32>,
    /// Condition on the norm of the activation.
    #[serde(default)]
    pub norm: Option<NormCondition>,
}

/// Condition on the Euclidean norm of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormCondition {
    /// The norm is above this value.
    Above(f32),
    /// The norm is below this value.
    Below(f32),
}

impl NormCondition {
    /// Whether the condition holds for a row.
    pub(crate) fn holds(self, row: &[f32]) -> bool {
        let squares = row.iter().map(|x| f64::from(*x) * f64::from(*x));
        let length = squares.sum::<f64>().sqrt();
        match self {
            NormCondition::Above(limit) => length > f64::from(limit),
            NormCondition::Below(limit) => length < f64::from(limit),
        }
    }
}

/// Place to which a resumed session runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunUntil {
    /// The session runs to the next breakpoint.
    #[default]
    Breakpoint,
    /// The session runs to the next hook.
    Hook,
    /// The session runs to the end of the current block, or from there to the end of the next one.
    Block,
    /// The session runs to this hook.
    Site(Site),
}

impl RunUntil {
    /// Whether the session pauses at this hook.
    pub(crate) fn is(self, site: Site) -> bool {
        match self {
            RunUntil::Breakpoint => false,
            RunUntil::Hook => true,
            RunUntil::Block => matches!(site, Site::ResidPost(_) | Site::Logits),
            RunUntil::Site(wanted) => wanted == site,
        }
    }
}

impl FromStr for BreakSpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |reason: String| ParseError::new(ParsedText::Breakpoint, text, reason);
        // Only conditions contain a comparison sign; lists of positions do not.
        let parts = text.split(',');
        let (conditions, rest): (Vec<&str>, Vec<&str>) =
            parts.partition(|part| part.contains(['=', '<', '>']));
        let rest = rest.join(",");
        let (hook, positions) = match rest.split_once('@') {
            Some((hook, positions)) => (hook, positions.parse().map_err(error)?),
            None => (&*rest, Positions::All),
        };
        if hook.is_empty() {
            return Err(error(
                "the hook is missing; expected HOOK[@POSITIONS][,step=N]".to_owned(),
            ));
        }
        let mut when = BreakCondition {
            positions,
            ..BreakCondition::default()
        };
        for condition in conditions {
            when.add(condition).map_err(error)?;
        }
        Ok(BreakSpec {
            hook: hook.to_owned(),
            when,
        })
    }
}

impl fmt::Display for BreakSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hook)?;
        if self.when.positions != Positions::All {
            write!(f, "@{}", self.when.positions)?;
        }
        if let Some(step) = self.when.step {
            write!(f, ",step={step}")?;
        }
        if let Some(token) = self.when.token {
            write!(f, ",token={token}")?;
        }
        match self.when.norm {
            Some(NormCondition::Above(limit)) => write!(f, ",norm>{limit}"),
            Some(NormCondition::Below(limit)) => write!(f, ",norm<{limit}"),
            None => Ok(()),
        }
    }
}

impl BreakCondition {
    fn add(&mut self, condition: &str) -> Result<(), String> {
        let at = condition.find(['=', '<', '>']).unwrap_or(condition.len());
        let (name, rest) = condition.split_at(at);
        let (sign, value) = rest.split_at(rest.len().min(1));
        let whole = || format!("'{}' is not a whole number", shown(value));
        let given = match name {
            "step" => self.step.is_some(),
            "token" => self.token.is_some(),
            _ => self.norm.is_some(),
        };
        if given {
            return Err(format!("{} is given twice", shown(name)));
        }
        match (name, sign) {
            ("step", "=") => self.step = Some(value.parse().map_err(|_| whole())?),
            ("token", "=") => self.token = Some(value.parse().map_err(|_| whole())?),
            ("norm", ">" | "<") => {
                let limit: f32 = value.parse().unwrap_or(f32::NAN);
                if !limit.is_finite() {
                    return Err(format!("'{}' is not a finite number", shown(value)));
                }
                self.norm = Some(match sign {
                    ">" => NormCondition::Above(limit),
                    _ => NormCondition::Below(limit),
                });
            }
            _ => {
                return Err(format!(
                    "'{}' is not a condition (step=N, token=ID, norm>X, norm<X)",
                    shown(condition)
                ));
            }
        }
        Ok(())
    }

    /// Whether the condition may hold for a row; the norm is known only during the pass.
    pub(crate) fn may_hold(&self, position: usize, prompt: usize, step: usize, token: u32) -> bool {
        self.positions.contains(position, prompt)
            && self.step.is_none_or(|wanted| wanted == step)
            && self.token.is_none_or(|wanted| wanted == token)
    }
}

impl BreakSpec {
    /// Returns the named hooks at which sessions can pause.
    pub(crate) fn bind(&self, program: &Program) -> Result<Vec<Site>, EngineError> {
        if let Some(NormCondition::Above(limit) | NormCondition::Below(limit)) = self.when.norm
            && !limit.is_finite()
        {
            let reason = format!("the limit {limit} of the norm is not a finite number");
            return Err(ParseError::new(ParsedText::Breakpoint, &self.hook, reason).into());
        }
        let found = hook::find(program, &self.hook)?;
        let is_pattern = |site: &Site| matches!(site, Site::Pattern(_));
        let sites: Vec<Site> = found.iter().copied().filter(|s| !is_pattern(s)).collect();
        match sites.is_empty() {
            false => Ok(sites),
            true => Err(EngineError::NoStop(shown(&self.hook))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BreakCondition, BreakSpec, NormCondition};
    use crate::Positions;

    #[test]
    fn breakpoints_are_parsed() {
        let check = |text: &str, hook: &str, when: BreakCondition| {
            let hook = hook.to_owned();
            let spec = BreakSpec { hook, when };
            assert_eq!(text.parse().as_ref(), Ok(&spec), "{text}");
            // The printed form parses to the same breakpoint.
            assert_eq!(spec.to_string().parse(), Ok(spec), "{text}");
        };
        check("h", "h", BreakCondition::default());
        let ranges = Positions::ranges(vec![(0, 1), (-1, 0)]);
        let at = |positions| BreakCondition {
            positions,
            ..BreakCondition::default()
        };
        check("h@0,-1", "h", at(ranges.clone()));
        check("h@generated", "h", at(Positions::Generated));
        let all = BreakCondition {
            positions: ranges,
            step: Some(3),
            token: Some(17),
            norm: Some(NormCondition::Above(2.5)),
        };
        check("a.*@0,-1,step=3,token=17,norm>2.5", "a.*", all);
        let small = BreakCondition {
            norm: Some(NormCondition::Below(-1.0)),
            ..BreakCondition::default()
        };
        check("h,norm<-1", "h", small);
    }

    #[test]
    fn refuses_with_the_reason() {
        let check = |text: &str, reason: &str| {
            let error = text.parse::<BreakSpec>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        };
        check("", "hook is missing");
        check("@3", "hook is missing");
        check("h@never", "is not a selection of positions");
        check("h,step=x", "not a whole number");
        check("h,norm>NaN", "not a finite number");
        check("h,norm=3", "is not a condition");
        check("h,age>3", "is not a condition");
        check("h,step=1,step=2", "twice");
    }

    #[test]
    fn norms_are_compared() {
        assert!(NormCondition::Above(4.9).holds(&[3.0, 4.0]));
        assert!(!NormCondition::Above(5.0).holds(&[3.0, 4.0]));
        assert!(NormCondition::Below(5.1).holds(&[3.0, 4.0]));
        assert!(!NormCondition::Above(0.0).holds(&[f32::NAN]));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "[a-z.*@,=<>0-9-]{0,40}") {
            let _ = text.parse::<BreakSpec>();
        }
    }
}
