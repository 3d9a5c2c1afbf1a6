//! A page as HTML: one file with everything in it.

use super::{
    Shown,
    document::{Block, Line, Part, Table},
};
use crate::{Outcome, draw::escape};

const STYLE: &str = include_str!("style.css");

/// All blocks below one another, with figures where they belong.
pub fn page(title: &str, blocks: &[Block], figures: &[Shown]) -> String {
    let body: Vec<String> = blocks.iter().map(|one| block(one, figures)).collect();
    let (title, body) = (escape(title), body.join("\n"));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n\
         </body>\n</html>\n"
    )
}

fn block(block: &Block, figures: &[Shown]) -> String {
    match block {
        Block::Title(level, text) => format!("<h{level}>{}</h{level}>", line(text)),
        Block::Text(text) => format!("<p>{}</p>", line(text)),
        Block::List(lines) => {
            let points: String = lines
                .iter()
                .map(|text| format!("<li>{}</li>", line(text)))
                .collect();
            format!("<ul>{points}</ul>")
        }
        Block::Table(table) => self::table(table),
        Block::Figure { name, caption } => {
            let drawn = figures.iter().find(|figure| figure.name == name);
            let svg = drawn
                .and_then(|figure| figure.svg.as_deref().ok())
                .unwrap_or_default();
            let caption = escape(caption);
            format!("<figure id=\"{name}\">\n{svg}<figcaption>{caption}</figcaption>\n</figure>")
        }
    }
}

fn table(table: &Table) -> String {
    let row = |tag: &str, cells: &[Line]| {
        let cell = |text: &Line| format!("<{tag}>{}</{tag}>", line(text));
        format!("<tr>{}</tr>", cells.iter().map(cell).collect::<String>())
    };
    let rows: Vec<String> = table.rows.iter().map(|cells| row("td", cells)).collect();
    format!(
        "<div class=\"table\"><table>\n<thead>{}</thead>\n<tbody>\n{}\n</tbody>\n</table></div>",
        row("th", &table.head),
        rows.join("\n")
    )
}

fn line(line: &Line) -> String {
    let part = |part: &Part| match part {
        Part::Plain(text) => escape(text),
        Part::Code(text) => format!("<code>{}</code>", escape(text)),
        Part::Strong(text) => format!("<strong>{}</strong>", escape(text)),
        Part::Verdict(outcome) => {
            let class = match outcome {
                Outcome::Pass => "pass",
                Outcome::Fail => "fail",
                Outcome::NotJudged => "open",
            };
            format!("<span class=\"verdict {class}\">{}</span>", outcome.word())
        }
    };
    line.0.iter().map(part).collect()
}
