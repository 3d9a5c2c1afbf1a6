//! Phrases that the language guide of CONTRIBUTING.md rules out.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// First words of a doc comment that only a neighbour can explain.
const OPENINGS: &[&str] = &[
    "It", "Its", "Those", "That", "They", "Them", "Whose", "Who", "Which", "What", "Where", "So",
    "The same",
];

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
            // Generated reports, golden data and installed packages are not prose of ours.
            let skipped = ["target", "tidy", "report", "tests", ".venv", "__pycache__"];
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
    let mut in_comment = false;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let doc = trimmed
            .strip_prefix("/// ")
            .or_else(|| trimmed.strip_prefix("//! "));
        let opening = doc
            .filter(|_| !in_comment)
            .and_then(|doc| first_words(doc, OPENINGS));
        in_comment = doc.is_some() || trimmed.starts_with("///") && trimmed.len() > 3;
        let lower = line.to_lowercase();
        let phrase = PHRASES
            .iter()
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
}
