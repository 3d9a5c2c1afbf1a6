//! Phrases that the language guide of CONTRIBUTING.md rules out.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// First words of a comment that only a neighbour can explain. A paragraph of a doc comment
/// counts as a comment.
const OPENINGS: &[&str] = &[
    "It", "Its", "Those", "That", "They", "Them", "Whose", "Who", "Which", "What", "Where", "So",
    "The same",
];

/// First words of any later sentence of a doc comment that hide their subject. `It` and `They`
/// are allowed there, because an earlier sentence of the comment names the noun.
const SENTENCE_OPENINGS: &[&str] = &["Those", "Them", "Whose", "Who", "Which", "What", "So"];

/// Phrases that send the reader of a comment to a neighbour.
const NEIGHBOURS: &[&str] = &["as above", "see above", "like above"];

/// Phrases that hide their subject or their verb.
const PHRASES: &[&str] = &[
    "whoever",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "is told",
    "are told",
    "was told",
    "comes to",
    "goes on",
    "nought",
    "those that",
    "those who",
    "give way",
    "gives way",
    "make way",
    "makes way",
];

/// A line that breaks the language guide.
#[derive(Debug)]
pub struct ProseFault {
    /// File of the line, relative to the workspace.
    pub file: PathBuf,
    /// Number of the line, from 1.
    pub line: usize,
    /// Opening or phrase that was found.
    pub found: &'static str,
}

/// Lists the faults in sources and documents below `root`.
pub fn prose_faults(root: &Path) -> io::Result<Vec<ProseFault>> {
    let mut faults = Vec::new();
    for folder in ["crates", "docs", "python", "eval", "scripts"] {
        visit(root, &root.join(folder), &mut faults)?;
    }
    Ok(faults)
}

fn visit(root: &Path, folder: &Path, faults: &mut Vec<ProseFault>) -> io::Result<()> {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            // Generated reports and installed packages are not prose of this project.
            let skipped = ["target", "tidy", "report", ".venv", "__pycache__"];
            if !skipped.contains(&&*name) || name == "report" && path.ends_with("crates/report") {
                visit(root, &path, faults)?;
            }
        } else if is_prose(&name) {
            check(root, &path, faults)?;
        }
    }
    Ok(())
}

fn is_prose(name: &str) -> bool {
    [".rs", ".md", ".py", ".proto", ".cu", ".cuh", ".yaml"]
        .iter()
        .any(|ending| name.ends_with(ending))
}

fn check(root: &Path, path: &Path, faults: &mut Vec<ProseFault>) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    let file = path.strip_prefix(root).unwrap_or(path);
    let is_rust = path.extension().is_some_and(|ending| ending == "rs");
    let mut before = None;
    for (number, line) in text.lines().enumerate() {
        let comment = Comment::of(line).filter(|_| is_rust);
        let opening = comment.and_then(|comment| comment.opening(before));
        before = comment;
        let lower = line.to_lowercase();
        let neighbours = comment.map_or(&[][..], |_| NEIGHBOURS);
        let phrase = PHRASES
            .iter()
            .chain(neighbours)
            .copied()
            .find(|phrase| has_words(&lower, phrase));
        faults.extend(opening.into_iter().chain(phrase).map(|found| ProseFault {
            file: file.to_owned(),
            line: number + 1,
            found,
        }));
    }
    Ok(())
}

/// One line of a comment of a Rust file.
#[derive(Clone, Copy)]
struct Comment<'l> {
    /// Text after the marker.
    text: &'l str,
    /// Whether the line belongs to a doc comment.
    is_doc: bool,
}

impl<'l> Comment<'l> {
    /// Returns the comment on a line; `None` for code and for an empty line of a comment.
    fn of(line: &'l str) -> Option<Self> {
        let line = line.trim_start();
        let doc = line
            .strip_prefix("/// ")
            .or_else(|| line.strip_prefix("//! "));
        let text = doc.or_else(|| line.strip_prefix("// "))?;
        let is_doc = doc.is_some();
        Some(Comment { text, is_doc })
    }

    /// Returns the first fault at the start of the comment or of one of its sentences. `before`
    /// is the comment on the previous line.
    fn opening(self, before: Option<Comment<'_>>) -> Option<&'static str> {
        let before = before.filter(|before| before.is_doc == self.is_doc);
        let first = match before {
            None => first_words(self.text, OPENINGS),
            Some(before) if self.is_doc && before.text.ends_with('.') => {
                first_words(self.text, SENTENCE_OPENINGS)
            }
            Some(_) => None,
        };
        let later = self.text.split(". ").skip(1);
        let mut later = later.filter(|_| self.is_doc);
        first.or_else(|| later.find_map(|text| first_words(text, SENTENCE_OPENINGS)))
    }
}

fn first_words(text: &str, words: &[&'static str]) -> Option<&'static str> {
    words.iter().copied().find(|word| {
        text.strip_prefix(word)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '\''))
    })
}

fn has_words(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + phrase.len()..].chars().next();
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !is_word(before) && !is_word(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_openings_and_whole_phrases_only() {
        assert_eq!(first_words("Those.", OPENINGS), Some("Those"));
        assert_eq!(
            first_words("The same with pages", OPENINGS),
            Some("The same")
        );
        assert_eq!(first_words("Items of a list", OPENINGS), None);
        assert_eq!(first_words("It's", OPENINGS), None);
        assert!(has_words("a session is told more", "is told"));
        assert!(!has_words("this toldx", "is told"));
    }

    /// Openings found in the lines of a comment.
    fn openings(lines: &[&str]) -> Vec<&'static str> {
        let comments: Vec<_> = lines.iter().map(|line| Comment::of(line)).collect();
        let before = std::iter::once(None).chain(comments.iter().copied());
        let pairs = before.zip(&comments);
        pairs
            .filter_map(|(before, comment)| comment.as_ref()?.opening(before))
            .collect()
    }

    #[test]
    fn judges_every_sentence_of_a_doc_comment() {
        assert_eq!(openings(&["/// Frees a page. Those go."]), ["Those"]);
        assert_eq!(openings(&["/// Frees a page.", "/// So it ends."]), ["So"]);
        assert_eq!(openings(&["//! Pages.", "//!", "//! It moves."]), ["It"]);
        // A later sentence may refer to the noun of an earlier one.
        assert!(openings(&["/// Frees a page. It is empty."]).is_empty());
        // A line in the middle of a sentence has no opening.
        assert!(openings(&["/// Returns the page", "/// Those"]).is_empty());
    }

    #[test]
    fn judges_the_start_of_a_plain_comment() {
        assert_eq!(openings(&["    // What fits stays."]), ["What"]);
        assert!(openings(&["// A page that fits. What", "// What"]).is_empty());
        assert!(openings(&["let url = 1; // What"]).is_empty());
        assert_eq!(openings(&["// A page", "/// It moves."]), ["It"]);
    }
}
