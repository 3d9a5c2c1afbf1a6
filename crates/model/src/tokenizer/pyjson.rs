//! JSON in the format of Python's `json.dumps`. Chat templates write tools in this format, and
//! models are trained on its exact whitespace.

use serde_json::Value;

/// Options of `json.dumps`.
#[derive(Default)]
pub(crate) struct JsonStyle {
    pub indent: Option<usize>,
    /// Separator between items, and between key and value.
    pub separators: Option<(String, String)>,
    pub ensure_ascii: bool,
    pub sort_keys: bool,
}

/// Formats a value.
pub(crate) fn dumps(value: &Value, style: &JsonStyle) -> String {
    let default = if style.indent.is_some() { "," } else { ", " };
    let (comma, colon) = match &style.separators {
        Some((comma, colon)) => (comma.as_str(), colon.as_str()),
        None => (default, ": "),
    };
    let mut writer = JsonWriter {
        style,
        comma,
        colon,
        out: String::new(),
        depth: 0,
    };
    writer.value(value);
    writer.out
}

struct JsonWriter<'a> {
    style: &'a JsonStyle,
    comma: &'a str,
    colon: &'a str,
    out: String,
    depth: usize,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => self.items('[', items, ']', Self::value),
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.style.sort_keys {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.items('{', &entries, '}', |writer, (key, value)| {
                    writer.text(key);
                    writer.out.push_str(writer.colon);
                    writer.value(value);
                });
            }
            plain => self.out.push_str(&plain.to_string()),
        }
    }

    fn items<T>(&mut self, open: char, items: &[T], close: char, each: impl Fn(&mut Self, &T)) {
        self.out.push(open);
        self.depth += 1;
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.out.push_str(self.comma);
            }
            self.line();
            each(self, item);
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.line();
        }
        self.out.push(close);
    }

    /// Starts a new line if lines are indented.
    fn line(&mut self) {
        if let Some(indent) = self.style.indent {
            self.out.push('\n');
            self.out.push_str(&" ".repeat(indent * self.depth));
        }
    }

    fn text(&mut self, text: &str) {
        let quoted = Value::String(text.to_owned()).to_string();
        if !self.style.ensure_ascii {
            self.out.push_str(&quoted);
            return;
        }
        for c in quoted.chars() {
            if c.is_ascii() {
                self.out.push(c);
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    self.out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{JsonStyle, dumps};

    #[test]
    fn whitespace_is_as_in_python() {
        let value = json!({"b": [1, 2.5, null, true], "a": {"x": "é<\"\n"}, "c": [], "d": {}});
        let check = |style: JsonStyle, expect: &str| assert_eq!(dumps(&value, &style), expect);
        check(
            JsonStyle::default(),
            r#"{"b": [1, 2.5, null, true], "a": {"x": "é<\"\n"}, "c": [], "d": {}}"#,
        );
        check(
            JsonStyle {
                sort_keys: true,
                ensure_ascii: true,
                separators: Some((",".to_owned(), ":".to_owned())),
                ..JsonStyle::default()
            },
            r#"{"a":{"x":"\u00e9<\"\n"},"b":[1,2.5,null,true],"c":[],"d":{}}"#,
        );
        check(
            JsonStyle {
                indent: Some(2),
                ..JsonStyle::default()
            },
            "{\n  \"b\": [\n    1,\n    2.5,\n    null,\n    true\n  ],\n  \"a\": {\n    \
             \"x\": \"é<\\\"\\n\"\n  },\n  \"c\": [],\n  \"d\": {}\n}",
        );
    }
}
