//! The bundled font of all figures: text widths, and the font database for rendering.

use std::sync::{Arc, OnceLock};

use resvg::usvg::fontdb::Database;
use ttf_parser::Face;

const REGULAR: &[u8] = include_bytes!("../../assets/Inter-Regular.ttf");
const SEMIBOLD: &[u8] = include_bytes!("../../assets/Inter-SemiBold.ttf");

/// The `font-family` of the SVG files: the bundled font first, then similar ones.
pub const FAMILY: &str = "Inter, Helvetica, Arial, sans-serif";
/// Width of a letter missing from the font, as a share of the font size.
const UNKNOWN: f64 = 0.6;

/// Weight of the letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    fn face(self) -> &'static Face<'static> {
        static FACES: OnceLock<[Face<'static>; 2]> = OnceLock::new();
        let parse = |bytes| Face::parse(bytes, 0).expect("the bundled font is a font");
        let faces = FACES.get_or_init(|| [parse(REGULAR), parse(SEMIBOLD)]);
        &faces[self as usize]
    }
}

/// Returns the width of a text in SVG units.
pub fn width(text: &str, size: f64, weight: FontWeight) -> f64 {
    let face = weight.face();
    let em = f64::from(face.units_per_em());
    let of = |letter| {
        let advance = face
            .glyph_index(letter)
            .and_then(|id| face.glyph_hor_advance(id));
        advance.map_or(UNKNOWN, |advance| f64::from(advance) / em)
    };
    text.chars().map(of).sum::<f64>() * size
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

/// Returns the font database for rendering. It holds the bundled font only, so that pictures do not depend
/// on the machine.
pub fn database() -> Arc<Database> {
    static DATABASE: OnceLock<Arc<Database>> = OnceLock::new();
    let load = || {
        let mut database = Database::new();
        database.load_font_data(REGULAR.to_vec());
        database.load_font_data(SEMIBOLD.to_vec());
        database.set_sans_serif_family("Inter");
        Arc::new(database)
    };
    DATABASE.get_or_init(load).clone()
}

#[cfg(test)]
mod tests {
    use super::{FontWeight, database, fit, width};

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
    fn both_weights_are_one_family() {
        let faces: Vec<_> = database()
            .faces()
            .map(|face| (face.families[0].0.clone(), face.weight.0))
            .collect();
        assert_eq!(
            faces,
            [("Inter".to_owned(), 400), ("Inter".to_owned(), 600)]
        );
    }
}
