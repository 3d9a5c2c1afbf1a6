//! The one font of all figures: how wide text is in it, and where it is for those who draw it.

use std::sync::{Arc, OnceLock};

use resvg::usvg::fontdb::Database;
use ttf_parser::Face;

const REGULAR: &[u8] = include_bytes!("../../assets/Inter-Regular.ttf");
const SEMIBOLD: &[u8] = include_bytes!("../../assets/Inter-SemiBold.ttf");

/// What SVG asks for: the bundled font first, then what looks like it.
pub const FAMILY: &str = "Inter, Helvetica, Arial, sans-serif";
/// Width of a letter that the font has not, of its size.
const UNKNOWN: f64 = 0.6;

/// How strong letters are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Of plain text.
    Regular,
    /// Of titles.
    Strong,
}

impl Weight {
    /// As SVG calls it.
    pub fn number(self) -> u32 {
        match self {
            Weight::Regular => 400,
            Weight::Strong => 600,
        }
    }

    fn face(self) -> &'static Face<'static> {
        static FACES: OnceLock<[Face<'static>; 2]> = OnceLock::new();
        let parse = |bytes| Face::parse(bytes, 0).expect("the bundled font is a font");
        let faces = FACES.get_or_init(|| [parse(REGULAR), parse(SEMIBOLD)]);
        &faces[self as usize]
    }
}

/// How wide a text is.
pub fn width(text: &str, size: f64, weight: Weight) -> f64 {
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

/// As much of a text as there is room for, with an ellipsis where something is left out.
pub fn fit(text: &str, size: f64, weight: Weight, room: f64) -> String {
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

/// The font for what turns SVG into pictures. No font of the machine: pictures are the same everywhere.
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
    use super::{Weight, database, fit, width};

    #[test]
    fn text_is_measured_and_cut() {
        let wide = |text| width(text, 12.0, Weight::Regular);
        assert!(wide("WW") > 1.5 * wide("ii"));
        assert_eq!(wide("漢"), 0.6 * 12.0);
        assert!(width("bold", 12.0, Weight::Strong) > wide("bold"));
        let short = fit("a long text that has no room", 12.0, Weight::Regular, 60.0);
        assert!(short.ends_with('…') && wide(&short) <= 60.0, "{short}");
        assert_eq!(fit("fits", 12.0, Weight::Regular, 60.0), "fits");
        assert_eq!(fit("nothing", 12.0, Weight::Regular, 1.0), "");
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
