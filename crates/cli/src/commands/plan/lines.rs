//! Table of planned memory: place, size and reason of all bytes.

use djinn_client::v1;
use djinn_types::Size;
use serde_json::{Value, json};

use super::{
    memory_line::{MemoryLine, PlanTier, Purpose, plural},
    model_lines::{device_lines, outside_lines},
};

/// Width of the memory bar in columns.
const BAR: usize = 64;

/// Memory of all planned models.
pub(super) struct PlannedMemory {
    /// Lines by tier, then by model.
    pub lines: Vec<MemoryLine>,
    /// Bytes of device memory that all models may use.
    pub budget: u64,
    /// Bytes of host memory that all models may use, if the device is a card.
    pub host_budget: Option<u64>,
    /// Device memory of all models together, if it exceeds the budget.
    pub in_turns: Option<u64>,
    /// Title and notes about each model.
    pub titles: Vec<(String, Vec<String>)>,
}

impl PlannedMemory {
    /// Collects the memory of plans, which share `budget` bytes.
    pub fn of(plans: &[(String, v1::PlanReply)], budget: u64) -> Self {
        let mut lines: Vec<MemoryLine> = Vec::new();
        for (name, plan) in plans {
            lines.extend(device_lines(name, plan));
        }
        let used: u64 = lines.iter().map(|line| line.bytes).sum();
        lines.push(MemoryLine {
            model: None,
            tier: PlanTier::Device,
            purpose: Purpose::Free,
            bytes: budget.saturating_sub(used),
            why: "left over: smaller than the next piece or page, or not needed".to_owned(),
        });
        for (name, plan) in plans {
            lines.extend(outside_lines(name, plan));
        }
        lines.retain(|line| line.bytes > 0);
        lines.sort_by_key(|line| line.tier as u8);
        let host = plans.iter().map(|(_, plan)| plan.host_budget_bytes).max();
        let title = |(name, plan): &(String, v1::PlanReply)| (name.clone(), notes(plan));
        PlannedMemory {
            lines,
            budget,
            host_budget: host.filter(|&bytes| bytes > 0),
            in_turns: Some(used).filter(|&used| used > budget),
            titles: plans.iter().map(title).collect(),
        }
    }

    /// Whether several models are planned together.
    pub fn has_several(&self) -> bool {
        self.titles.len() > 1
    }

    /// Lines of one tier.
    pub fn tier(&self, tier: PlanTier) -> impl Iterator<Item = &MemoryLine> {
        self.lines.iter().filter(move |line| line.tier == tier)
    }

    /// Bytes of a tier that 100 % stand for, if the tier has a limit.
    pub fn capacity(&self, tier: PlanTier) -> Option<u64> {
        match tier {
            PlanTier::Device => Some(self.budget),
            PlanTier::Host => self.host_budget,
            PlanTier::Disk => None,
        }
    }

    /// Note about models that need more device memory together than there is.
    pub fn turns_note(&self) -> Option<String> {
        let used = self.in_turns?;
        Some(format!(
            "the models take turns on the device: together they need {} of {}, so their shares exceed 100 %",
            Size(used),
            Size(self.budget)
        ))
    }

    fn share(&self, line: &MemoryLine) -> Option<f64> {
        let capacity = self.capacity(line.tier).filter(|&bytes| bytes > 0)?;
        Some(line.bytes as f64 / capacity as f64)
    }

    /// Bar of the device, and the table.
    pub fn text(&self) -> String {
        let names = self.lines.iter().filter_map(|line| line.model.as_deref());
        let width = match self.has_several() {
            true => names
                .map(|name| name.chars().count() + 2)
                .max()
                .unwrap_or(0)
                .max(7),
            false => 0,
        };
        let header = if self.has_several() { "model" } else { "" };
        let mut text = format!(
            "  {}\n\nwhere   {header:width$}{:18} {:>10} {:>8}  why\n",
            self.bar(),
            "what",
            "bytes",
            "share"
        );
        for line in &self.lines {
            let model = line
                .model
                .as_deref()
                .filter(|_| self.has_several())
                .unwrap_or_default();
            let share = self.share(line);
            let share = share.map_or(String::new(), |share| format!("{:.1} %", share * 100.0));
            text += &format!(
                "{:8}{model:width$}{} {:16} {:>10} {share:>8}  {}\n",
                line.tier.name(),
                line.purpose.mark(),
                line.purpose.name(),
                Size(line.bytes).to_string(),
                line.why
            );
        }
        if let Some(note) = self.turns_note() {
            text += &format!("{note}\n");
        }
        text
    }

    /// Device memory drawn to scale.
    fn bar(&self) -> String {
        let used: u64 = self.tier(PlanTier::Device).map(|line| line.bytes).sum();
        let whole = used.max(self.budget).max(1) as f64;
        let mut bar = String::new();
        let (mut sum, mut drawn) = (0, 0);
        for line in self.tier(PlanTier::Device) {
            sum += line.bytes;
            // Every part gets at least one column; later parts make up for the rounding.
            let until = ((sum as f64 / whole * BAR as f64).round() as usize).max(drawn + 1);
            bar.extend(std::iter::repeat_n(line.purpose.mark(), until - drawn));
            drawn = until;
        }
        bar
    }

    /// The table as JSON.
    pub fn json(&self) -> Value {
        let line = |line: &MemoryLine| {
            json!({
                "model": line.model, "tier": line.tier.name(), "what": line.purpose.name(),
                "bytes": line.bytes, "share": self.share(line), "why": line.why,
            })
        };
        self.lines.iter().map(line).collect()
    }
}

/// Notes about context and sessions.
pub(super) fn notes(plan: &v1::PlanReply) -> Vec<String> {
    let (limits, sizing) = (
        plan.limits.unwrap_or_default(),
        plan.sizing.clone().unwrap_or_default(),
    );
    let open = match limits.sessions > limits.batch {
        true => format!(", {} open", limits.sessions),
        false => String::new(),
    };
    let kv = Size(plan.session_kv_bytes);
    let mut notes = vec![
        format!("{}; its KV takes {kv}", sizing.context_reason),
        format!(
            "{} together{open}; passes of up to {}",
            plural(limits.batch, "session"),
            plural(limits.rows, "row")
        ),
    ];
    if !sizing.reduced.is_empty() {
        notes.push(format!("to save memory: {}", sizing.reduced.join(", ")));
    }
    notes
}
