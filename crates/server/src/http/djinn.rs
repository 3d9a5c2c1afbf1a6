//! Djinn's additional fields: sessions, edits, steering, captures.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use djinn_engine::{Change, EditSpec, Operand, Tensor};
use djinn_model::Site;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::{
    ServeError,
    request::{self, EDITS_MAX},
};

/// Fields that only Djinn has: `extra_body={"djinn": {…}}` in OpenAI's Python client.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DjinnFields {
    /// Session to continue. A completion's prompt is appended to the session; a chat's messages are all
    /// messages so far, of which the new ones are appended.
    pub session: Option<String>,
    /// Whether to keep the session for more turns. The answer contains its name.
    pub keep: bool,
    /// Seconds that an unused session stays open. Default: the server's lease.
    pub lease_s: Option<f64>,
    /// Edits in the syntax of the command line, for example `blocks.4.hook_resid_post:scale=0.9`.
    pub edits: Vec<String>,
    /// Steering vectors that are added to the residual stream.
    pub steer: Vec<SteeringVector>,
    /// Hooks to capture, `HOOK[PART][@POSITIONS][|REDUCTION]`. The answer contains them as base64.
    pub captures: Vec<String>,
}

/// A vector that is added to the residual stream after a block.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SteeringVector {
    /// Index of the block.
    pub layer: usize,
    /// The vector, as long as the residual stream is wide.
    pub vector: Vec<f32>,
    /// Factor that multiplies the vector. Default: 1.
    pub factor: Option<f32>,
}

impl DjinnFields {
    /// All edits of the request, steering vectors included.
    pub fn all_edits(&self) -> Result<Vec<EditSpec>, ServeError> {
        let count = self.edits.len() + self.steer.len();
        if count > EDITS_MAX {
            let error = format!("The request has {count} edits, but the limit is {EDITS_MAX}");
            return Err(ServeError::out_of_range("djinn.edits", error));
        }
        let edits = self.edits.iter().map(|text| request::edit_text(text));
        let edits: Result<Vec<EditSpec>, ServeError> = edits.collect();
        let mut edits = edits.map_err(|error| error.in_field("djinn.edits"))?;
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

/// Object `djinn` of an answer: session and captures; `None` if the answer has neither.
pub fn reply_fields(session: Option<String>, captured: BTreeMap<String, Tensor>) -> Option<Value> {
    if session.is_none() && captured.is_empty() {
        return None;
    }
    let mut fields = Map::new();
    if let Some(session) = session {
        fields.insert("session".to_owned(), session.into());
    }
    if !captured.is_empty() {
        // Each tensor is freed as soon as its text exists.
        let captures = captured.into_iter();
        let captures: Map<String, Value> = captures
            .map(|(name, tensor)| (name, tensor_json(tensor)))
            .collect();
        fields.insert("captures".to_owned(), captures.into());
    }
    Some(fields.into())
}

fn tensor_json(tensor: Tensor) -> Value {
    let bytes: Vec<u8> = tensor.data.into_iter().flat_map(f32::to_le_bytes).collect();
    json!({ "dtype": "f32", "shape": tensor.shape, "base64": STANDARD.encode(bytes) })
}
