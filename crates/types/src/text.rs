//! Plain-text tables and times, as benchmarks and the command line print them.

/// Table of cells: the first column is aligned left, the others right.
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

/// Time in µs, ms or s, whichever reads best.
pub fn seconds(s: f64) -> String {
    match s {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// Largest number of characters of a client's text that an error repeats.
const SHOWN_CHARS: usize = 80;

/// Returns a text as an error repeats it: at most its beginning.
pub fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{seconds, shown, table};

    #[test]
    fn columns_are_aligned() {
        let rows = vec![
            vec!["a".into(), "1".into()],
            vec!["bcd".into(), "20".into()],
        ];
        assert_eq!(table(&["x", "n"], &rows), "x     n\na     1\nbcd  20\n");
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(shown("äö"), "äö");
        let long = shown(&"ä".repeat(1000));
        assert_eq!(long.chars().count(), 81);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn times_have_a_fitting_unit() {
        assert_eq!(seconds(0.000_012), "12 µs");
        assert_eq!(seconds(0.0123), "12.3 ms");
        assert_eq!(seconds(2.0), "2.00 s");
    }
}
