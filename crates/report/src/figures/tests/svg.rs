//! A minimal reader of the SVG that the canvas writes: one element per line.

use std::collections::BTreeMap;

/// An element of an SVG document.
#[derive(Clone, Debug)]
pub struct SvgElement {
    pub tag: String,
    attributes: BTreeMap<String, String>,
    pub text: String,
}

impl SvgElement {
    fn parse(line: &str) -> Option<Self> {
        let inner = line.strip_prefix('<')?;
        let (head, rest) = inner.split_once('>')?;
        let (tag, attributes) = head.split_once(' ')?;
        let mut pieces = attributes.trim_end_matches('/').split('"');
        let mut found = BTreeMap::new();
        while let (Some(name), Some(value)) = (pieces.next(), pieces.next()) {
            let name = name.trim().trim_end_matches('=');
            found.insert(name.to_owned(), value.to_owned());
        }
        let text = rest.split("</").next().unwrap_or_default();
        Some(SvgElement {
            tag: tag.to_owned(),
            attributes: found,
            text: text.to_owned(),
        })
    }

    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }

    pub fn number(&self, name: &str) -> f64 {
        let text = self.attribute(name);
        text.parse()
            .unwrap_or_else(|_| panic!("{name}=\"{text}\" in {self:?}"))
    }

    /// Returns the points of a path.
    pub fn points(&self) -> Vec<(f64, f64)> {
        let path = self.attribute("d").trim_end_matches('Z');
        let point = |text: &str| {
            let (x, y) = text.split_once(' ').unwrap();
            (x.parse().unwrap(), y.parse().unwrap())
        };
        path.split(['M', 'L'])
            .filter(|text| !text.is_empty())
            .map(point)
            .collect()
    }
}

/// A parsed SVG document.
pub struct SvgDocument(Vec<SvgElement>);

impl SvgDocument {
    pub fn parse(svg: &str) -> Self {
        SvgDocument(svg.lines().filter_map(SvgElement::parse).collect())
    }

    /// Returns all texts, in drawing order.
    pub fn texts(&self) -> Vec<&str> {
        self.of("text").map(|one| one.text.as_str()).collect()
    }

    /// Returns the position of a text.
    pub fn text_at(&self, text: &str) -> (f64, f64) {
        let found = self.of("text").find(|one| one.text == text);
        let found = found.unwrap_or_else(|| panic!("no text '{text}' in {:?}", self.texts()));
        (found.number("x"), found.number("y"))
    }

    /// Returns the horizontal position of a number on the x axis, whose numbers are centred.
    pub fn x_tick(&self, label: &str) -> f64 {
        let is_it =
            |one: &&SvgElement| one.text == label && one.attribute("text-anchor") == "middle";
        let found = self.of("text").find(is_it);
        found
            .unwrap_or_else(|| panic!("no tick '{label}' in {:?}", self.texts()))
            .number("x")
    }

    /// Returns the rectangles of a colour.
    pub fn bars(&self, fill: &str) -> Vec<&SvgElement> {
        self.of("rect")
            .filter(|one| one.attribute("fill") == fill)
            .collect()
    }

    /// Returns the centres of the circles of a colour.
    pub fn circles(&self, fill: &str) -> Vec<(f64, f64)> {
        self.of("circle")
            .filter(|one| one.attribute("fill") == fill)
            .map(|one| (one.number("cx"), one.number("cy")))
            .collect()
    }

    /// Returns the open lines of a colour.
    pub fn lines(&self, stroke: &str) -> Vec<Vec<(f64, f64)>> {
        self.of("path")
            .filter(|one| one.attribute("stroke") == stroke && one.attribute("fill") == "none")
            .map(SvgElement::points)
            .collect()
    }

    fn of(&self, tag: &str) -> impl Iterator<Item = &SvgElement> {
        self.0.iter().filter(move |one| one.tag == tag)
    }
}
