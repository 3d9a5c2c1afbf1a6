//! Parses the fields of a request. A client can send edits and tensors, but cannot name files.

use std::{sync::Arc, time::Duration};

use djinn_engine::{BreakSpec, Change, EditSpec, EngineError, Operand, Part, Positions, Tensor};
use djinn_wire::{numbers, v1};

use super::limits::{BREAKPOINTS_MAX, EDITS_MAX, check_count};
use crate::{ServeError, engine_thread::ChatTokenizer};

/// Largest length in bytes of positions, parts and breakpoints.
const TEXT_BYTES_MAX: usize = 4096;
/// Largest length in bytes of a hook's name.
const HOOK_BYTES_MAX: usize = 256;
/// Largest length in bytes of an edit in text form, which may contain a row of numbers.
const EDIT_BYTES_MAX: usize = 1 << 20;
/// Longest duration in seconds that a request may contain.
const SECONDS_MAX: f64 = 1e9;

/// Parses a duration in seconds. Rejects negative values and values that are not numbers.
pub fn seconds(name: &str, seconds: f64) -> Result<Duration, ServeError> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if seconds <= SECONDS_MAX => Ok(time),
        _ => Err(ServeError::Invalid(format!(
            "{name} is {seconds}, but must be a number of seconds from 0 to {SECONDS_MAX:e}"
        ))),
    }
}

/// Tokens of a prompt that begins a session.
pub fn prompt_tokens(
    tokenizer: &ChatTokenizer,
    prompt: Option<v1::Prompt>,
) -> Result<Vec<u32>, ServeError> {
    match prompt.and_then(|prompt| prompt.what) {
        None => tokenizer.encode(""),
        Some(v1::prompt::What::Text(text)) => tokenizer.encode(&text),
        Some(other) => other_tokens(tokenizer, other),
    }
}

/// Tokens of a prompt that continues a session.
pub fn continuation_tokens(
    tokenizer: &ChatTokenizer,
    prompt: Option<v1::Prompt>,
) -> Result<Vec<u32>, ServeError> {
    match prompt.and_then(|prompt| prompt.what) {
        None => Ok(Vec::new()),
        Some(v1::prompt::What::Text(text)) if text.is_empty() => Ok(Vec::new()),
        Some(v1::prompt::What::Text(text)) => tokenizer.encode_more(&text),
        Some(other) => other_tokens(tokenizer, other),
    }
}

/// Tokens of a prompt that is not a text.
fn other_tokens(
    tokenizer: &ChatTokenizer,
    prompt: v1::prompt::What,
) -> Result<Vec<u32>, ServeError> {
    match prompt {
        v1::prompt::What::Text(text) => tokenizer.encode(&text),
        v1::prompt::What::Tokens(tokens) => {
            tokenizer.check_token_count(tokens.ids.len())?;
            Ok(tokens.ids)
        }
        v1::prompt::What::Chat(chat) => {
            let bytes = chat.messages.iter().map(|message| message.content.len());
            tokenizer.check_text_bytes(bytes.sum())?;
            tokenizer.encode_chat(&chat_messages(&chat), Default::default())
        }
    }
}

/// Messages of a chat in the form that chat templates expect.
pub fn chat_messages(chat: &v1::Chat) -> Vec<serde_json::Value> {
    let message = |m: &v1::ChatMessage| serde_json::json!({ "role": m.role, "content": m.content });
    chat.messages.iter().map(message).collect()
}

/// Rejects a text that is longer than the limit for parts, positions and breakpoints.
fn check_length(field: &str, text: &str) -> Result<(), ServeError> {
    check_count(
        field,
        "bytes in a part, breakpoint or list of positions",
        text.len(),
        TEXT_BYTES_MAX,
    )
}

/// Checks the length of a hook's name, or of a pattern of names.
pub fn hook_name(name: &str) -> Result<&str, ServeError> {
    check_count(
        "hook",
        "bytes in the name of a hook",
        name.len(),
        HOOK_BYTES_MAX,
    )?;
    Ok(name)
}

/// Parses positions; empty text means all.
pub fn positions(text: &str) -> Result<Positions, ServeError> {
    check_length("positions", text)?;
    match text {
        "" => Ok(Positions::All),
        text => text.parse().map_err(ServeError::Invalid),
    }
}

/// Parses a part of a hook's width, with or without brackets; empty text means all.
pub fn part(text: &str) -> Result<Part, ServeError> {
    check_length("part", text)?;
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    match bare.unwrap_or(text) {
        "" => Ok(Part::default()),
        text => text.parse().map_err(ServeError::Invalid),
    }
}

/// Parses an edit in the syntax of the command line. Rejects file names, because a name would
/// refer to a file of the server.
pub fn edit_text(text: &str) -> Result<EditSpec, ServeError> {
    check_count(
        "djinn.edits",
        "bytes in an edit",
        text.len(),
        EDIT_BYTES_MAX,
    )?;
    let (head, _) = text.split_once(':').unwrap_or((text, ""));
    check_length("djinn.edits", head)?;
    let hook = hook_name(head.split('[').next().unwrap_or(head))?;
    if let Some((_, positions)) = text.rsplit_once('@') {
        check_length("djinn.edits", positions)?;
    }
    let edit: EditSpec = text.parse().map_err(EngineError::from)?;
    match edit.change.operand() {
        Some(Operand::File { .. }) => Err(ServeError::Invalid(format!(
            "Edit at '{hook}' names a file, but the server reads no files for clients: send the numbers, as \
             add=[0.1,-2] or as a tensor"
        ))),
        _ => Ok(edit),
    }
}

/// Parses the edits of a message.
pub fn edits(edits: Vec<v1::Edit>) -> Result<Vec<EditSpec>, ServeError> {
    check_count("edits", "edits", edits.len(), EDITS_MAX)?;
    edits.into_iter().map(edit).collect()
}

fn edit(edit: v1::Edit) -> Result<EditSpec, ServeError> {
    use v1::edit::Change as Wire;
    hook_name(&edit.hook)?;
    let invalid =
        |problem: &str| ServeError::Invalid(format!("Edit at '{}': {problem}", edit.hook));
    let operand = |tensor: Option<v1::Tensor>| {
        let tensor = tensor.ok_or_else(|| invalid("the tensor is missing; send tensor"))?;
        let (shape, data) = numbers(&tensor)?;
        Ok::<_, ServeError>(Operand::Tensor(Arc::new(Tensor { shape, data })))
    };
    let change = match edit.change {
        None => {
            return Err(invalid(
                "the change is missing; send scale, add, replace or another change",
            ));
        }
        Some(Wire::Text(text)) => return edit_text(&text),
        Some(Wire::Scale(factor)) => Change::Scale(factor),
        Some(Wire::Zero(_)) => Change::Zero,
        Some(Wire::Add(add)) => Change::Add {
            factor: add.factor.unwrap_or(1.0),
            operand: operand(add.tensor)?,
        },
        Some(Wire::AddMatched(add)) => Change::AddMatched {
            factor: add.factor.unwrap_or(1.0),
            operand: operand(add.tensor)?,
        },
        Some(Wire::Replace(tensor)) => Change::Replace(operand(Some(tensor))?),
        Some(Wire::ProjectOut(tensor)) => Change::ProjectOut(operand(Some(tensor))?),
        Some(Wire::Clamp(clamp)) if clamp.low > clamp.high => {
            let (low, high) = (clamp.low, clamp.high);
            return Err(invalid(&format!(
                "clamp's low {low} exceeds its high {high}"
            )));
        }
        Some(Wire::Clamp(clamp)) => Change::Clamp {
            low: clamp.low,
            high: clamp.high,
        },
    };
    Ok(EditSpec {
        hook: edit.hook,
        part: part(&edit.part)?,
        change,
        positions: positions(&edit.positions)?,
    })
}

/// Parses breakpoints.
pub fn breakpoints(texts: &[String]) -> Result<Vec<BreakSpec>, ServeError> {
    check_count("breakpoints", "breakpoints", texts.len(), BREAKPOINTS_MAX)?;
    for text in texts {
        check_length("breakpoints", text)?;
    }
    let parse = |text: &String| text.parse::<BreakSpec>();
    let parsed: Result<_, _> = texts.iter().map(parse).collect();
    parsed.map_err(|error| EngineError::from(error).into())
}

#[cfg(test)]
mod tests {
    use super::{edit_text, part};
    use crate::ErrorCode;

    #[test]
    fn edits_cannot_name_files_of_the_server() {
        assert!(edit_text("blocks.0.hook_resid_post:scale=0.5").is_ok());
        assert!(edit_text("blocks.0.hook_resid_post:add=[0.5,1]").is_ok());
        for text in [
            "blocks.0.hook_resid_post:add=/etc/passwd",
            "blocks.0.hook_resid_post:replace=../x.safetensors#a",
            "blocks.0.hook_resid_post:project-out=x*2",
        ] {
            let code = edit_text(text).map(drop).map_err(|error| error.code());
            assert_eq!(code, Err(ErrorCode::Invalid), "{text}");
        }
    }

    #[test]
    fn parts_may_have_brackets() {
        let same = |a: &str, b: &str| part(a).ok() == part(b).ok() && part(a).is_ok();
        assert!(same("[0..4]", "0..4"));
        assert!(same("", "[]"));
        assert!(part("[4..0]").is_err());
    }
}
