//! How tables and numbers look on a terminal.

use std::io::IsTerminal;

/// A plain table: first column left, the others right.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let longest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        longest.max(header[column].chars().count())
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &[&str]| {
        let padded = cells
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(i, (cell, &w))| {
                if i == 0 {
                    format!("{cell:<w$}")
                } else {
                    format!("{cell:>w$}")
                }
            });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let body = rows.iter().map(|row| {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        line(&cells)
    });
    std::iter::once(line(header)).chain(body).collect()
}

/// Seconds as people read them.
pub fn seconds(s: f64) -> String {
    match s {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// A word in one of a terminal's colours, where standard output is one and nobody minds.
pub fn coloured(word: &str, colour: Colour) -> String {
    let wanted = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    if !wanted {
        return word.to_owned();
    }
    let code = match colour {
        Colour::Green => 32,
        Colour::Yellow => 33,
        Colour::Red => 31,
    };
    format!("\x1b[{code}m{word}\x1b[0m")
}

/// What colours say: all is well, look here, this is broken.
#[derive(Clone, Copy, Debug)]
pub enum Colour {
    /// All is well.
    Green,
    /// Look here.
    Yellow,
    /// This is broken.
    Red,
}

/// Token ids as `--tokens` reads them.
pub fn id_list(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}

#[cfg(test)]
mod tests {
    use super::{seconds, table};

    #[test]
    fn tables_line_up() {
        let rows = vec![
            vec!["a".into(), "1".into()],
            vec!["bcd".into(), "20".into()],
        ];
        assert_eq!(table(&["x", "n"], &rows), "x     n\na     1\nbcd  20\n");
    }

    #[test]
    fn times() {
        assert_eq!(seconds(0.000_012), "12 µs");
        assert_eq!(seconds(0.0123), "12.3 ms");
        assert_eq!(seconds(2.0), "2.00 s");
    }
}
