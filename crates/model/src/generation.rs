//! `generation_config.json`: how a model wants to be sampled.

use std::path::Path;

use crate::{ModelError, RawConfig, Text};

/// Settings for generation. Where the file is silent nothing is changed: greedy, and
/// once tokens are drawn, from the model's own distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Tokens that end a text; empty where none does.
    pub eos: Vec<u32>,
    /// Whether tokens are drawn; otherwise the likeliest is taken.
    pub do_sample: bool,
    /// Logits are divided by this.
    pub temperature: f32,
    /// Only this many of the likeliest tokens are drawn from; 0 is no limit.
    pub top_k: usize,
    /// Only the likeliest tokens that make up this much probability are drawn from.
    pub top_p: f32,
    /// Only tokens at least this likely, relative to the likeliest.
    pub min_p: f32,
    /// Logits of tokens already there are divided by this.
    pub repetition_penalty: f32,
    /// How many tokens to make.
    pub max_new_tokens: Option<usize>,
    /// How long prompt and new tokens may get together.
    pub max_length: Option<usize>,
}

impl Default for Generation {
    fn default() -> Self {
        Generation {
            eos: Vec::new(),
            do_sample: false,
            temperature: 1.0,
            // transformers would keep 50; here what nobody asked for is not done.
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            max_new_tokens: None,
            max_length: None,
        }
    }
}

impl Generation {
    /// Reads a folder's settings. Ends of text not named there are `config.json`'s,
    /// then the tokenizer's.
    pub fn read(
        folder: &Path,
        config: &RawConfig,
        text: Option<&Text>,
    ) -> Result<Self, ModelError> {
        let path = folder.join("generation_config.json");
        let file = if path.is_file() {
            RawConfig::read(&path)?
        } else {
            RawConfig::default()
        };
        let mut generation = Self::of(&file)?;
        generation.eos = match file.ids("eos_token_id")? {
            Some(ids) => ids,
            None => config
                .ids("eos_token_id")?
                .or_else(|| Some(vec![text?.eos()?]))
                .unwrap_or_default(),
        };
        Ok(generation)
    }

    fn of(file: &RawConfig) -> Result<Self, ModelError> {
        let default = Generation::default();
        let length = |key: &str| file.size(key, 1..=usize::MAX);
        Ok(Generation {
            eos: Vec::new(),
            do_sample: file.flag("do_sample")?.unwrap_or(default.do_sample),
            temperature: within(file, "temperature", 100.0, default.temperature)?,
            top_k: file.size("top_k", 0..=usize::MAX)?.unwrap_or(default.top_k),
            top_p: match within(file, "top_p", 1.0, default.top_p)? {
                0.0 => return Err(file.error("top_p", "expected more than 0, found 0")),
                top_p => top_p,
            },
            min_p: within(file, "min_p", 1.0, default.min_p)?,
            repetition_penalty: file
                .positive("repetition_penalty")?
                .map_or(default.repetition_penalty, |penalty| penalty as f32),
            max_new_tokens: length("max_new_tokens")?,
            max_length: length("max_length")?,
        })
    }
}

/// A number from 0 to `max`.
fn within(file: &RawConfig, key: &str, max: f64, default: f32) -> Result<f32, ModelError> {
    match file.number(key)? {
        None => Ok(default),
        Some(number) if (0.0..=max).contains(&number) => Ok(number as f32),
        Some(number) => Err(file.error(key, format!("expected 0 to {max}, found {number}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Generation;
    use crate::RawConfig;

    fn read(generation: Option<&str>, config: &str) -> Generation {
        let dir = tempfile::tempdir().unwrap();
        if let Some(text) = generation {
            std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
        }
        let config = RawConfig::parse(Path::new("config.json"), config.as_bytes()).unwrap();
        Generation::read(dir.path(), &config, None).unwrap()
    }

    #[test]
    fn missing_settings_change_nothing() {
        assert_eq!(read(None, "{}"), Generation::default());
        assert_eq!(
            read(Some(r#"{"transformers_version": "5", "x": []}"#), "{}"),
            Generation::default()
        );
        assert!(!Generation::default().do_sample);
    }

    #[test]
    fn settings_are_taken() {
        let file = r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.9,
            "min_p": 0.05, "repetition_penalty": 1.1, "max_new_tokens": 7, "max_length": 4096,
            "eos_token_id": [5, 6]}"#;
        let expect = Generation {
            eos: vec![5, 6],
            do_sample: true,
            temperature: 0.6,
            top_k: 20,
            top_p: 0.9,
            min_p: 0.05,
            repetition_penalty: 1.1,
            max_new_tokens: Some(7),
            max_length: Some(4096),
        };
        assert_eq!(read(Some(file), r#"{"eos_token_id": 2}"#), expect);
    }

    #[test]
    fn ends_of_text_fall_back() {
        let check = |generation: Option<&str>, config: &str, expect: &[u32]| {
            assert_eq!(read(generation, config).eos, expect);
        };
        check(
            Some(r#"{"eos_token_id": 3}"#),
            r#"{"eos_token_id": 2}"#,
            &[3],
        );
        check(
            Some(r#"{"eos_token_id": null}"#),
            r#"{"eos_token_id": 2}"#,
            &[2],
        );
        check(None, r#"{"eos_token_id": [2, 4]}"#, &[2, 4]);
        check(None, "{}", &[]);
    }
}
