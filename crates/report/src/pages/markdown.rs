//! Rendering of a page as Markdown.

use std::fmt::Write;

use super::document::{DocBlock, DocTable, RichText, TextRun};

/// Renders the blocks of a page.
pub fn page(blocks: &[DocBlock]) -> String {
    let texts: Vec<String> = blocks.iter().map(block).collect();
    texts.join("\n\n") + "\n"
}

fn block(block: &DocBlock) -> String {
    match block {
        DocBlock::Title(level, text) => {
            format!("{} {}", "#".repeat(usize::from(*level)), line(text))
        }
        DocBlock::Text(text) => line(text),
        DocBlock::List(lines) => {
            let points: Vec<String> = lines
                .iter()
                .map(|text| format!("- {}", line(text)))
                .collect();
            points.join("\n")
        }
        DocBlock::Table(table) => self::table(table),
        DocBlock::Figure { name, caption } => {
            let caption = escape(caption);
            format!("![{caption}]({name}.svg)\n\n{caption} ([PNG]({name}.png), [PDF]({name}.pdf))")
        }
    }
}

/// Renders a table.
pub fn table(table: &DocTable) -> String {
    let row = |cells: &[RichText]| {
        let cells: Vec<String> = cells.iter().map(line).collect();
        format!("| {} |", cells.join(" | "))
    };
    let mut text = row(&table.head);
    write!(text, "\n|{}", "---|".repeat(table.head.len()))
        .expect("writing to a String cannot fail");
    for cells in &table.rows {
        write!(text, "\n{}", row(cells)).expect("writing to a String cannot fail");
    }
    text
}

fn line(line: &RichText) -> String {
    let part = |part: &TextRun| match part {
        TextRun::Plain(text) => escape(text),
        TextRun::Code(text) => code(text),
        TextRun::Strong(text) => format!("**{}**", escape(text)),
        TextRun::Verdict(outcome) => format!("**{}**", outcome.word()),
    };
    line.0.iter().map(part).collect()
}

/// Escapes text for Markdown and joins its lines.
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

/// Formats a code span. Backticks cannot be escaped there and become apostrophes; a bar is escaped, because
/// it would end the table cell.
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
        super::document::{DocBlock, DocTable, RichText},
        page,
    };

    #[test]
    fn special_characters_stay_inside_their_cell() {
        let mut table = DocTable::new(["a", "b"]);
        table.rows.push(vec![
            RichText::from("x|y\nz"),
            RichText::default().code("p|`q`"),
        ]);
        let text = page(&[
            DocBlock::Title(2, RichText::from("*t*")),
            DocBlock::Table(table),
        ]);
        assert_eq!(
            text,
            "## \\*t\\*\n\n| a | b |\n|---|---|\n| x\\|y z | `p\\|'q'` |\n"
        );
    }
}
