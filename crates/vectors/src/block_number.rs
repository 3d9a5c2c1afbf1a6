//! Block numbers in the names of tensors.

/// Parses a block number. Every number has exactly one spelling: `01` or `+1` give `None`.
pub(crate) fn parse_block(text: &str) -> Option<usize> {
    let number: usize = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::parse_block;

    #[test]
    fn block_numbers_have_one_spelling() {
        assert_eq!((parse_block("0"), parse_block("10")), (Some(0), Some(10)));
        for text in ["", "01", "+1", "-1", " 1", "1x", "99999999999999999999"] {
            assert_eq!(parse_block(text), None, "{text}");
        }
    }
}
