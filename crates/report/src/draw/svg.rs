//! SVG of a drawing: one element per line, with text as text.

use std::fmt::{Display, Write};

use super::{
    drawing::{Anchor, Drawing, DrawnShape, LineStyle, Position, ShapePaint, TextStyle},
    font::{FAMILY, FontWeight},
    rect::Rect,
};

/// Escapes text for XML and replaces control characters by spaces.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {
                safe.push(' ');
            }
            letter => safe.push(letter),
        }
    }
    safe
}

/// Writes a drawing as an SVG document.
pub fn svg(drawing: &Drawing) -> String {
    let (w, h, title) = (drawing.width, drawing.height, escape(&drawing.title));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" \
         viewBox=\"0 0 {w} {h}\" font-family=\"{FAMILY}\" role=\"img\">\n\
         <title>{title}</title>\n\
         <rect width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>\n"
    );
    for shape in &drawing.shapes {
        svg += &element(shape);
        svg.push('\n');
    }
    svg + "</svg>\n"
}

fn element(shape: &DrawnShape) -> String {
    match shape {
        DrawnShape::Line { points, ink } => line(points, *ink),
        DrawnShape::Rect { area, fill } => {
            let Rect { x, y, w, h } = area;
            format!("<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" fill=\"{fill}\"/>")
        }
        DrawnShape::Polygon { points, paint } => {
            format!("<path d=\"{}Z\" {}/>", path(points), attributes(*paint))
        }
        DrawnShape::Circle {
            centre: (x, y),
            radius,
            paint,
        } => {
            let paint = attributes(*paint);
            format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" {paint}/>")
        }
        DrawnShape::Text {
            at,
            text,
            letters,
            vertical,
        } => self::text(*at, text, *letters, *vertical),
    }
}

fn attributes(paint: ShapePaint) -> impl Display {
    let ShapePaint {
        fill,
        edge,
        edge_width,
    } = paint;
    format!("fill=\"{fill}\" stroke=\"{edge}\" stroke-width=\"{edge_width}\"")
}

fn path(points: &[Position]) -> String {
    let mut path = String::new();
    for (i, (x, y)) in points.iter().enumerate() {
        let step = if i == 0 { 'M' } else { 'L' };
        write!(path, "{step}{x} {y}").expect("writing to a String cannot fail");
    }
    path
}

fn line(points: &[Position], ink: LineStyle) -> String {
    let dash: Vec<String> = ink.dash.pattern().iter().map(f32::to_string).collect();
    let dash = match &dash[..] {
        [] => String::new(),
        lengths => format!(" stroke-dasharray=\"{}\"", lengths.join(" ")),
    };
    let (path, color, width) = (path(points), ink.color, ink.width);
    format!(
        "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" \
         stroke-linejoin=\"round\"{dash}/>"
    )
}

fn text((x, y): Position, text: &str, letters: TextStyle, vertical: bool) -> String {
    let anchor = match letters.anchor {
        Anchor::Start => "",
        Anchor::Middle => " text-anchor=\"middle\"",
        Anchor::End => " text-anchor=\"end\"",
    };
    let weight = match letters.weight {
        FontWeight::Regular => String::new(),
        strong => format!(" font-weight=\"{}\"", strong.number()),
    };
    let rotation = match vertical {
        true => format!(" transform=\"rotate(-90 {x} {y})\""),
        false => String::new(),
    };
    let (size, color, text) = (letters.size, letters.color, escape(text));
    format!(
        "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{color}\"{weight}{anchor}{rotation}>\
         {text}</text>"
    )
}

#[cfg(test)]
mod tests {
    use super::{
        super::{canvas::Canvas, drawing::LineStyle, drawing::TextStyle},
        escape, svg,
    };

    #[test]
    fn any_input_gives_well_formed_svg() {
        let mut canvas = Canvas::new(10.0, 10.0);
        canvas.text((1.0, f64::NAN), "<a & \"b\">\u{0}", TextStyle::new(9.0));
        canvas.line(
            (0.0, f64::INFINITY),
            (1.0 / 3.0, -0.001),
            LineStyle::solid("#000000", 1.0),
        );
        let svg = svg(&canvas.finish("a <title>"));
        assert!(
            svg.contains("&lt;a &amp; &quot;b&quot;&gt; </text>"),
            "{svg}"
        );
        assert!(svg.contains("M0 0L0.33 0\""), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!(escape("a\nb"), "a b");
    }
}
