//! Rendering of a page as self-contained HTML.

use super::document::{DocBlock, DocTable, RichText, TextRun};
use crate::{
    draw::{self, escape},
    figures::DrawnFigure,
    result::Outcome,
};

const STYLE: &str = include_str!("style.css");

/// Renders the blocks of a page, with the SVG of each figure inline.
pub fn page(title: &str, blocks: &[DocBlock], figures: &[DrawnFigure]) -> String {
    let body: Vec<String> = blocks.iter().map(|one| block(one, figures)).collect();
    let (title, body) = (escape(title), body.join("\n"));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n\
         </body>\n</html>\n"
    )
}

fn block(block: &DocBlock, figures: &[DrawnFigure]) -> String {
    match block {
        DocBlock::Title(level, text) => format!("<h{level}>{}</h{level}>", line(text)),
        DocBlock::Text(text) => format!("<p>{}</p>", line(text)),
        DocBlock::List(lines) => {
            let points: String = lines
                .iter()
                .map(|text| format!("<li>{}</li>", line(text)))
                .collect();
            format!("<ul>{points}</ul>")
        }
        DocBlock::Table(table) => self::table(table),
        DocBlock::Figure { name, caption } => {
            let drawn = figures.iter().find(|figure| figure.name == name);
            let svg = drawn
                .and_then(|figure| figure.drawing.as_ref().ok())
                .map(draw::svg)
                .unwrap_or_default();
            let caption = escape(caption);
            format!("<figure id=\"{name}\">\n{svg}<figcaption>{caption}</figcaption>\n</figure>")
        }
    }
}

fn table(table: &DocTable) -> String {
    let row = |tag: &str, cells: &[RichText]| {
        let cell = |text: &RichText| format!("<{tag}>{}</{tag}>", line(text));
        format!("<tr>{}</tr>", cells.iter().map(cell).collect::<String>())
    };
    let rows: Vec<String> = table.rows.iter().map(|cells| row("td", cells)).collect();
    format!(
        "<div class=\"table\"><table>\n<thead>{}</thead>\n<tbody>\n{}\n</tbody>\n</table></div>",
        row("th", &table.head),
        rows.join("\n")
    )
}

fn line(line: &RichText) -> String {
    let part = |part: &TextRun| match part {
        TextRun::Plain(text) => escape(text),
        TextRun::Code(text) => format!("<code>{}</code>", escape(text)),
        TextRun::Strong(text) => format!("<strong>{}</strong>", escape(text)),
        TextRun::Verdict(outcome) => {
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
