//! Line of the table of planned memory: tier, purpose, bytes and reason.

/// Tier of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanTier {
    Device,
    Host,
    Disk,
}

impl PlanTier {
    pub const ALL: [PlanTier; 3] = [PlanTier::Device, PlanTier::Host, PlanTier::Disk];

    pub fn name(self) -> &'static str {
        match self {
            PlanTier::Device => "device",
            PlanTier::Host => "host",
            PlanTier::Disk => "disk",
        }
    }
}

/// Purpose of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Resident,
    Ring,
    Experts,
    /// Resident weights that may yield to KV pages.
    Yields,
    Kv,
    /// Memory through which KV pages stream.
    Window,
    Activations,
    Scratch,
    Driver,
    Streamed,
    /// Copies of all weights in host memory.
    HostCopy,
    Staging,
    Free,
}

impl Purpose {
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Resident => "resident weights",
            Purpose::Ring => "ring",
            Purpose::Experts => "experts",
            Purpose::Yields => "may yield",
            Purpose::Kv => "KV pages",
            Purpose::Window => "KV window",
            Purpose::Activations => "activations",
            Purpose::Scratch => "scratch",
            Purpose::Driver => "driver",
            Purpose::Streamed => "streamed weights",
            Purpose::HostCopy => "host copy",
            Purpose::Staging => "load buffers",
            Purpose::Free => "free",
        }
    }

    /// Mark of the purpose in the bar and in the table.
    pub fn mark(self) -> char {
        match self {
            Purpose::Resident | Purpose::HostCopy => '█',
            Purpose::Yields => '▤',
            Purpose::Window => '▥',
            Purpose::Ring | Purpose::Streamed => '▒',
            Purpose::Experts => '▓',
            Purpose::Kv => '▚',
            Purpose::Activations | Purpose::Scratch => '░',
            Purpose::Driver | Purpose::Staging => '▞',
            Purpose::Free => '·',
        }
    }
}

/// Bytes of one purpose in one tier.
#[derive(Clone, Debug)]
pub(super) struct MemoryLine {
    /// Name of the model; `None` for memory that no model uses.
    pub model: Option<String>,
    pub tier: PlanTier,
    pub purpose: Purpose,
    pub bytes: u64,
    /// Explanation of the bytes.
    pub why: String,
}

/// Number with its noun.
pub(super) fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
