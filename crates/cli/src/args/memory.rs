//! Flags that say how much memory there is and how weights come into it.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, ValueEnum};
use djinn_device::host;
use djinn_types::{Amount, Size};
use djinn_weights::{Keep, MemorySettings, Overrides};

use super::at_least_one;

/// How much memory there is. What does not fit streams; the plan decides what, and
/// says so before loading.
#[derive(Clone, Debug, Args)]
pub struct MemoryArgs {
    /// Memory of the device for weights, KV and activations, and of a card for its driver
    /// too: 16GB, 1.5GiB, or 0.5 for half of what is free [default: what is free, less a
    /// margin]
    #[arg(long, help_heading = "Memory", value_name = "SIZE")]
    pub memory: Option<Amount>,
    /// Instead of the plan's: bytes of the ring that weights stream through
    #[arg(long, help_heading = "Memory", value_name = "SIZE")]
    pub ring: Option<Size>,
    /// Instead of the plan's: which weights stay in memory
    #[arg(long, help_heading = "Memory", value_name = "all|none|SIZE")]
    pub resident: Option<Resident>,
    /// Host memory for weights that stream to a card and for KV of sessions that wait: 64GB,
    /// or 0.5 for half of what is free [default: what is free, less a margin]
    #[arg(long, help_heading = "Memory", value_name = "SIZE")]
    pub host_memory: Option<Amount>,
    /// Bytes moved at a time [default: files are read 1MiB at a time, copies to a card have
    /// 64MiB]
    #[arg(long, help_heading = "Memory", value_name = "SIZE")]
    pub chunk: Option<Size>,
    /// Threads that read files [default: 4; all cores while weights are loaded for a card]
    #[arg(long, help_heading = "Memory", value_name = "N", value_parser = at_least_one)]
    pub workers: Option<usize>,
    /// Whether weights are read ahead of their use
    #[arg(
        long,
        value_name = "on|off",
        default_value = "on",
        hide_possible_values = true
    )]
    pub prefetch: Switch,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// `all`, `none` or a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident(pub Keep);

impl FromStr for Resident {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Resident(match text {
            "all" => Keep::All,
            "none" => Keep::Nothing,
            size => {
                let size: Size = size
                    .parse()
                    .map_err(|_| format!("'{text}' is neither all, none nor a size"))?;
                Keep::AtMost(size.0)
            }
        }))
    }
}

/// Bytes left to other programs when no flag sets a budget.
fn margin(free: u64) -> u64 {
    (free / 16).clamp(64 << 20, 1 << 30)
}

/// Budget that a flag sets of this much free memory, or most of it.
fn granted(asked: Option<Amount>, free: u64) -> u64 {
    match asked {
        Some(amount) => amount.of(free),
        None => MemoryArgs::unasked(free),
    }
}

impl MemoryArgs {
    /// Budget when no flag sets one, of this much free memory.
    pub fn unasked(free: u64) -> u64 {
        free.saturating_sub(margin(free))
    }

    /// Bytes of host memory for what streams and who waits, of so much that is free.
    pub fn host_budget(&self, free: u64) -> u64 {
        granted(self.host_memory, free)
    }

    /// What these flags come to on a device that has so much free.
    pub fn settled(&self, free: u64) -> MemorySettings {
        MemorySettings {
            budget: granted(self.memory, free),
            overrides: Overrides {
                ring: self.ring.map(|size| size.0),
                keep: self.resident.map_or(Keep::Fit, |resident| resident.0),
            },
            chunk: self.chunk.map(|size| size.0),
            workers: self.workers,
            prefetch: self.prefetch == Switch::On,
            host_budget: self.host_budget(host::available_memory()),
            tier: None,
        }
    }
}

/// Seeing what the link does.
#[derive(Clone, Debug, Args)]
pub struct WatchArgs {
    /// After the run, a line for every pass: bytes and GB/s over the link, its share of
    /// what the link gives alone, waits, overlap
    #[arg(long, help_heading = "Seeing it")]
    pub stats: bool,
    /// Write copies, waits and compute as a Chrome trace, for ui.perfetto.dev
    #[arg(long, help_heading = "Seeing it", value_name = "FILE.json")]
    pub timeline: Option<PathBuf>,
}

#[cfg(test)]
mod tests {

    use djinn_weights::Keep;

    use super::{Resident, margin};

    #[test]
    fn what_stays() {
        let check = |text: &str, expect: Option<Keep>| {
            assert_eq!(text.parse().ok(), expect.map(Resident), "{text}");
        };
        check("all", Some(Keep::All));
        check("none", Some(Keep::Nothing));
        check("2GB", Some(Keep::AtMost(2_000_000_000)));
        check("some", None);
    }

    #[test]
    fn margins() {
        assert_eq!(margin(16 << 30), 1 << 30);
        assert_eq!(margin(8 << 30), 1 << 29);
        assert_eq!(margin(100), 64 << 20);
    }
}
