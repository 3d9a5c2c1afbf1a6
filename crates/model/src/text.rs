//! Text to tokens and back, through `tokenizer.json`.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tokenizers::Tokenizer;

use crate::{ModelError, RawConfig};

/// A tokenizer; cheap to clone.
#[derive(Clone)]
pub struct Text {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    tokenizer: Tokenizer,
    special_ids: HashSet<u32>,
    /// By role: `bos_token`, `eos_token`.
    special_tokens: BTreeMap<String, String>,
    bos: Option<u32>,
    eos: Option<u32>,
    ends: Option<Ends>,
}

/// Which tokens `tokenizer_config.json` wants around a text. Where it says so, it
/// replaces what `tokenizer.json` would do.
struct Ends {
    bos: bool,
    eos: bool,
}

const ROLES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

impl Text {
    /// Reads a folder's tokenizer; `None` where there is no `tokenizer.json`.
    pub fn read(folder: &Path) -> Result<Option<Self>, ModelError> {
        let path = folder.join("tokenizer.json");
        if !path.is_file() {
            return Ok(None);
        }
        let mut tokenizer =
            Tokenizer::from_file(&path).map_err(|error| fault(&path, error.as_ref()))?;
        // What a training run left in the file must not cut or pad prompts.
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|error| fault(&path, error.as_ref()))?;
        let config = tokenizer_config(folder)?;
        let special_tokens = special_tokens(folder, &config)?;
        let id = |role: &str| tokenizer.token_to_id(special_tokens.get(role)?);
        let (bos, eos) = (id("bos_token"), id("eos_token"));
        let added = tokenizer.get_added_tokens_decoder();
        let special_ids = added.iter().filter(|(_, token)| token.special);
        Ok(Some(Text {
            inner: Arc::new(Inner {
                special_ids: special_ids.map(|(&id, _)| id).collect(),
                ends: ends(&config)?,
                path,
                tokenizer,
                special_tokens,
                bos,
                eos,
            }),
        }))
    }

    /// Tokens of a text, with the special ones around it that the model expects.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let Some(ends) = &self.inner.ends else {
            return self.tokens(text, true);
        };
        let mut ids = self.tokens(text, false)?;
        if let Some(bos) = self.inner.bos.filter(|_| ends.bos)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids.extend(self.inner.eos.filter(|_| ends.eos));
        Ok(ids)
    }

    /// Tokens of a text and nothing around them. Special tokens that the text
    /// spells out are still recognised: chat templates do that.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        self.tokens(text, false)
    }

    fn tokens(&self, text: &str, specials: bool) -> Result<Vec<u32>, ModelError> {
        let encoding = self.inner.tokenizer.encode_fast(text, specials);
        match encoding {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(fault(&self.inner.path, error.as_ref())),
        }
    }

    /// The text of tokens. Ids beyond the vocabulary have none.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, ModelError> {
        let text = self.inner.tokenizer.decode(ids, skip_special);
        text.map_err(|error| fault(&self.inner.path, error.as_ref()))
    }

    /// Decodes tokens one at a time, as they come after `context`: a prompt, or
    /// nothing.
    pub fn decoder(&self, context: &[u32], skip_special: bool) -> Decoder {
        Decoder::new(self.clone(), context, skip_special)
    }

    /// The token that starts a text.
    pub fn bos(&self) -> Option<u32> {
        self.inner.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.inner.eos
    }

    /// Whether a token is a mark rather than text.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.special_ids.contains(&id)
    }

    /// Special tokens by role, as chat templates name them: `bos_token`.
    pub fn special_tokens(&self) -> &BTreeMap<String, String> {
        &self.inner.special_tokens
    }

    /// Tokens in the vocabulary, added ones included.
    pub fn vocab(&self) -> usize {
        self.inner.tokenizer.get_vocab_size(true)
    }

    /// The id of a token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// A token as the vocabulary spells it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.tokenizer.id_to_token(id)
    }
}

/// An error of the tokenizer's, on one line.
fn fault(path: &Path, error: &(dyn std::error::Error + Send + Sync)) -> ModelError {
    ModelError::Tokenizer {
        path: path.to_owned(),
        problem: error.to_string().replace('\n', " "),
    }
}

/// `tokenizer_config.json`, empty where there is none.
pub(crate) fn tokenizer_config(folder: &Path) -> Result<RawConfig, ModelError> {
    optional(&folder.join("tokenizer_config.json"))
}

fn optional(path: &Path) -> Result<RawConfig, ModelError> {
    if path.is_file() {
        RawConfig::read(path)
    } else {
        Ok(RawConfig::default())
    }
}

fn ends(config: &RawConfig) -> Result<Option<Ends>, ModelError> {
    let bos = config.flag("add_bos_token")?;
    let eos = config.flag("add_eos_token")?;
    Ok((bos.is_some() || eos.is_some()).then(|| Ends {
        bos: bos.unwrap_or(false),
        eos: eos.unwrap_or(false),
    }))
}

/// Special tokens by role, from `tokenizer_config.json`, then
/// `special_tokens_map.json`.
fn special_tokens(
    folder: &Path,
    config: &RawConfig,
) -> Result<BTreeMap<String, String>, ModelError> {
    let map = optional(&folder.join("special_tokens_map.json"))?;
    let mut tokens = BTreeMap::new();
    for role in ROLES {
        for source in [config, &map] {
            if let Some(token) = token(source, role)?
                && !tokens.contains_key(role)
            {
                tokens.insert(role.to_owned(), token);
            }
        }
    }
    Ok(tokens)
}

/// A token given as a string, or as an object with its text in `content`.
fn token(config: &RawConfig, role: &str) -> Result<Option<String>, ModelError> {
    match config.value(role) {
        None => Ok(None),
        Some(Value::String(token)) => Ok(Some(token.clone())),
        Some(Value::Object(object)) => match object.get("content") {
            Some(Value::String(token)) => Ok(Some(token.clone())),
            _ => Err(config.error(role, "expected an object with 'content'")),
        },
        Some(_) => Err(config.error(role, "expected a token, as a string or an object")),
    }
}

/// Tokens of a window are decoded together, since what a token reads as depends on
/// its neighbours: this many of a prompt are enough.
const CONTEXT_TOKENS: usize = 8;
/// Pending tokens after which bytes that make no character are let through as
/// U+FFFD. A character takes four bytes, hence at most four tokens.
const PENDING_TOKENS_MAX: usize = 8;

/// Turns tokens into text as they come. What it has given out is always the
/// beginning of what [`Text::decode`] would give for all of them.
pub struct Decoder {
    text: Text,
    skip_special: bool,
    /// The last tokens given out, then those that wait for the rest of a character.
    window: Vec<u32>,
    /// How many of the window were given out.
    done: usize,
    /// What those read as.
    prefix: String,
}

impl Decoder {
    fn new(text: Text, context: &[u32], skip_special: bool) -> Self {
        let mut decoder = Decoder {
            text,
            skip_special,
            window: Vec::new(),
            done: 0,
            prefix: String::new(),
        };
        let last = context.iter().copied().filter(|&id| !decoder.skips(id));
        decoder.window = last.rev().take(CONTEXT_TOKENS).collect();
        decoder.window.reverse();
        decoder.settle();
        // Cut in the middle of a character, bytes spoil all that follow them.
        while decoder.prefix.starts_with(char::REPLACEMENT_CHARACTER) {
            decoder.window.remove(0);
            decoder.settle();
        }
        decoder
    }

    fn skips(&self, id: u32) -> bool {
        self.skip_special && self.text.is_special(id)
    }

    /// Decoding fails only where a tokenizer's own decoder is broken; there is no
    /// text then.
    fn read(&self, ids: &[u32]) -> String {
        self.text.decode(ids, false).unwrap_or_default()
    }

    /// Takes a token; gives the text that it completes, if any.
    pub fn push(&mut self, id: u32) -> Option<String> {
        if self.skips(id) {
            return None;
        }
        self.window.push(id);
        let text = self.read(&self.window);
        let pending = self.window.len() - self.done;
        let broken = text.ends_with(char::REPLACEMENT_CHARACTER);
        if broken && pending < PENDING_TOKENS_MAX {
            return None;
        }
        self.advance(&text)
    }

    /// Gives what is left: half a character becomes U+FFFD.
    pub fn finish(&mut self) -> Option<String> {
        let text = self.read(&self.window);
        self.advance(&text)
    }

    /// Gives out what `text`, the window's, has beyond the prefix.
    fn advance(&mut self, text: &str) -> Option<String> {
        let new = match text.strip_prefix(self.prefix.as_str()) {
            Some(new) => new.to_owned(),
            // Only where broken bytes were let through: they may read otherwise now.
            None => self.read(&self.window[self.done..]),
        };
        if new.is_empty() {
            return None;
        }
        self.window.drain(..self.done);
        self.settle();
        Some(new)
    }

    /// Takes the whole window for given out.
    fn settle(&mut self) {
        self.prefix = self.read(&self.window);
        self.done = self.window.len();
    }
}
