//! Steering vectors from prompts, and the effect of edits.

use std::collections::BTreeMap;

use djinn_client::{HookEdit, ModelHandle, TurnOutput};
use djinn_model::Site;
use djinn_vectors::{Steering, VectorRows};

use crate::{
    AnalysisError,
    turns::{greedy, run_all},
};

/// Computes a steering vector: the mean residual after the last token of positive prompts, minus that of
/// negative prompts, after each of these blocks.
pub async fn steering_vector(
    model: &ModelHandle,
    name: &str,
    blocks: &[usize],
    [positive, negative]: [&[String]; 2],
) -> Result<Steering, AnalysisError> {
    let mut sessions = Vec::with_capacity(positive.len() + negative.len());
    for text in positive.iter().chain(negative) {
        let tokens = model.tokenize(text).await?;
        let mut session = model.session().tokens(tokens).max_tokens(0);
        for &block in blocks {
            session = session.capture(format!("{}@-1", Site::ResidPost(block)));
        }
        sessions.push(session);
    }
    let turns = run_all(sessions).await?;
    let (positive, negative) = turns.split_at(positive.len());
    let positive = rows_by_block(blocks, positive)?;
    Ok(Steering::from_means(
        name,
        &positive,
        &rows_by_block(blocks, negative)?,
    )?)
}

fn rows_by_block(blocks: &[usize], turns: &[TurnOutput]) -> Result<VectorRows, AnalysisError> {
    let mut rows = BTreeMap::new();
    for &block in blocks {
        let hook = Site::ResidPost(block).to_string();
        let row = |turn: &TurnOutput| {
            let captured = turn.captured.get(&hook).map(|tensor| tensor.data.clone());
            captured.ok_or_else(|| AnalysisError::NotCaptured(hook.clone()))
        };
        rows.insert(block, turns.iter().map(row).collect::<Result<Vec<_>, _>>()?);
    }
    Ok(rows)
}

/// Effect of edits on a prompt's logits and on the generated text.
#[derive(Clone, Debug)]
pub struct EditEffect {
    /// Norm of the change of the prompt's logits, as a share of their norm.
    pub logit_share: f64,
    /// Number of generated tokens that differ.
    pub tokens_changed: usize,
    /// Turn without edits.
    pub plain: TurnOutput,
    /// Turn with edits.
    pub changed: TurnOutput,
}

/// Runs a prompt greedily without and with edits, and compares.
pub async fn measure_edits(
    model: &ModelHandle,
    tokens: Vec<u32>,
    edits: Vec<HookEdit>,
    generate: u64,
) -> Result<EditEffect, AnalysisError> {
    let logits = Site::Logits.to_string();
    let plain = model
        .session()
        .tokens(tokens)
        .max_tokens(generate)
        .sampling(greedy())
        .capture(&logits)
        .capture_positions("prompt");
    let changed = edits
        .into_iter()
        .fold(plain.clone(), djinn_client::Create::edit);
    let turns = run_all([plain, changed]).await?;
    let [plain, changed] = <[TurnOutput; 2]>::try_from(turns).expect("two sessions ran");
    let captured = |turn: &TurnOutput| {
        let tensor = turn.captured.get(&logits).map(|tensor| tensor.data.clone());
        tensor.ok_or_else(|| AnalysisError::NotCaptured(logits.clone()))
    };
    let logit_share = relative_change(&captured(&plain)?, &captured(&changed)?);
    let pairs = plain.tokens.iter().zip(&changed.tokens);
    let tokens_changed =
        pairs.filter(|(a, b)| a != b).count() + plain.tokens.len().abs_diff(changed.tokens.len());
    Ok(EditEffect {
        logit_share,
        tokens_changed,
        plain,
        changed,
    })
}

/// Norm of the change, as a share of the norm before: `‖after − before‖ / ‖before‖`.
fn relative_change(before: &[f32], after: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let pairs = before.iter().zip(after);
    let off: f64 = pairs
        .map(|(&b, &a)| square(f64::from(a) - f64::from(b)))
        .sum();
    let all: f64 = before.iter().map(|&b| square(f64::from(b))).sum();
    (off / all).sqrt()
}

#[cfg(test)]
mod tests {
    use super::relative_change;

    #[test]
    fn a_change_is_relative_to_the_norm_before() {
        assert_eq!(relative_change(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert_eq!(relative_change(&[3.0, 4.0], &[0.0, 0.0]), 1.0);
    }
}
