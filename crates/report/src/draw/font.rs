//! The bundled font of all figures: glyphs, their positions, and the width of a text.

use std::sync::OnceLock;

use ttf_parser::{
    Face, GlyphId, Tag,
    gpos::{PairAdjustment, PositioningSubtable},
};

const REGULAR: &[u8] = include_bytes!("../../assets/Inter-Regular.ttf");
const SEMIBOLD: &[u8] = include_bytes!("../../assets/Inter-SemiBold.ttf");

/// The `font-family` of the SVG files: the bundled font first, then similar ones.
pub const FAMILY: &str = "Inter, Helvetica, Arial, sans-serif";
/// Width of a letter missing from the font, as a share of the font size.
const UNKNOWN: f64 = 0.6;

/// Weight of the letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FontWeight {
    /// Weight of plain text.
    Regular,
    /// Weight of titles.
    Strong,
}

impl FontWeight {
    /// Returns the number that SVG uses for the weight.
    pub fn number(self) -> u32 {
        match self {
            FontWeight::Regular => 400,
            FontWeight::Strong => 600,
        }
    }

    /// Returns the name of the font in PDF files.
    pub fn postscript_name(self) -> &'static str {
        match self {
            FontWeight::Regular => "Inter-Regular",
            FontWeight::Strong => "Inter-SemiBold",
        }
    }

    /// Returns the font file.
    pub fn file(self) -> &'static [u8] {
        match self {
            FontWeight::Regular => REGULAR,
            FontWeight::Strong => SEMIBOLD,
        }
    }

    /// Returns the parsed font.
    pub fn face(self) -> &'static Face<'static> {
        static FACES: OnceLock<[Face<'static>; 2]> = OnceLock::new();
        let parse = |bytes| Face::parse(bytes, 0).expect("the bundled font is a font");
        let faces = FACES.get_or_init(|| [parse(REGULAR), parse(SEMIBOLD)]);
        &faces[self as usize]
    }
}

/// A glyph of a text.
#[derive(Clone, Copy, Debug)]
pub struct PlacedGlyph {
    pub glyph: GlyphId,
    pub letter: char,
    /// Distance from the start of the text, in SVG units.
    pub x: f64,
}

/// Returns the glyphs of a text with their positions.
pub fn glyphs(text: &str, size: f64, weight: FontWeight) -> Vec<PlacedGlyph> {
    layout(text, size, weight).0
}

/// Returns the width of a text in SVG units.
pub fn width(text: &str, size: f64, weight: FontWeight) -> f64 {
    layout(text, size, weight).1
}

/// Returns the advance of a glyph as a share of the font size. Glyph 0 stands for every letter that the
/// font lacks.
pub fn advance(glyph: GlyphId, weight: FontWeight) -> f64 {
    let face = weight.face();
    match face.glyph_hor_advance(glyph) {
        Some(advance) if glyph.0 != 0 => f64::from(advance) / f64::from(face.units_per_em()),
        _ => UNKNOWN,
    }
}

/// Places the glyphs of a text, and returns them with the width of the text.
fn layout(text: &str, size: f64, weight: FontWeight) -> (Vec<PlacedGlyph>, f64) {
    let face = weight.face();
    let em = f64::from(face.units_per_em());
    let mut placed: Vec<PlacedGlyph> = Vec::new();
    let mut end = 0.0;
    for letter in text.chars() {
        let letter = if letter.is_control() { ' ' } else { letter };
        let glyph = face.glyph_index(letter).unwrap_or(GlyphId(0));
        if let Some(before) = placed.last() {
            end += f64::from(kerning(face, before.glyph, glyph)) / em * size;
        }
        let x = end;
        placed.push(PlacedGlyph { glyph, letter, x });
        end += advance(glyph, weight) * size;
    }
    (placed, end)
}

/// Returns the change of distance between two neighbouring glyphs, in units of the font.
fn kerning(face: &Face<'_>, left: GlyphId, right: GlyphId) -> i16 {
    let Some(table) = face.tables().gpos else {
        return 0;
    };
    let features = table.features.into_iter();
    let kern = features.filter(|feature| feature.tag == Tag::from_bytes(b"kern"));
    let mut lookups: Vec<u16> = kern.flat_map(|feature| feature.lookup_indices).collect();
    lookups.sort_unstable();
    lookups.dedup();
    let of_lookup = |index: u16| {
        let tables = table.lookups.get(index)?.subtables;
        tables
            .into_iter()
            .find_map(|subtable| pair(subtable, left, right))
    };
    lookups.into_iter().filter_map(of_lookup).sum()
}

/// Returns the adjustment that a table has for a pair of glyphs.
fn pair(table: PositioningSubtable<'_>, left: GlyphId, right: GlyphId) -> Option<i16> {
    let PositioningSubtable::Pair(table) = table else {
        return None;
    };
    let index = table.coverage().get(left)?;
    let (first, _) = match table {
        PairAdjustment::Format1 { sets, .. } => sets.get(index)?.get(right)?,
        PairAdjustment::Format2 {
            classes, matrix, ..
        } => matrix.get((classes.0.get(left), classes.1.get(right)))?,
    };
    Some(first.x_advance)
}

/// Shortens a text to the available width; an ellipsis marks the cut.
pub fn fit(text: &str, size: f64, weight: FontWeight, room: f64) -> String {
    if width(text, size, weight) <= room {
        return text.to_owned();
    }
    let mut kept: Vec<char> = text.chars().collect();
    while kept.pop().is_some() {
        let short: String = kept.iter().collect();
        let short = format!("{}…", short.trim_end());
        if width(&short, size, weight) <= room {
            return short;
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::{FontWeight, fit, glyphs, width};

    #[test]
    fn text_is_measured_and_shortened() {
        let wide = |text| width(text, 12.0, FontWeight::Regular);
        assert!(wide("WW") > 1.5 * wide("ii"));
        assert_eq!(wide("漢"), 0.6 * 12.0);
        assert!(width("bold", 12.0, FontWeight::Strong) > wide("bold"));
        let short = fit(
            "a long text that has no room",
            12.0,
            FontWeight::Regular,
            60.0,
        );
        assert!(short.ends_with('…') && wide(&short) <= 60.0, "{short}");
        assert_eq!(fit("fits", 12.0, FontWeight::Regular, 60.0), "fits");
        assert_eq!(fit("nothing", 12.0, FontWeight::Regular, 1.0), "");
    }

    #[test]
    fn pairs_are_kerned() {
        for weight in [FontWeight::Regular, FontWeight::Strong] {
            let wide = |text| width(text, 12.0, weight);
            assert!(wide("AV") < wide("A") + wide("V"));
            assert_eq!(wide("nn"), 2.0 * wide("n"));
            let last = glyphs("AV", 12.0, weight)[1];
            assert!((last.x + wide("V") - wide("AV")).abs() < 1e-9);
        }
    }
}
