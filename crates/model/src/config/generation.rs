//! `generation_config.json`: the sampling settings that a model recommends.

use std::path::Path;

use super::raw::RawConfig;
use crate::error::ModelError;

/// Settings for generation. Without a file, decoding is greedy, and sampling draws from the
/// model's unchanged distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Tokens that end a text; empty if no token does.
    pub eos: Vec<u32>,
    /// Whether tokens are sampled. Greedy decoding, which takes the most likely token, is the
    /// alternative.
    pub do_sample: bool,
    /// Divisor of the logits.
    pub temperature: f32,
    /// Number of most likely tokens to sample from; 0 means no limit.
    pub top_k: usize,
    /// Total probability of the most likely tokens to sample from; 1 means no limit.
    pub top_p: f32,
    /// Least probability of a token to sample, relative to the most likely token.
    pub min_p: f32,
    /// Divisor of the logits of tokens that the text already contains.
    pub repetition_penalty: f32,
    /// Largest number of tokens to generate.
    pub max_new_tokens: Option<usize>,
    /// Largest length of prompt and generated tokens together.
    pub max_length: Option<usize>,
}

impl Default for Generation {
    fn default() -> Self {
        Generation {
            eos: Vec::new(),
            do_sample: false,
            temperature: 1.0,
            // transformers defaults to 50. Djinn limits nothing by default.
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
    /// Reads the settings of a model folder. Tokens that end a text come from
    /// `generation_config.json`, otherwise from `config.json`, otherwise from the tokenizer
    /// (`eos`).
    pub fn read(folder: &Path, config: &RawConfig, eos: Option<u32>) -> Result<Self, ModelError> {
        let path = folder.join("generation_config.json");
        let file = if path.is_file() {
            RawConfig::read(&path)?
        } else {
            RawConfig::default()
        };
        let mut generation = Self::from_file(&file)?;
        generation.eos = match file.ids("eos_token_id")? {
            Some(ids) => ids,
            None => config
                .ids("eos_token_id")?
                .or_else(|| Some(vec![eos?]))
                .unwrap_or_default(),
        };
        Ok(generation)
    }

    fn from_file(file: &RawConfig) -> Result<Self, ModelError> {
        let default = Generation::default();
        let length = |key: &str| file.size(key, 1..=usize::MAX);
        Ok(Generation {
            eos: Vec::new(),
            do_sample: file.flag("do_sample")?.unwrap_or(default.do_sample),
            temperature: within(file, "temperature", 100.0, default.temperature)?,
            top_k: file.size("top_k", 0..=usize::MAX)?.unwrap_or(default.top_k),
            top_p: match within(file, "top_p", 1.0, default.top_p)? {
                0.0 => return Err(file.unexpected("top_p", "a number above 0", 0)),
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

/// Reads a number from 0 to `max`.
fn within(file: &RawConfig, key: &str, max: f64, default: f32) -> Result<f32, ModelError> {
    match file.number(key)? {
        None => Ok(default),
        Some(number) if (0.0..=max).contains(&number) => Ok(number as f32),
        Some(number) => Err(file.unexpected(key, format!("0 to {max}"), number)),
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
    fn missing_settings_are_defaults() {
        assert_eq!(read(None, "{}"), Generation::default());
        assert_eq!(
            read(Some(r#"{"transformers_version": "5", "x": []}"#), "{}"),
            Generation::default()
        );
        assert!(!Generation::default().do_sample);
    }

    #[test]
    fn settings_are_read() {
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
    fn eos_falls_back_to_the_configuration() {
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
