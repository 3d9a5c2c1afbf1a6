//! Inputs that consist of several files: sections between lines of `---`.

/// Line that separates the sections of an input.
const SEPARATOR: &[u8] = b"\n---\n";

/// Returns the section of this number; a missing section is empty.
pub fn section(data: &[u8], number: usize) -> &[u8] {
    let mut rest = data;
    for _ in 0..number {
        match find(rest) {
            Some(at) => rest = &rest[at + SEPARATOR.len()..],
            None => return &[],
        }
    }
    find(rest).map_or(rest, |at| &rest[..at])
}

fn find(data: &[u8]) -> Option<usize> {
    data.windows(SEPARATOR.len())
        .position(|window| window == SEPARATOR)
}

/// Splits an input into its first line, as text, and the rest.
pub fn first_line(data: &[u8]) -> (String, &[u8]) {
    let end = data.iter().position(|&byte| byte == b'\n');
    let end = end.unwrap_or(data.len());
    let rest = data.get(end + 1..).unwrap_or_default();
    (String::from_utf8_lossy(&data[..end]).into_owned(), rest)
}

#[cfg(test)]
mod tests {
    use super::{first_line, section};

    #[test]
    fn sections_are_split() {
        let data = b"a\n---\n\n---\nc";
        let all: Vec<&[u8]> = (0..4).map(|number| section(data, number)).collect();
        assert_eq!(all, [&b"a"[..], b"", b"c", b""]);
    }

    #[test]
    fn the_first_line_is_split_off() {
        assert_eq!(first_line(b"/x\n{}"), ("/x".to_owned(), &b"{}"[..]));
        assert_eq!(first_line(b"/x"), ("/x".to_owned(), &b""[..]));
    }
}
