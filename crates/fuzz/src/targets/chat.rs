//! Chat templates: a template, then messages, then variables.

use std::collections::BTreeMap;

use djinn_model::ChatTemplate;
use serde_json::{Map, Value, json};

use crate::{input::section, scratch};

/// Renders the messages with the template.
pub fn run(data: &[u8]) {
    let folder = scratch::folder();
    scratch::write(folder.path(), "chat_template.jinja", section(data, 0));
    let tokens = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
    let Ok(Some(chat)) = ChatTemplate::read(folder.path(), tokens) else {
        return;
    };
    let messages = match serde_json::from_slice(section(data, 1)) {
        Ok(Value::Array(messages)) => messages,
        _ => vec![json!({"role": "user", "content": "Hi <there>"})],
    };
    let variables = match serde_json::from_slice(section(data, 2)) {
        Ok(Value::Object(variables)) => variables,
        _ => Map::new(),
    };
    for add_generation_prompt in [false, true] {
        let text = chat.render_with(&messages, add_generation_prompt, variables.clone());
        if let Err(error) = text {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}
