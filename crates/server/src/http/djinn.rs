//! Djinn's own fields: sessions, steering, captures.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use djinn_engine::{Change, EditSpec, Operand, Tensor};
use djinn_model::Site;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::{
    ServeError,
    ask::{self, MOST},
};

/// What only Djinn does; `extra_body={"djinn": {…}}` in OpenAI's Python client.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DjinnFields {
    /// Goes on with this session: a prompt is what it is told, and messages are those it had and new
    /// ones.
    pub session: Option<String>,
    /// Keeps the session for more; its name comes with the answer.
    pub keep: bool,
    /// Seconds it stays while nobody uses it.
    pub lease_s: Option<f64>,
    /// Changes on the way, as on the command line: `blocks.4.hook_resid_post:scale=0.9`.
    pub edits: Vec<String>,
    /// Directions that are added behind blocks.
    pub steer: Vec<Steer>,
    /// Hooks to read, `HOOK[PART][@POSITIONS][|REDUCTION]`; they come with the answer, as base64.
    pub captures: Vec<String>,
}

/// A direction behind a block.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Steer {
    /// Which block.
    pub layer: usize,
    /// As many numbers as the residual is wide.
    pub vector: Vec<f32>,
    /// How often it is added; once when not said.
    pub factor: Option<f32>,
}

impl DjinnFields {
    /// All that is changed on the way.
    pub fn changes(&self) -> Result<Vec<EditSpec>, ServeError> {
        if self.edits.len() + self.steer.len() > MOST {
            return Err(ServeError::TooLarge(format!("{MOST} edits at most")));
        }
        let mut edits: Vec<EditSpec> = self
            .edits
            .iter()
            .map(|text| ask::edit_text(text))
            .collect::<Result<_, _>>()?;
        for steer in &self.steer {
            let operand = Operand::Tensor(Arc::new(Tensor {
                shape: vec![steer.vector.len()],
                data: steer.vector.clone(),
            }));
            let factor = steer.factor.unwrap_or(1.0);
            edits.push(EditSpec::at(
                Site::ResidPost(steer.layer),
                Change::Add { operand, factor },
            ));
        }
        Ok(edits)
    }
}

/// What came of them, with the answer.
pub fn told(session: Option<String>, captured: &BTreeMap<String, Tensor>) -> Option<Value> {
    if session.is_none() && captured.is_empty() {
        return None;
    }
    let mut told = Map::new();
    if let Some(session) = session {
        told.insert("session".to_owned(), session.into());
    }
    if !captured.is_empty() {
        let captures: Map<String, Value> = captured
            .iter()
            .map(|(name, tensor)| (name.clone(), as_json(tensor)))
            .collect();
        told.insert("captures".to_owned(), captures.into());
    }
    Some(told.into())
}

fn as_json(tensor: &Tensor) -> Value {
    let bytes: Vec<u8> = tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect();
    json!({ "dtype": "f32", "shape": tensor.shape, "base64": STANDARD.encode(bytes) })
}
