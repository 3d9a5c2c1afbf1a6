//! Grids of blocks by positions, as text and as a picture.

use std::fmt::Write;

/// Assumed width of a terminal in columns.
const COLUMNS: usize = 100;

/// Table cut into bands that fit a terminal. Each band begins with the first column.
pub fn text(header: &[&str], rows: &[Vec<String>]) -> String {
    let count = |text: &str| text.chars().count();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| count(&row[column]));
        cells.max().unwrap_or(0).max(count(header[column]))
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut out = String::new();
    let mut start = 1;
    while start < header.len() {
        let mut room = COLUMNS.saturating_sub(widths[0]);
        let mut end = start;
        while end < header.len() && (end == start || widths[end] + 2 <= room) {
            room = room.saturating_sub(widths[end] + 2);
            end += 1;
        }
        let line = |cells: &dyn Fn(usize) -> String| {
            let mut line = format!("{:>1$}", cells(0), widths[0]);
            for (column, width) in widths.iter().enumerate().take(end).skip(start) {
                let cell = cells(column);
                let pad = width - count(&cell);
                let _ = write!(line, "  {}{cell}", " ".repeat(pad));
            }
            line + "\n"
        };
        out += &line(&|column| header[column].to_owned());
        for row in rows {
            out += &line(&|column| row[column].clone());
        }
        start = end;
        if start < header.len() {
            out += "\n";
        }
    }
    out
}

/// Width and height of a picture's cell in pixels.
const CELL: (usize, usize) = (86, 24);
/// Width of a picture's left margin in pixels.
const LEFT: usize = 48;

/// Picture of a grid. Each cell has a text, and is darker the closer its number is to 1.
pub fn svg(header: &[String], rows: &[String], cells: &[Vec<(String, f64)>]) -> String {
    let (wide, high) = CELL;
    let (width, height) = (LEFT + wide * header.len() + 8, high * (rows.len() + 1) + 8);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"monospace\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut word = |x: usize, y: usize, colour: &str, text: &str| {
        let text: String = text.chars().take(11).collect();
        let text = escape(&text);
        let _ = writeln!(
            out,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" fill=\"{colour}\">{text}</text>"
        );
    };
    let middle = |column: usize| LEFT + wide * column + wide / 2;
    for (column, name) in header.iter().enumerate() {
        word(middle(column), 17, "#555", name);
    }
    for (row, name) in rows.iter().enumerate() {
        word(LEFT / 2, high * (row + 1) + 17, "#555", name);
    }
    for (row, line) in cells.iter().enumerate() {
        for (column, (text, share)) in line.iter().enumerate() {
            let share = share.clamp(0.0, 1.0);
            // From white to a deep blue.
            let part = |from: f64, to: f64| (from + (to - from) * share).round();
            let (r, g, b) = (part(255.0, 8.0), part(255.0, 48.0), part(255.0, 107.0));
            let (x, y) = (LEFT + wide * column, high * (row + 1));
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"{high}\" \
                 fill=\"rgb({r},{g},{b})\" stroke=\"#ddd\"/>"
            );
            let colour = if share > 0.5 { "white" } else { "black" };
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"{colour}\">{}</text>",
                x + wide / 2,
                y + 17,
                escape(&text.trim().chars().take(11).collect::<String>()),
            );
        }
    }
    out + "</svg>\n"
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{svg, text};

    #[test]
    fn wide_grids_are_cut_into_bands() {
        let row: Vec<String> = (0..30).map(|i| format!("word{i}")).collect();
        let header: Vec<&str> = row.iter().map(String::as_str).collect();
        let found = text(&header, std::slice::from_ref(&row));
        assert!(
            found.lines().all(|line| line.chars().count() <= 100),
            "{found}"
        );
        // Every column appears in one band, as a header and as a cell.
        for i in 1..30 {
            assert_eq!(
                found.matches(&format!("word{i} ")).count()
                    + found.matches(&format!("word{i}\n")).count(),
                2
            );
        }
    }

    #[test]
    fn pictures_are_well_formed() {
        let cells = vec![vec![("<a&b>".to_owned(), 0.9)]];
        let found = svg(&["\"x\"".to_owned()], &["0".to_owned()], &cells);
        assert!(found.contains("&lt;a&amp;b&gt;") && found.contains("&quot;x&quot;"));
        assert!(found.starts_with("<svg") && found.ends_with("</svg>\n"));
    }
}
