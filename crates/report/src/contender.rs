//! Contenders of an experiment: Djinn and the baselines, in one form.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    draw::{STYLES, SeriesStyle},
    result::{BaselineStatus, MemorySample, ResultFile, Stats, Summary},
};

/// Djinn or a baseline, as a result file describes it.
#[derive(Clone, Copy)]
pub struct Contender<'a> {
    /// Name in the result file.
    pub name: &'a str,
    /// Whether the contender is the one that the result measures: Djinn.
    pub ours: bool,
    /// Program and version; empty for Djinn.
    pub program: &'a str,
    /// Whether the contender ran.
    pub status: BaselineStatus,
    /// Reason why the contender is absent or failed.
    pub reason: Option<&'a str>,
    /// Settings of the contender.
    pub settings: &'a BTreeMap<String, Value>,
    /// Statistics of the runs.
    pub summary: &'a Summary,
    /// Memory over time.
    pub memory: &'a [MemorySample],
}

impl<'a> Contender<'a> {
    /// Returns the name for readers.
    pub fn label(&self) -> &'a str {
        label(self.name)
    }

    /// Returns the statistics of a metric, if the contender measured it.
    pub fn stats(&self, metric: &str) -> Option<&'a Stats> {
        self.summary.metrics.get(metric)
    }

    /// Whether the contender may use all device memory, regardless of the budget.
    pub fn has_all_memory(&self) -> bool {
        ["djinn_resident", "transformers_vram"].contains(&self.name)
    }

    /// Returns the reason why there is no measurement: `absent: not installed`.
    pub fn absence(&self) -> String {
        let word = match self.status {
            BaselineStatus::Ran => "not measured",
            BaselineStatus::Absent => "absent",
            BaselineStatus::OutOfMemory => "out of memory",
            BaselineStatus::Failed => "failed",
        };
        match self
            .reason
            .map(str::trim)
            .filter(|reason| !reason.is_empty())
        {
            Some(reason) if reason.to_lowercase().contains(word) => reason.to_owned(),
            Some(reason) => format!("{word}: {reason}"),
            None => word.to_owned(),
        }
    }
}

/// Returns all contenders of an experiment, Djinn first.
pub fn contenders(result: &ResultFile) -> Vec<Contender<'_>> {
    let ours = Contender {
        name: &result.baseline,
        ours: true,
        program: "",
        status: BaselineStatus::Ran,
        reason: None,
        settings: &result.settings,
        summary: &result.summary,
        memory: &result.memory,
    };
    let others = result.baselines.iter().map(|other| Contender {
        name: &other.baseline,
        ours: false,
        program: &other.program,
        status: other.status,
        reason: other.reason.as_deref(),
        settings: &other.settings,
        summary: &other.summary,
        memory: &other.memory,
    });
    std::iter::once(ours).chain(others).collect()
}

/// Known contenders: name in files, name for readers, and preferred style.
const KNOWN: &[(&str, &str, usize)] = &[
    ("ring_buffer_async_prefetch", "Djinn", 0),
    ("ring_buffer_no_prefetch", "Djinn, no prefetch", 5),
    ("djinn", "Djinn", 0),
    ("djinn_resident", "Djinn, all in memory", 6),
    ("djinn_recompute", "Djinn, recompute", 5),
    ("hf_accelerate", "Accelerate", 1),
    ("transformers_vram", "transformers, all in memory", 2),
    ("deepspeed_zero", "DeepSpeed ZeRO", 4),
    ("llama_cpp", "llama.cpp", 3),
    ("vllm", "vLLM", 7),
    ("pytorch_eager", "eager PyTorch", 1),
    ("recompute", "recompute", 2),
    ("manual_offload", "manual offload", 3),
    ("stateless", "stateless", 1),
];

/// Returns the name for readers; unknown names are returned unchanged.
pub fn label(name: &str) -> &str {
    let known = KNOWN.iter().find(|(known, _, _)| *known == name);
    known.map_or(name, |(_, label, _)| label)
}

/// Styles of the contenders in a figure: the preferred style if it is free, otherwise an unused one.
pub struct SeriesStyles<'a> {
    taken: Vec<(&'a str, usize)>,
    /// Styles of lines that belong to no contender.
    reserved: &'static [usize],
}

impl<'a> SeriesStyles<'a> {
    /// Assigns styles to names, in order; repeated names share a style.
    pub fn new(names: impl IntoIterator<Item = &'a str>) -> Self {
        SeriesStyles::with_reserved(&[], names)
    }

    /// Assigns styles to names, without the reserved styles.
    pub fn with_reserved(
        reserved: &'static [usize],
        names: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut styles = SeriesStyles {
            taken: Vec::new(),
            reserved,
        };
        for name in names {
            if styles.find(name).is_none() {
                let style = styles.free(name);
                styles.taken.push((name, style));
            }
        }
        styles
    }

    fn find(&self, name: &str) -> Option<usize> {
        let taken = self.taken.iter().find(|(other, _)| *other == name);
        taken.map(|(_, look)| *look)
    }

    fn free(&self, name: &str) -> usize {
        let wanted = KNOWN
            .iter()
            .find(|(known, _, _)| *known == name)
            .map(|(_, _, style)| *style);
        let is_free = |look: &usize| {
            !self.reserved.contains(look) && !self.taken.iter().any(|(_, taken)| taken == look)
        };
        // The first style is reserved for Djinn.
        let first = usize::from(!self.taken.is_empty());
        wanted
            .filter(is_free)
            .or_else(|| (first..STYLES.len()).find(is_free))
            .unwrap_or(1 + self.taken.len() % (STYLES.len() - 1))
    }

    /// Returns the style of a contender.
    pub fn of(&self, name: &str) -> SeriesStyle {
        STYLES[self.find(name).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::{SeriesStyles, label};

    #[test]
    fn names_for_readers() {
        assert_eq!(label("llama_cpp"), "llama.cpp");
        assert_eq!(label("something_else"), "something_else");
    }

    #[test]
    fn eight_contenders_have_different_colours() {
        let names = [
            "djinn",
            "a",
            "hf_accelerate",
            "pytorch_eager",
            "b",
            "vllm",
            "llama_cpp",
            "c",
            "a",
        ];
        let styles = SeriesStyles::new(names);
        let mut colors: Vec<&str> = names[..8]
            .iter()
            .map(|name| styles.of(name).color)
            .collect();
        colors.sort_unstable();
        colors.dedup();
        assert_eq!(colors.len(), 8);
        assert_eq!(styles.of("djinn").color, "#0072B2");
    }
}
