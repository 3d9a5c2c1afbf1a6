//! Bytes that one rendering may create.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Value as Jinja, ValueKind};
use minijinja::{Error, ErrorKind};
use serde_json::{Map, Value};

/// Bytes that a template may create for any chat.
const BYTES: usize = 32 << 20;
/// Bytes that a template may create in addition, for each byte of the chat. Some templates append
/// each message to a growing text.
const BYTES_PER_BYTE: usize = 1024;

/// Bytes that a value counts besides its text.
const VALUE_BYTES: usize = 32;

/// Number of bytes that a template may still create.
#[derive(Clone)]
pub(super) struct RenderBudget {
    left: Arc<AtomicUsize>,
}

impl RenderBudget {
    /// Returns the budget for a chat.
    pub fn of(context: &Map<String, Value>) -> Self {
        let text: usize = context.values().map(text_bytes).sum();
        let left = BYTES + BYTES_PER_BYTE * text;
        RenderBudget {
            left: Arc::new(AtomicUsize::new(left)),
        }
    }

    /// Number of bytes that are left.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// Takes bytes from the budget; fails if too few are left.
    pub fn spend(&self, bytes: usize) -> Result<(), Error> {
        let take = |left: usize| left.checked_sub(bytes);
        let spent = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        match spent {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::new(
                ErrorKind::InvalidOperation,
                "the template creates too much text",
            )),
        }
    }

    /// Takes the size of a value as text from the budget, and returns the size. Nested values that
    /// contain the same value many times count as often as they would be written.
    pub fn spend_text(&self, value: &Jinja) -> Result<usize, Error> {
        let mut bytes = 0;
        let mut values = vec![value.clone()];
        while let Some(value) = values.pop() {
            let own = VALUE_BYTES + value.as_str().map_or(0, str::len);
            self.spend(own)?;
            bytes += own;
            let is_map = value.kind() == ValueKind::Map;
            if is_map || matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
                for item in value.try_iter()? {
                    // The list of values to visit takes memory too.
                    self.spend(1)?;
                    values.extend(is_map.then(|| value.get_item(&item)).transpose()?);
                    values.push(item);
                }
            }
        }
        Ok(bytes)
    }
}

/// Number of bytes of the texts in a JSON value.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(map) => map.values().map(text_bytes).sum(),
        _ => 0,
    }
}
