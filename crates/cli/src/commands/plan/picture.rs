//! Picture of planned memory.

use djinn_report::{MemoryMap, MemoryPart, PartKind, TierBar, memory_map};
use djinn_types::Size;

use super::{
    lines::PlannedMemory,
    memory_line::{MemoryLine, PlanTier, Purpose},
};

/// Draws planned memory as an SVG document.
pub(super) fn svg(memory: &PlannedMemory) -> String {
    let (names, notes) = match &memory.titles[..] {
        [(name, notes)] => (name.clone(), notes.clone()),
        several => {
            let names: Vec<&str> = several.iter().map(|(name, _)| name.as_str()).collect();
            let first = |(name, notes): &(String, Vec<String>)| {
                let note = notes.first().map_or("", String::as_str);
                format!("{name}: {note}")
            };
            (names.join(", "), several.iter().map(first).collect())
        }
    };
    let notes = notes.into_iter().chain(memory.turns_note()).collect();
    let tiers = PlanTier::ALL.into_iter();
    let bars = tiers.map(|tier| bar(memory, tier));
    memory_map(&MemoryMap {
        title: format!("{names} in {}", Size(memory.budget)),
        notes,
        tiers: bars.filter(|bar| !bar.parts.is_empty()).collect(),
    })
}

fn bar(memory: &PlannedMemory, tier: PlanTier) -> TierBar {
    let capacity = memory.capacity(tier);
    let name = match (tier, capacity) {
        (PlanTier::Device, Some(bytes)) if memory.in_turns.is_some() => {
            format!("Device memory: {} in turns", Size(bytes))
        }
        (PlanTier::Device, Some(bytes)) => format!("Device memory: {}", Size(bytes)),
        (PlanTier::Host, Some(bytes)) => format!("Host memory: {}", Size(bytes)),
        (PlanTier::Device, None) => "Device memory".to_owned(),
        (PlanTier::Host, None) => "Host memory".to_owned(),
        (PlanTier::Disk, _) => "Disk".to_owned(),
    };
    let mut parts: Vec<MemoryPart> = memory
        .tier(tier)
        .map(|line| part(line, memory.has_several()))
        .collect();
    let used: u64 = parts.iter().map(|part| part.bytes).sum();
    let left = capacity.map_or(0, |bytes| bytes.saturating_sub(used));
    if tier == PlanTier::Host && !parts.is_empty() && left > 0 {
        parts.push(MemoryPart {
            name: Purpose::Free.name().to_owned(),
            kind: PartKind::Free,
            bytes: left,
            size: Size(left).to_string(),
            why: "not needed".to_owned(),
        });
    }
    TierBar {
        name,
        capacity,
        parts,
    }
}

fn part(line: &MemoryLine, has_several: bool) -> MemoryPart {
    let purpose = line.purpose.name();
    let name = match &line.model {
        Some(model) if has_several => format!("{model} {purpose}"),
        _ => purpose.to_owned(),
    };
    MemoryPart {
        name,
        kind: match line.purpose {
            Purpose::Resident | Purpose::HostCopy => PartKind::Weights,
            Purpose::Yields => PartKind::Yields,
            Purpose::Ring | Purpose::Streamed => PartKind::Streamed,
            Purpose::Experts => PartKind::Experts,
            Purpose::Kv => PartKind::Kv,
            Purpose::Window => PartKind::Window,
            Purpose::Activations | Purpose::Scratch => PartKind::Activations,
            Purpose::Driver | Purpose::Staging => PartKind::Driver,
            Purpose::Free => PartKind::Free,
        },
        bytes: line.bytes,
        size: Size(line.bytes).to_string(),
        why: line.why.clone(),
    }
}
