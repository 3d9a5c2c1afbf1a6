//! Logit lens: most likely next tokens after every block.

use std::collections::{BTreeMap, BTreeSet};

use djinn_client::{ModelHandle, TensorData, v1};
use djinn_model::Site;

use crate::{AnalysisError, turns::check_finished};

/// Capture of the `top` most likely tokens after every block.
pub fn lens_capture(top: usize) -> String {
    format!("blocks.*.hook_resid_post|lens{top}")
}

/// A token and its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenPrediction {
    /// Id of the token.
    pub token: u32,
    /// Probability of the token.
    pub probability: f64,
}

/// Most likely next tokens after every block and position.
#[derive(Clone, Debug)]
pub struct Lens {
    /// Name of the model.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Predictions by block and position, the most likely first.
    pub predictions: Vec<Vec<Vec<TokenPrediction>>>,
    texts: BTreeMap<u32, String>,
}

impl Lens {
    /// Runs tokens through a model and reads the lens after every block.
    pub async fn read(
        model: &ModelHandle,
        info: &v1::Model,
        prompt: Vec<u32>,
        top: usize,
    ) -> Result<Self, AnalysisError> {
        let session = model.session().tokens(prompt.clone()).max_tokens(0);
        let events = session.capture(lens_capture(top)).open().await?;
        let turn = events.collect().await?;
        check_finished(&turn)?;
        let block = |block| predictions_of_block(block, &turn.captured);
        let predictions: Vec<Vec<Vec<TokenPrediction>>> = (0..turn.captured.len())
            .map(block)
            .collect::<Result<_, _>>()?;
        let predicted = predictions.iter().flatten().flatten();
        let predicted = predicted.map(|prediction| prediction.token);
        let tokens: BTreeSet<u32> = prompt.iter().copied().chain(predicted).collect();
        let tokens: Vec<u32> = tokens.into_iter().collect();
        let texts = token_texts(model, info.has_text, &tokens).await?;
        Ok(Lens {
            model: info.name.clone(),
            prompt,
            predictions,
            texts: tokens.into_iter().zip(texts).collect(),
        })
    }

    /// Text of a token of the prompt or of a prediction.
    pub fn text(&self, token: u32) -> &str {
        self.texts.get(&token).map_or("", String::as_str)
    }
}

fn predictions_of_block(
    block: usize,
    captured: &BTreeMap<String, TensorData>,
) -> Result<Vec<Vec<TokenPrediction>>, AnalysisError> {
    let hook = Site::ResidPost(block).to_string();
    let tensor = captured.get(&hook);
    let tensor = tensor.filter(|tensor| tensor.shape.len() == 3);
    let tensor = tensor.ok_or(AnalysisError::NotCaptured(hook))?;
    let width = tensor.shape[1] * tensor.shape[2];
    Ok(tensor.data.chunks_exact(width).map(predictions).collect())
}

/// Predictions of a position, the most likely first.
fn predictions(row: &[f32]) -> Vec<TokenPrediction> {
    let (tokens, probabilities) = row.split_at(row.len() / 2);
    let pairs = tokens.iter().zip(probabilities);
    let prediction = |(token, probability): (&f32, &f32)| TokenPrediction {
        token: *token as u32,
        probability: f64::from(*probability),
    };
    pairs.map(prediction).collect()
}

/// Texts of tokens on one line each, or their ids if the model has no tokenizer.
pub async fn token_texts(
    model: &ModelHandle,
    has_text: bool,
    tokens: &[u32],
) -> Result<Vec<String>, AnalysisError> {
    if !has_text {
        return Ok(tokens.iter().map(u32::to_string).collect());
    }
    let pieces = model.pieces(tokens).await?;
    Ok(pieces.iter().map(|piece| on_one_line(piece)).collect())
}

/// Text of a token on one line, with its space.
fn on_one_line(text: &str) -> String {
    text.replace(['\u{2581}', '\u{120}'], " ")
        .replace(['\u{10a}', '\n'], "⏎")
}

#[cfg(test)]
mod tests {
    use super::{TokenPrediction, on_one_line, predictions};

    #[test]
    fn a_row_has_tokens_then_probabilities() {
        let expected = [(7, 0.5), (3, 0.25)]
            .map(|(token, probability)| TokenPrediction { token, probability });
        assert_eq!(predictions(&[7.0, 3.0, 0.5, 0.25]), expected);
    }

    #[test]
    fn a_token_stays_on_one_line() {
        assert_eq!(on_one_line("\u{120}red\n"), " red⏎");
    }
}
