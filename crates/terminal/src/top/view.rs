//! Live view: a box for every model.

use std::collections::HashMap;

use djinn_types::Size;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Style, Stylize},
    text::{Line, Span},
    widgets::{Block, Paragraph, Sparkline},
};

use super::figures::{Figures, ModelFigures};

/// Height of a model's box, its border included.
const BOX_HEIGHT: u16 = 12;
/// Columns of the label before a bar.
const LABEL: usize = 10;
/// Columns of the text after a bar.
const CAPTION: usize = 34;

/// State of the view: the last figures, and what changes over time of every model.
#[derive(Default)]
pub struct LiveView {
    /// Last figures; none before the first reading.
    pub figures: Option<Figures>,
    /// Error since the last figures.
    pub problem: Option<String>,
    /// Readings of every model over time.
    history: HashMap<String, ModelHistory>,
}

/// Readings of one model over time.
#[derive(Default)]
struct ModelHistory {
    /// Tokens per second.
    tokens: Vec<u64>,
    /// Bytes of resident weights, which share device memory with KV pages.
    resident: Vec<u64>,
}

impl ModelHistory {
    fn add(&mut self, model: &ModelFigures) {
        self.tokens.push(model.tokens_per_s.round() as u64);
        self.resident.push(model.memory.resident_bytes);
        for past in [&mut self.tokens, &mut self.resident] {
            let old = past.len().saturating_sub(HISTORY);
            past.drain(..old);
        }
    }
}

/// Last readings that fit in an area.
fn last_of(past: &[u64], area: Rect) -> &[u64] {
    &past[past.len().saturating_sub(area.width as usize)..]
}

/// Number of readings to keep.
const HISTORY: usize = 512;

impl LiveView {
    /// Shows new figures.
    pub fn update(&mut self, figures: Figures) {
        for model in &figures.models {
            let past = self.history.entry(model.name.clone()).or_default();
            past.add(model);
        }
        self.figures = Some(figures);
        self.problem = None;
    }

    /// Draws the view.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let rows = [
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ];
        let [head, middle, foot] = Layout::vertical(rows).areas(frame.area());
        let foot_line = match &self.problem {
            Some(problem) => Line::from(problem.clone()).red(),
            None => Line::from("q quits").dim(),
        };
        frame.render_widget(foot_line, foot);
        let Some(figures) = &self.figures else {
            frame.render_widget(Line::from("connecting …"), head);
            return;
        };
        frame.render_widget(Line::from(figures.head()).bold(), head);
        let blocks = figures
            .models
            .iter()
            .map(|_| Constraint::Length(BOX_HEIGHT));
        let areas = Layout::vertical(blocks).split(middle);
        for (model, area) in figures.models.iter().zip(areas.iter()) {
            self.draw_model(frame, model, *area);
        }
    }

    fn draw_model(&self, frame: &mut Frame<'_>, model: &ModelFigures, area: Rect) {
        let title = format!(" {} · {} ", model.name, model.state);
        let block = Block::bordered().title(title);
        let inside = block.inner(area);
        frame.render_widget(block, area);
        let line = Constraint::Length(1);
        let [text, split, spark] = Layout::vertical([Constraint::Min(0), line, line]).areas(inside);
        let lines = lines(model, inside.width as usize);
        frame.render_widget(Paragraph::new(lines), text);
        let Some(past) = self.history.get(&model.name) else {
            return;
        };
        // The height is the share of device memory that holds weights.
        let resident = Sparkline::default()
            .data(last_of(&past.resident, split))
            .max(model.memory.total_bytes.max(1));
        frame.render_widget(resident.blue(), split);
        let tokens = Sparkline::default().data(last_of(&past.tokens, spark));
        frame.render_widget(tokens.green(), spark);
    }
}

/// Lines of a model's box.
fn lines(model: &ModelFigures, width: usize) -> Vec<Line<'static>> {
    let memory = &model.memory;
    let parts = [
        ("weights", Color::Blue, memory.resident_bytes),
        ("ring", Color::Cyan, memory.ring_bytes),
        ("experts", Color::Magenta, memory.experts_bytes),
        ("KV", Color::Yellow, memory.kv_bytes),
        ("activations", Color::Gray, memory.activations_bytes),
    ];
    let mut lines = vec![Line::from(model.routing.clone()).dim()];
    let caption = format!(
        "{} · {} host",
        Size(memory.total_bytes),
        Size(memory.host_bytes)
    );
    lines.push(bar("device", &parts, memory.total_bytes, caption, width));
    lines.push(key(&parts));
    for tier in model.tiers.iter().filter(|tier| tier.room > 0) {
        let parts = [
            ("", Color::Yellow, tier.pages),
            ("", Color::DarkGray, tier.cached),
        ];
        let caption = format!(
            "{} of {} pages, {} cached · {}",
            tier.pages,
            tier.room,
            tier.cached,
            Size(tier.bytes)
        );
        let label = format!("KV {}", tier.name);
        lines.push(bar(&label, &parts, tier.room, caption, width));
    }
    let share = model.link_share.unwrap_or(0.0);
    let link = ("", Color::Cyan, (1000.0 * share) as u64);
    let caption = format!(
        "{:.2} GB/s · {} · {:.0} % stalled",
        model.link / 1e9,
        model.of_link(),
        100.0 * model.stalled
    );
    lines.push(bar("link", &[link], 1000, caption, width));
    lines.push(Line::from(format!(
        "{:LABEL$}{} · paging {}/s out, {}/s in · {} cached tokens ({:.0} % hits)",
        "sessions",
        model.sessions(),
        Size(model.paged_out as u64),
        Size(model.paged_in as u64),
        model.adopted,
        100.0 * model.prefix_hits
    )));
    lines.push(Line::from(format!(
        "{:LABEL$}{:.1} a second · {:.1} passes/s · {:.0} % busy",
        "tokens",
        model.tokens_per_s,
        model.passes_per_s,
        100.0 * model.busy
    )));
    lines
}

/// Bar whose parts are drawn to scale.
fn bar(
    label: &str,
    parts: &[(&str, Color, u64)],
    whole: u64,
    caption: String,
    width: usize,
) -> Line<'static> {
    let room = width.saturating_sub(LABEL + CAPTION + 1).max(8);
    let mut spans = vec![Span::raw(format!("{label:LABEL$}"))];
    let (mut sum, mut drawn) = (0, 0);
    for (_, colour, bytes) in parts {
        sum += bytes;
        let until = (sum as f64 / whole.max(1) as f64 * room as f64).round() as usize;
        let until = until.clamp(drawn, room);
        let cells = "█".repeat(until - drawn);
        spans.push(Span::styled(cells, Style::new().fg(*colour)));
        drawn = until;
    }
    spans.push("·".repeat(room - drawn).dim());
    spans.push(Span::raw(format!(" {caption}")));
    Line::from(spans)
}

/// Legend of a bar's colours.
fn key(parts: &[(&str, Color, u64)]) -> Line<'static> {
    let mut spans = vec![Span::raw(" ".repeat(LABEL))];
    for (name, colour, bytes) in parts.iter().filter(|(_, _, bytes)| *bytes > 0) {
        spans.push(Span::styled("█ ", Style::new().fg(*colour)));
        spans.push(Span::raw(format!("{name} {}  ", Size(*bytes))));
    }
    Line::from(spans)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::LiveView;
    use crate::top::figures::tests::{divided, example};

    #[test]
    fn a_server_is_drawn() {
        let mut terminal = Terminal::new(TestBackend::new(110, 20)).unwrap();
        let mut view = LiveView::default();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        assert!(format!("{}", terminal.backend()).contains("connecting"));
        view.update(example());
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let drawn = format!("{}", terminal.backend());
        for part in [
            "big · ready",
            "ring 1.00 GB",
            "3 of 10 pages, 2 cached",
            "4.00 GB/s",
            "100.0 a second",
        ] {
            assert!(drawn.contains(part), "'{part}' is not in\n{drawn}");
        }
        // A tiny terminal does not panic.
        let mut small = Terminal::new(TestBackend::new(8, 3)).unwrap();
        small.draw(|frame| view.draw(frame)).unwrap();
    }

    /// Heights of the bars in the line with the resident weights over time, in eighths.
    fn heights(view: &LiveView) -> Vec<usize> {
        let mut terminal = Terminal::new(TestBackend::new(40, 14)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let drawn = terminal.backend().to_string();
        // Two lines over time end a box: resident weights, and tokens per second.
        let lines: Vec<&str> = drawn.lines().collect();
        let end = lines.iter().position(|line| line.contains('└')).unwrap();
        let bars = lines[end - 2].chars();
        let bars = bars.filter_map(|bar| " ▁▂▃▄▅▆▇█".chars().position(|level| level == bar));
        bars.collect()
    }

    #[test]
    fn the_share_of_weights_is_drawn_over_time() {
        let mut view = LiveView::default();
        let gigabytes = [3, 3, 2, 1, 1, 2, 3];
        for gb in gigabytes {
            view.update(divided(gb * 1_000_000_000));
        }
        // The height stands for the share of 4 GB: 3 GB are six eighths.
        let found = heights(&view);
        assert_eq!(found[..7], [6, 6, 4, 2, 2, 4, 6], "{found:?}");
        assert!(found[7..].iter().all(|height| *height == 0), "{found:?}");
        // Readings that do not fit leave the line on the left.
        for _ in 0..37 {
            view.update(divided(1_000_000_000));
        }
        let found = heights(&view);
        assert_eq!(found[0], 6, "the last of the first readings");
        assert!(found[1..38].iter().all(|height| *height == 2), "{found:?}");
        // A model that has left the server is not drawn; its readings do not mix with others.
        view.update(example());
        let mut terminal = Terminal::new(TestBackend::new(60, 14)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let drawn = terminal.backend().to_string();
        assert!(!drawn.contains("elastic"), "{drawn}");
    }
}
