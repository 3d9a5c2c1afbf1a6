//! Picture of memory: one bar for each tier, drawn to scale, with a legend. The picture follows the light or
//! dark setting of the reader.

use std::fmt::Write;

use crate::draw::escape;

/// Width of the picture.
const WIDTH: f64 = 880.0;
/// Margin around everything.
const MARGIN: f64 = 24.0;
/// Height of a bar.
const BAR: f64 = 34.0;
/// Height of a line of the legend.
const LINE: f64 = 20.0;
/// Distance between a tier and the next.
const BETWEEN: f64 = 26.0;
/// Font size of labels.
const PLAIN: f64 = 12.5;
/// Average width of a letter at font size 1.
const LETTER: f64 = 0.56;

/// Memory of one or several models, by tier.
#[derive(Clone, Debug, Default)]
pub struct MemoryMap {
    /// Title of the picture.
    pub title: String,
    /// Lines below the title.
    pub notes: Vec<String>,
    /// Tiers from the fastest to the slowest.
    pub tiers: Vec<TierBar>,
}

/// A tier of memory, drawn as one bar.
#[derive(Clone, Debug, Default)]
pub struct TierBar {
    /// Name of the tier.
    pub name: String,
    /// Bytes that the whole bar stands for, if the tier has a limit.
    pub capacity: Option<u64>,
    /// Parts of the bar, from left to right.
    pub parts: Vec<MemoryPart>,
}

/// A part of a tier.
#[derive(Clone, Debug)]
pub struct MemoryPart {
    /// Name of the part, for example `ring`.
    pub name: String,
    /// Kind of the part, which sets its colour.
    pub kind: PartKind,
    /// Bytes of the part.
    pub bytes: u64,
    /// Size as text.
    pub size: String,
    /// Explanation for the legend.
    pub why: String,
}

/// Kind of a part of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartKind {
    /// Weights that stay.
    Weights,
    /// Weights that may yield their memory to KV pages.
    Yields,
    /// Ring that weights stream through, or weights that stream.
    Streamed,
    /// Slots for experts.
    Experts,
    /// KV pages.
    Kv,
    /// Window that KV pages stream through.
    Window,
    /// Activations and scratch memory.
    Activations,
    /// Driver, and memory for loading.
    Driver,
    /// Memory that is not used.
    Free,
}

impl PartKind {
    const ALL: [PartKind; 9] = [
        PartKind::Weights,
        PartKind::Yields,
        PartKind::Streamed,
        PartKind::Experts,
        PartKind::Kv,
        PartKind::Window,
        PartKind::Activations,
        PartKind::Driver,
        PartKind::Free,
    ];

    /// CSS class.
    fn class(self) -> &'static str {
        match self {
            PartKind::Weights => "weights",
            PartKind::Yields => "yields",
            PartKind::Streamed => "streamed",
            PartKind::Experts => "experts",
            PartKind::Kv => "kv",
            PartKind::Window => "window",
            PartKind::Activations => "activations",
            PartKind::Driver => "driver",
            PartKind::Free => "free",
        }
    }

    /// Fill in light and in dark mode, and the colour of text on it. The hues are those of Okabe and Ito,
    /// which colour-blind readers can distinguish.
    fn colors(self) -> [&'static str; 3] {
        match self {
            PartKind::Weights => ["#0072b2", "#0072b2", "#ffffff"],
            PartKind::Yields => ["#4a5fc1", "#4a5fc1", "#ffffff"],
            PartKind::Streamed => ["#56b4e9", "#56b4e9", "#10202c"],
            PartKind::Experts => ["#cc79a7", "#cc79a7", "#2b0f1f"],
            PartKind::Kv => ["#e69f00", "#e69f00", "#2a1c00"],
            PartKind::Window => ["#f0e442", "#f0e442", "#2a2a00"],
            PartKind::Activations => ["#009e73", "#009e73", "#ffffff"],
            PartKind::Driver => ["#8a8f98", "#8a8f98", "#ffffff"],
            PartKind::Free => ["#eceff3", "#2a3038", "#767d88"],
        }
    }
}

/// Draws a picture of memory as an SVG document.
pub fn memory_map(map: &MemoryMap) -> String {
    let mut body = String::new();
    let mut y = MARGIN + 16.0;
    text(&mut body, (MARGIN, y), "title", &map.title);
    for note in &map.notes {
        y += LINE;
        let note = fitted(note, WIDTH - 2.0 * MARGIN);
        text(&mut body, (MARGIN, y), "note", &note);
    }
    y += 14.0;
    for tier in &map.tiers {
        y = draw_tier(&mut body, tier, y + BETWEEN / 2.0) + BETWEEN / 2.0;
    }
    let height = (y + MARGIN / 2.0).ceil();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<title>{}</title>\n<style>\n{}</style>\n\
         <rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"10\"/>\n{body}</svg>\n",
        escape(&map.title),
        style(),
        WIDTH - 1.0,
        height - 1.0,
    )
}

fn style() -> String {
    let mut css = String::from(
        "text { font: 12.5px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1c2128; }\n\
         .title { font-size: 17px; font-weight: 600; }\n\
         .tier { font-weight: 600; }\n\
         .note, .why { fill: #59636e; }\n\
         .number { text-anchor: end; font-variant-numeric: tabular-nums; }\n\
         .inside { text-anchor: middle; }\n\
         .card { fill: #ffffff; stroke: #d1d9e0; }\n\
         .part { stroke: #ffffff; stroke-width: 0.8; }\n\
         .frame { fill: none; stroke: #59636e; }\n",
    );
    let mut dark = String::from(
        "text { fill: #e6edf3; } .note, .why { fill: #9198a1; }\n\
         .card { fill: #0d1117; stroke: #3d444d; } .part { stroke: #0d1117; } .frame { stroke: #9198a1; }\n",
    );
    for kind in PartKind::ALL {
        let (class, [light, night, inside]) = (kind.class(), kind.colors());
        css += &format!(".{class} {{ fill: {light}; }} text.on-{class} {{ fill: {inside}; }}\n");
        dark += &format!(".{class} {{ fill: {night}; }} text.on-{class} {{ fill: {inside}; }}\n");
    }
    format!("{css}@media (prefers-color-scheme: dark) {{\n{dark}}}\n")
}

/// Draws a bar and its legend, and returns the bottom.
fn draw_tier(body: &mut String, tier: &TierBar, top: f64) -> f64 {
    let used: u64 = tier.parts.iter().map(|part| part.bytes).sum();
    let whole = tier.capacity.unwrap_or(0).max(used).max(1);
    let (left, width) = (MARGIN, WIDTH - 2.0 * MARGIN);
    text(body, (left, top + 12.0), "tier", &tier.name);
    let bar_top = top + 20.0;
    let mut sum = 0;
    for part in &tier.parts {
        let at = |bytes: u64| (bytes as f64 / whole as f64 * width * 100.0).round() / 100.0;
        let (from, to) = (at(sum), at(sum + part.bytes));
        sum += part.bytes;
        draw_part(body, part, (left + from, bar_top), to - from);
    }
    let frame = format!(
        "<rect class=\"frame\" x=\"{left}\" y=\"{bar_top}\" width=\"{width}\" height=\"{BAR}\"/>\n"
    );
    body.push_str(&frame);
    let mut y = bar_top + BAR + LINE;
    for part in tier.parts.iter().filter(|part| part.bytes > 0) {
        legend(body, part, y, whole);
        y += LINE;
    }
    y - LINE + 4.0
}

/// Draws a part of a bar, with its name inside if there is room.
fn draw_part(body: &mut String, part: &MemoryPart, (x, y): (f64, f64), width: f64) {
    let class = part.kind.class();
    let (name, size) = (escape(&part.name), escape(&part.size));
    let width = (width * 100.0).round() / 100.0;
    let _ = writeln!(
        body,
        "<rect class=\"part {class}\" x=\"{x:.2}\" y=\"{y}\" width=\"{width}\" height=\"{BAR}\" \
         data-bytes=\"{}\"><title>{name}: {size}</title></rect>",
        part.bytes
    );
    let both = format!("{} {}", part.name, part.size);
    let room = |label: &str| text_width(label) + 12.0 <= width;
    let label = [both.as_str(), part.name.as_str()]
        .into_iter()
        .find(|label| room(label));
    if let Some(label) = label {
        let (middle, base) = (x + width / 2.0, y + BAR / 2.0 + 4.5);
        let class = format!("inside on-{class}");
        text(body, (middle, base), &class, label);
    }
}

fn legend(body: &mut String, part: &MemoryPart, y: f64, whole: u64) {
    let (class, left) = (part.kind.class(), MARGIN);
    let _ = writeln!(
        body,
        "<rect class=\"{class}\" x=\"{left}\" y=\"{}\" width=\"11\" height=\"11\" rx=\"2\"/>",
        y - 10.0
    );
    text(body, (left + 18.0, y), "name", &fitted(&part.name, 190.0));
    text(body, (left + 290.0, y), "number", &part.size);
    let share = format!("{:.1} %", part.bytes as f64 / whole as f64 * 100.0);
    text(body, (left + 350.0, y), "number", &share);
    let room = WIDTH - 2.0 * MARGIN - 366.0;
    text(body, (left + 366.0, y), "why", &fitted(&part.why, room));
}

fn text(body: &mut String, (x, y): (f64, f64), class: &str, content: &str) {
    let _ = writeln!(
        body,
        "<text class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\">{}</text>",
        escape(content)
    );
}

fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * PLAIN * LETTER
}

/// Shortens a text that is wider than `room`.
fn fitted(text: &str, room: f64) -> String {
    if text_width(text) <= room {
        return text.to_owned();
    }
    let letters = (room / (PLAIN * LETTER)) as usize;
    let short: String = text.chars().take(letters.saturating_sub(1)).collect();
    format!("{}…", short.trim_end())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{MemoryMap, MemoryPart, PartKind, TierBar, memory_map};

    fn part(name: &str, kind: PartKind, bytes: u64) -> MemoryPart {
        MemoryPart {
            name: name.to_owned(),
            kind,
            bytes,
            size: format!("{bytes} B"),
            why: "because <it> & \"that\"".to_owned(),
        }
    }

    #[test]
    fn widths_are_to_scale_and_fill_the_bar() {
        let map = MemoryMap {
            title: "a <model> & more".to_owned(),
            notes: vec!["note ".repeat(100)],
            tiers: vec![TierBar {
                name: "device".to_owned(),
                capacity: Some(1000),
                parts: vec![
                    part("weights", PartKind::Weights, 333),
                    part("KV", PartKind::Kv, 1),
                    part("nothing", PartKind::Experts, 0),
                    part("free", PartKind::Free, 666),
                ],
            }],
        };
        let svg = memory_map(&map);
        let document = roxmltree::Document::parse(&svg).unwrap();
        let class = |node: &roxmltree::Node<'_, '_>, name: &str| {
            let classes = node.attribute("class").unwrap_or_default();
            classes.split(' ').any(|class| class == name)
        };
        let number = |node: &roxmltree::Node<'_, '_>, name: &str| -> f64 {
            node.attribute(name).unwrap().parse().unwrap()
        };
        let nodes: Vec<_> = document.descendants().collect();
        let frame = nodes.iter().find(|node| class(node, "frame")).unwrap();
        let parts: Vec<_> = nodes.iter().filter(|node| class(node, "part")).collect();
        let mut x = number(frame, "x");
        for part in &parts {
            assert!((number(part, "x") - x).abs() < 0.011);
            x += number(part, "width");
            let share = number(part, "data-bytes") / 1000.0;
            let drawn = number(part, "width") / number(frame, "width");
            assert!((share - drawn).abs() < 1e-4, "{share} {drawn}");
        }
        assert!((x - number(frame, "x") - number(frame, "width")).abs() < 0.02);
        assert_eq!(parts.len(), 4);
        let texts: Vec<_> = nodes.iter().filter_map(roxmltree::Node::text).collect();
        assert!(texts.contains(&"a <model> & more"), "{texts:?}");
    }
}
