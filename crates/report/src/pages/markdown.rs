//! A page as Markdown.

use std::fmt::Write;

use super::document::{Block, Line, Part, Table};

/// All blocks below one another.
pub fn page(blocks: &[Block]) -> String {
    let texts: Vec<String> = blocks.iter().map(block).collect();
    texts.join("\n\n") + "\n"
}

fn block(block: &Block) -> String {
    match block {
        Block::Title(level, text) => format!("{} {}", "#".repeat(usize::from(*level)), line(text)),
        Block::Text(text) => line(text),
        Block::List(lines) => {
            let points: Vec<String> = lines
                .iter()
                .map(|text| format!("- {}", line(text)))
                .collect();
            points.join("\n")
        }
        Block::Table(table) => self::table(table),
        Block::Figure { name, caption } => {
            let caption = escape(caption);
            format!("![{caption}]({name}.svg)\n\n{caption} ([PNG]({name}.png), [PDF]({name}.pdf))")
        }
    }
}

/// A table on its own.
pub fn table(table: &Table) -> String {
    let row = |cells: &[Line]| {
        let cells: Vec<String> = cells.iter().map(line).collect();
        format!("| {} |", cells.join(" | "))
    };
    let mut text = row(&table.head);
    write!(text, "\n|{}", "---|".repeat(table.head.len())).expect("a string takes everything");
    for cells in &table.rows {
        write!(text, "\n{}", row(cells)).expect("a string takes everything");
    }
    text
}

fn line(line: &Line) -> String {
    let part = |part: &Part| match part {
        Part::Plain(text) => escape(text),
        Part::Code(text) => code(text),
        Part::Strong(text) => format!("**{}**", escape(text)),
        Part::Verdict(outcome) => format!("**{}**", outcome.word()),
    };
    line.0.iter().map(part).collect()
}

/// Text in which nothing means anything to Markdown, on one line.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' | '|' | '*' | '_' | '`' | '[' | ']' | '<' | '>' | '#' => {
                safe.push('\\');
                safe.push(letter);
            }
            letter if letter.is_control() => safe.push(' '),
            letter => safe.push(letter),
        }
    }
    safe
}

/// A backtick cannot be escaped in code; a bar must be, even there, or it ends a cell.
fn code(text: &str) -> String {
    let safe: String = text
        .chars()
        .map(|letter| match letter {
            '`' => '\'',
            letter if letter.is_control() => ' ',
            letter => letter,
        })
        .collect();
    match safe.trim() {
        "" => String::new(),
        safe => format!("`{}`", safe.replace('|', "\\|")),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::document::{Block, Line, Table},
        page,
    };

    #[test]
    fn nothing_breaks_out_of_its_cell() {
        let mut table = Table::new(["a", "b"]);
        table
            .rows
            .push(vec![Line::from("x|y\nz"), Line::default().code("p|`q`")]);
        let text = page(&[Block::Title(2, Line::from("*t*")), Block::Table(table)]);
        assert_eq!(
            text,
            "## \\*t\\*\n\n| a | b |\n|---|---|\n| x\\|y z | `p\\|'q'` |\n"
        );
    }
}
