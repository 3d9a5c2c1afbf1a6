//! Who took part in an experiment: ours and its baselines alike.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    MemorySample, ResultFile, Stats, Status, Summary,
    draw::{LOOKS, Look},
};

/// One of those who took part.
#[derive(Clone, Copy)]
pub struct Contender<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Whether it is what the result is of.
    pub ours: bool,
    /// What it is, with its version; empty for ours.
    pub program: &'a str,
    /// What came of it.
    pub status: Status,
    /// Why it is not there, or broke down.
    pub reason: Option<&'a str>,
    /// What it was given.
    pub settings: &'a BTreeMap<String, Value>,
    /// What its runs come to.
    pub summary: &'a Summary,
    /// Its memory over time.
    pub memory: &'a [MemorySample],
}

impl<'a> Contender<'a> {
    /// Its name for readers.
    pub fn label(&self) -> &'a str {
        label(self.name)
    }

    /// A number of its runs, where it ran and they have it.
    pub fn stats(&self, metric: &str) -> Option<&'a Stats> {
        self.summary.metrics.get(metric)
    }

    /// Whether it has all memory of the device, whatever others have.
    pub fn has_all_memory(&self) -> bool {
        ["djinn_resident", "transformers_vram"].contains(&self.name)
    }

    /// Why there is nothing to show of it: `absent: not installed`.
    pub fn fate(&self) -> String {
        let word = match self.status {
            Status::Ran => "not measured",
            Status::Absent => "absent",
            Status::OutOfMemory => "out of memory",
            Status::Failed => "failed",
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

/// All who took part in an experiment, ours first.
pub fn contenders(result: &ResultFile) -> Vec<Contender<'_>> {
    let ours = Contender {
        name: &result.baseline,
        ours: true,
        program: "",
        status: Status::Ran,
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

/// Names in files, names for readers, and which look each has where nobody else has it yet.
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

/// A name for readers; the name itself where none is known.
pub fn label(name: &str) -> &str {
    let known = KNOWN.iter().find(|(known, _, _)| *known == name);
    known.map_or(name, |(_, label, _)| label)
}

/// Who looks how in a figure: as everywhere if that is free, otherwise as nobody else there.
pub struct Looks<'a> {
    taken: Vec<(&'a str, usize)>,
    /// Of lines that are no contender's.
    reserved: &'static [usize],
}

impl<'a> Looks<'a> {
    /// For these, in order; a name may come several times.
    pub fn new(names: impl IntoIterator<Item = &'a str>) -> Self {
        Looks::beside(&[], names)
    }

    /// The same, beside lines that have some looks already.
    pub fn beside(reserved: &'static [usize], names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut looks = Looks {
            taken: Vec::new(),
            reserved,
        };
        for name in names {
            if looks.find(name).is_none() {
                let look = looks.free(name);
                looks.taken.push((name, look));
            }
        }
        looks
    }

    fn find(&self, name: &str) -> Option<usize> {
        let taken = self.taken.iter().find(|(other, _)| *other == name);
        taken.map(|(_, look)| *look)
    }

    fn free(&self, name: &str) -> usize {
        let wanted = KNOWN
            .iter()
            .find(|(known, _, _)| *known == name)
            .map(|(_, _, look)| *look);
        let is_free = |look: &usize| {
            !self.reserved.contains(look) && !self.taken.iter().any(|(_, taken)| taken == look)
        };
        // The first look is ours, so nobody else has it.
        let first = usize::from(!self.taken.is_empty());
        wanted
            .filter(is_free)
            .or_else(|| (first..LOOKS.len()).find(is_free))
            .unwrap_or(1 + self.taken.len() % (LOOKS.len() - 1))
    }

    /// How one looks.
    pub fn of(&self, name: &str) -> Look {
        LOOKS[self.find(name).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::{Looks, label};

    #[test]
    fn names_for_readers() {
        assert_eq!(label("llama_cpp"), "llama.cpp");
        assert_eq!(label("something_else"), "something_else");
    }

    #[test]
    fn eight_look_differently() {
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
        let looks = Looks::new(names);
        let mut colors: Vec<&str> = names[..8].iter().map(|name| looks.of(name).color).collect();
        colors.sort_unstable();
        colors.dedup();
        assert_eq!(colors.len(), 8);
        assert_eq!(looks.of("djinn").color, "#0072B2");
    }
}
