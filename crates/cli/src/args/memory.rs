//! Flags of memory budgets and of weight streaming.

use std::{fmt, path::PathBuf, str::FromStr};

use clap::{Args, ValueEnum};
use djinn_device::host;
use djinn_types::{Amount, KvDtype, Size};
use djinn_weights::{Keep, MemorySettings, Overrides};

use super::parse::at_least_one;

/// Memory budgets. Weights that do not fit stream; the plan decides which.
#[derive(Clone, Debug, Args)]
pub struct MemoryArgs {
    /// Device memory for weights, KV cache and activations, on a card also for its driver: 16GB,
    /// 1.5GiB, or 0.5 for half of the free memory [default: free memory minus a margin]
    #[arg(long, help_heading = "Memory", value_name = "SIZE")]
    pub memory: Option<Amount>,
    /// Size of the ring that weights stream through [default: the plan decides]
    #[arg(long, help_heading = "Memory", value_name = "SIZE")]
    pub ring: Option<Size>,
    /// Weights that stay in device memory [default: the plan decides]
    #[arg(long, help_heading = "Memory", value_name = "all|none|SIZE")]
    pub resident: Option<Resident>,
    /// Host memory for weights that stream to a card and for KV pages of waiting sessions: 64GB, or 0.5
    /// for half of the free memory [default: free memory minus a margin]
    #[arg(long, help_heading = "Memory", value_name = "SIZE")]
    pub host_memory: Option<Amount>,
    /// Type of keys and values. f16 and bf16 take half the memory of f32; auto is bf16 for bf16 weights and
    /// f16 for all others. A saved session continues only with its own type [default: auto]
    #[arg(long, help_heading = "Memory", value_name = "auto|f16|bf16|f32")]
    pub kv_dtype: Option<KvDtype>,
    /// Bytes of one read or copy [default: 1MiB from files, 64MiB to a card]
    #[arg(long, help_heading = "Memory", value_name = "SIZE")]
    pub chunk: Option<Size>,
    /// Threads that read files [default: 4; all cores while weights are loaded for a card]
    #[arg(long, help_heading = "Memory", value_name = "N", value_parser = at_least_one)]
    pub workers: Option<usize>,
    /// Read weights ahead of their use
    #[arg(
        long,
        value_name = "on|off",
        default_value = "on",
        hide_possible_values = true
    )]
    pub prefetch: Switch,
    /// Let resident weights yield their memory to KV pages when sessions need it, and return when
    /// the load falls; --resident, --ring or a size for KV pages switches this off
    #[arg(
        long,
        value_name = "on|off",
        default_value = "off",
        hide_possible_values = true
    )]
    pub elastic: Switch,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Switch::On => "on",
            Switch::Off => "off",
        })
    }
}

/// Value of `--resident`: `all`, `none` or a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident(pub Keep);

impl fmt::Display for Resident {
    /// Writes the value in a form that parses back to the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Keep::All | Keep::Fit => f.write_str("all"),
            Keep::Nothing => f.write_str("none"),
            Keep::AtMost(bytes) => write!(f, "{bytes}B"),
        }
    }
}

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

impl MemoryArgs {
    /// Flags that give another process the same settings.
    pub fn to_flags(&self) -> Vec<String> {
        // Naming all fields here makes the compiler ask for a new flag.
        let MemoryArgs {
            memory,
            ring,
            resident,
            host_memory,
            kv_dtype,
            chunk,
            workers,
            prefetch,
            elastic,
        } = self;
        let given = [
            memory.map(|amount| format!("--memory={amount}")),
            ring.map(|Size(bytes)| format!("--ring={bytes}B")),
            resident.map(|resident| format!("--resident={resident}")),
            host_memory.map(|amount| format!("--host-memory={amount}")),
            kv_dtype.map(|dtype| format!("--kv-dtype={dtype}")),
            chunk.map(|Size(bytes)| format!("--chunk={bytes}B")),
            workers.map(|count| format!("--workers={count}")),
        ];
        let switches = [
            format!("--prefetch={prefetch}"),
            format!("--elastic={elastic}"),
        ];
        given.into_iter().flatten().chain(switches).collect()
    }

    /// Memory settings on a device with this much free memory.
    pub fn resolve(&self, free: u64) -> MemorySettings {
        let budget = |amount: Option<Amount>, free: u64| match amount {
            Some(amount) => amount.of(free),
            None => MemorySettings::default_budget(free),
        };
        MemorySettings {
            budget: budget(self.memory, free),
            overrides: Overrides {
                ring: self.ring.map(|size| size.0),
                keep: self.resident.map_or(Keep::Fit, |resident| resident.0),
            },
            chunk: self.chunk.map(|size| size.0),
            workers: self.workers,
            prefetch: self.prefetch == Switch::On,
            kv_dtype: self.kv_dtype.unwrap_or_default(),
            elastic: self.elastic == Switch::On,
            host_copy: false,
            may_swap: false,
            host_budget: budget(self.host_memory, host::available_memory()),
            tier: None,
        }
    }
}

/// Statistics and traces of passes.
#[derive(Clone, Debug, Args)]
pub struct WatchArgs {
    /// Print a line for every pass: bytes and GB/s over the link, share of the link's bandwidth, stalls,
    /// overlap
    #[arg(long, help_heading = "Observation")]
    pub stats: bool,
    /// Write copies, stalls and operations as a Chrome trace, for ui.perfetto.dev
    #[arg(long, help_heading = "Observation", value_name = "FILE.json")]
    pub timeline: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use djinn_weights::Keep;

    use super::{MemoryArgs, Resident};

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        memory: MemoryArgs,
    }

    #[test]
    fn flags_for_another_process_are_the_flags_that_were_given() {
        let check = |given: &[&str]| {
            let parse = |flags: &[String]| {
                let program = ["djinn".to_owned()];
                Flags::parse_from(program.iter().chain(flags)).memory
            };
            let given: Vec<String> = given.iter().map(|&flag| flag.to_owned()).collect();
            let memory = parse(&given);
            let flags = memory.to_flags();
            for flag in &given {
                assert!(flags.contains(flag), "{flag} is not in {flags:?}");
            }
            assert_eq!(format!("{:?}", parse(&flags)), format!("{memory:?}"));
        };
        check(&[]);
        check(&[
            "--memory=1500000001B",
            "--ring=1048577B",
            "--resident=none",
            "--host-memory=0.5",
            "--kv-dtype=bf16",
            "--chunk=65536B",
            "--workers=3",
            "--prefetch=off",
            "--elastic=on",
        ]);
        check(&["--resident=all"]);
        check(&["--resident=4000001B"]);
    }

    #[test]
    fn resident_weights() {
        let check = |text: &str, expect: Option<Keep>| {
            assert_eq!(text.parse().ok(), expect.map(Resident), "{text}");
        };
        check("all", Some(Keep::All));
        check("none", Some(Keep::Nothing));
        check("2GB", Some(Keep::AtMost(2_000_000_000)));
        check("some", None);
    }
}
