//! Tokenizer of a model, read from `tokenizer.json`.

mod chat;
mod decoder;
mod pyjson;
mod shield;
mod strftime;
mod template;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::RawConfig;
use crate::error::ModelError;
use serde_json::Value;
use shield::shielded;
use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
    models::bpe::BPE,
};

pub use chat::{ChatTemplate, Message};
pub use decoder::Decoder;

/// Tokenizer of a model; cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<TokenizerData>,
}

struct TokenizerData {
    path: PathBuf,
    tokenizer: tokenizers::Tokenizer,
    special_ids: HashSet<u32>,
    /// Special tokens by role, such as `bos_token`.
    special_tokens: BTreeMap<String, String>,
    bos: Option<u32>,
    eos: Option<u32>,
    added_tokens: Option<AddedTokens>,
}

/// Tokens that `tokenizer_config.json` adds around a text. If present, these settings replace the
/// rules of `tokenizer.json`.
struct AddedTokens {
    bos: bool,
    eos: bool,
}

/// Roles of special tokens.
const ROLES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

impl Tokenizer {
    /// Reads the tokenizer of a model folder; returns `None` if there is no `tokenizer.json`.
    pub fn read(folder: &Path) -> Result<Option<Self>, ModelError> {
        let path = folder.join("tokenizer.json");
        if !path.is_file() {
            return Ok(None);
        }
        let mut tokenizer = library(&path, || from_file(&path))?;
        // Settings that a training run left in the file must not truncate or pad prompts.
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
        Ok(Some(Tokenizer {
            inner: Arc::new(TokenizerData {
                special_ids: special_ids.map(|(&id, _)| id).collect(),
                added_tokens: added_tokens(&config)?,
                path,
                tokenizer,
                special_tokens,
                bos,
                eos,
            }),
        }))
    }

    /// Encodes a text and adds the special tokens that the model expects around it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let Some(added) = &self.inner.added_tokens else {
            return self.tokens(text, true);
        };
        let mut ids = self.tokens(text, false)?;
        if let Some(bos) = self.inner.bos.filter(|_| added.bos)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids.extend(self.inner.eos.filter(|_| added.eos));
        Ok(ids)
    }

    /// Encodes a text without adding tokens around it. The encoder recognises special tokens in
    /// the text, because chat templates write them as text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        self.tokens(text, false)
    }

    fn tokens(&self, text: &str, specials: bool) -> Result<Vec<u32>, ModelError> {
        let encode = || self.inner.tokenizer.encode_fast(text, specials);
        let encoding = library(&self.inner.path, encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Decodes tokens to text. Ids beyond the vocabulary give no text.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, ModelError> {
        let decode = || self.inner.tokenizer.decode(ids, skip_special);
        library(&self.inner.path, decode)
    }

    /// Returns the token that starts a text.
    pub fn bos(&self) -> Option<u32> {
        self.inner.bos
    }

    /// Returns the token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.inner.eos
    }

    /// Returns whether a token is special: a control token rather than text.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.special_ids.contains(&id)
    }

    /// Returns the special tokens by role, such as `bos_token`, for chat templates.
    pub fn special_tokens(&self) -> &BTreeMap<String, String> {
        &self.inner.special_tokens
    }

    /// Returns the size of the vocabulary, including added tokens.
    pub fn vocab(&self) -> usize {
        self.inner.tokenizer.get_vocab_size(true)
    }

    /// Returns the id of a token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// Returns the spelling of a token in the vocabulary.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.tokenizer.id_to_token(id)
    }
}

/// Tokenizer whose model is known to be byte pair encoding.
type BpeTokenizer = TokenizerImpl<
    BPE,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// Reads `tokenizer.json`. The library reads a model of any type through a tree of JSON values, which
/// takes 50 MB for 50,000 entries. A model that is known to be BPE is read without the tree.
fn from_file(path: &Path) -> tokenizers::Result<tokenizers::Tokenizer> {
    let text = std::fs::read_to_string(path)?;
    if let Ok(tokenizer) = serde_json::from_str::<BpeTokenizer>(&text) {
        return Ok(tokenizer.into());
    }
    Ok(serde_json::from_str(&text)?)
}

/// Calls the tokenizers library. Its errors and its panics become errors that name `path`.
fn library<T>(path: &Path, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, ModelError> {
    match shielded(call) {
        Ok(result) => result.map_err(|error| fault(path, error.as_ref())),
        Err(problem) => Err(ModelError::Tokenizer {
            path: path.to_owned(),
            problem,
        }),
    }
}

/// Returns an error of the tokenizer, on one line.
fn fault(path: &Path, error: &(dyn std::error::Error + Send + Sync)) -> ModelError {
    ModelError::Tokenizer {
        path: path.to_owned(),
        problem: error.to_string().replace('\n', " "),
    }
}

/// Reads `tokenizer_config.json`; a missing file gives an empty configuration.
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

/// Reads the tokens that `tokenizer_config.json` adds around a text.
fn added_tokens(config: &RawConfig) -> Result<Option<AddedTokens>, ModelError> {
    let bos = config.flag("add_bos_token")?;
    let eos = config.flag("add_eos_token")?;
    Ok((bos.is_some() || eos.is_some()).then(|| AddedTokens {
        bos: bos.unwrap_or(false),
        eos: eos.unwrap_or(false),
    }))
}

/// Reads the special tokens by role, from `tokenizer_config.json` and then
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

/// Reads a token, given as a string or as an object with the string in `content`.
fn token(config: &RawConfig, role: &str) -> Result<Option<String>, ModelError> {
    match config.value(role) {
        None => Ok(None),
        Some(Value::String(token)) => Ok(Some(token.clone())),
        Some(Value::Object(object)) => match object.get("content") {
            Some(Value::String(token)) => Ok(Some(token.clone())),
            _ => Err(config.unexpected(role, "an object with 'content'", "another object")),
        },
        Some(other) => Err(config.unexpected(role, "a token, as a string or an object", other)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::{BpeTokenizer, from_file};

    /// Checks that a file gives the tokenizer of the library's own reader. Returns whether the file was
    /// read without a tree of values.
    fn check(content: &Value) -> bool {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content.to_string()).unwrap();
        let expect = tokenizers::Tokenizer::from_file(file.path()).unwrap();
        let found = from_file(file.path()).unwrap();
        assert_eq!(
            found.to_string(false).unwrap(),
            expect.to_string(false).unwrap()
        );
        let text = "Tom had a red boat.";
        let ids = |tokenizer: &tokenizers::Tokenizer| {
            tokenizer.encode(text, true).unwrap().get_ids().to_vec()
        };
        assert_eq!(ids(&found), ids(&expect));
        serde_json::from_str::<BpeTokenizer>(&content.to_string()).is_ok()
    }

    #[test]
    fn reading_without_a_tree_of_values_gives_the_same_tokenizer() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let bytes = std::fs::read(root.join("models/stories-7m/tokenizer.json")).unwrap();
        let mut bpe: Value = serde_json::from_slice(&bytes).unwrap();
        // An added token that the model does not have gets an id behind the vocabulary.
        let mut added = bpe["added_tokens"][0].clone();
        added["id"] = json!(5000);
        added["content"] = json!("<new>");
        bpe["added_tokens"].as_array_mut().unwrap().push(added);
        assert!(check(&bpe));
        let pairs = bpe["model"]["merges"].as_array().unwrap().iter();
        let old = pairs.map(|pair| {
            let word = |at: usize| pair[at].as_str().unwrap();
            json!(format!("{} {}", word(0), word(1)))
        });
        let mut old_merges = bpe.clone();
        old_merges["model"]["merges"] = old.collect();
        assert!(check(&old_merges));
        let mut words = bpe.clone();
        words["model"] = json!({
            "type": "WordLevel", "vocab": { "[UNK]": 0, "Tom": 1, "Ġhad": 2 }, "unk_token": "[UNK]",
        });
        assert!(!check(&words));
        // Files of old releases do not name the type.
        let mut untyped = bpe;
        untyped["model"].as_object_mut().unwrap().remove("type");
        check(&untyped);
    }
}
