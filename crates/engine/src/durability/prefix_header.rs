//! Header of an archive of cached pages: where the pages come from, and what each contains.

use std::collections::HashMap;

use djinn_kv::{IndexedPage, PageContent};
use serde::{Deserialize, Serialize};

/// Everything that the bytes of cached pages and their scopes depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrefixOrigin {
    /// Digest of the model.
    pub model: String,
    /// Element type of keys and values.
    pub kv_dtype: String,
    /// Number of tokens of a page.
    pub page_tokens: usize,
    /// Times of the last changes of the model's files.
    pub files: Vec<String>,
    /// Arithmetic of the device that computed the pages.
    pub device: String,
    /// Digest of the program.
    pub program: String,
    /// Whether pages of all owners have one scope.
    pub all_owners: bool,
}

/// Header of the archive: its origin, and its pages in order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PrefixHeader {
    pub origin: PrefixOrigin,
    scopes: Vec<String>,
    pages: Vec<SavedPage>,
}

/// One page of the archive.
#[derive(Debug, Serialize, Deserialize)]
struct SavedPage {
    /// Number of the page before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<usize>,
    /// Number of the scope.
    scope: usize,
    tokens: Vec<u32>,
    /// Indices of the tokens that do not belong to a prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    generated: Vec<usize>,
}

impl PrefixOrigin {
    /// First difference that keeps pages from being used, in words.
    pub fn difference(&self, now: &PrefixOrigin) -> Option<&'static str> {
        let differences = [
            (self.model != now.model, "it belongs to another model"),
            (self.files != now.files, "files of the model have changed"),
            (
                self.kv_dtype != now.kv_dtype,
                "its keys and values have another type",
            ),
            (
                self.page_tokens != now.page_tokens,
                "its pages have another size",
            ),
            (
                self.device != now.device,
                "another device, driver or library computed it",
            ),
            (
                self.program != now.program,
                "another build of djinn wrote it",
            ),
            (
                self.all_owners != now.all_owners,
                "--share-prefixes has changed",
            ),
        ];
        let found = differences.into_iter().find(|(differs, _)| *differs);
        found.map(|(_, reason)| reason)
    }
}

impl PrefixHeader {
    /// Header of these pages.
    pub fn new(origin: PrefixOrigin, pages: &[IndexedPage]) -> Self {
        let (mut scopes, mut numbers) = (Vec::new(), HashMap::new());
        let pages = pages.iter().map(|page| {
            let scope = page.content.scope();
            let number = *numbers.entry(scope).or_insert_with(|| {
                scopes.push(scope.to_owned());
                scopes.len() - 1
            });
            let tokens = page.content.tokens();
            let generated = tokens.clone().enumerate();
            let generated = generated.filter(|(_, (_, is_prompt))| !is_prompt);
            SavedPage {
                previous: page.previous,
                scope: number,
                generated: generated.map(|(at, _)| at).collect(),
                tokens: tokens.map(|(token, _)| token).collect(),
            }
        });
        let pages = pages.collect();
        PrefixHeader {
            origin,
            scopes,
            pages,
        }
    }

    /// Decodes the header of an archive with this number of pages, and checks every number in it. An archive
    /// may have fewer pages than its header, because the program had too little time to write all.
    pub fn parse(bytes: &[u8], pages: usize) -> Result<Self, &'static str> {
        let mut header: PrefixHeader =
            serde_json::from_slice(bytes).map_err(|_| "its list of pages cannot be read")?;
        let size = header.origin.page_tokens;
        let is_valid = |(number, page): (usize, &SavedPage)| {
            page.previous.is_none_or(|previous| previous < number)
                && page.scope < header.scopes.len()
                && page.tokens.len() == size
                && page.generated.iter().all(|&at| at < size)
        };
        let is_complete = pages <= header.pages.len();
        if !is_complete || !header.pages.iter().enumerate().all(is_valid) {
            return Err("its list of pages is not consistent");
        }
        header.pages.truncate(pages);
        Ok(header)
    }

    /// Contents of the pages, each with the number of the page before it.
    pub fn contents(&self) -> impl Iterator<Item = (Option<usize>, PageContent)> {
        self.pages.iter().map(|page| {
            let is_prompt = |at: usize| !page.generated.contains(&at);
            let tokens = page.tokens.iter().enumerate();
            let tokens = tokens.map(|(at, &token)| (token, is_prompt(at)));
            (
                page.previous,
                PageContent::new(&self.scopes[page.scope], tokens),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{PrefixHeader, PrefixOrigin};

    fn header(pages: &serde_json::Value) -> Vec<u8> {
        let origin = PrefixOrigin {
            model: "v2-0".to_owned(),
            kv_dtype: "f16".to_owned(),
            files: Vec::new(),
            page_tokens: 2,
            device: "cpu".to_owned(),
            program: "0".to_owned(),
            all_owners: false,
        };
        let header = json!({ "origin": origin, "scopes": ["ada"], "pages": pages });
        serde_json::to_vec(&header).unwrap()
    }

    #[test]
    fn a_header_with_numbers_out_of_range_is_refused() {
        let good = json!([
            { "scope": 0, "tokens": [1, 2] },
            { "previous": 0, "scope": 0, "tokens": [3, 4], "generated": [1] },
        ]);
        assert!(PrefixHeader::parse(&header(&good), 2).is_ok());
        let cut = PrefixHeader::parse(&header(&good), 1).unwrap();
        assert_eq!(cut.contents().count(), 1);
        assert!(PrefixHeader::parse(&header(&good), 3).is_err(), "too many");
        let bad = [
            json!([{ "previous": 0, "scope": 0, "tokens": [1, 2] }]),
            json!([{ "scope": 1, "tokens": [1, 2] }]),
            json!([{ "scope": 0, "tokens": [1, 2, 3] }]),
            json!([{ "scope": 0, "tokens": [1, 2], "generated": [2] }]),
            json!([{ "tokens": [1, 2] }]),
        ];
        for pages in bad {
            assert!(PrefixHeader::parse(&header(&pages), 1).is_err(), "{pages}");
        }
    }
}
