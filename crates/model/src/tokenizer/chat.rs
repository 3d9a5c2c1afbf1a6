//! Chat templates: render messages to a prompt, as transformers does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use minijinja::value::{Kwargs, Value as Jinja, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{pyjson, strftime, template, tokenizer_config};
use crate::error::ModelError;

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Author: `system`, `user` or `assistant`.
    pub role: String,
    /// Text of the message.
    pub content: String,
}

/// Chat templates of a model.
pub struct ChatTemplate {
    path: PathBuf,
    /// Source of each template, by name. Most models have only `default`.
    templates: BTreeMap<String, String>,
    /// Special tokens by role.
    tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Reads the templates of a model folder; returns `None` if there are none. `tokens` holds
    /// the special tokens by role, because templates refer to roles.
    pub fn read(
        folder: &Path,
        tokens: BTreeMap<String, String>,
    ) -> Result<Option<Self>, ModelError> {
        let path = folder.join("chat_template.jinja");
        let (path, templates) = if path.is_file() {
            let source = std::fs::read_to_string(&path).map_err(|source| ModelError::Io {
                path: path.clone(),
                source,
            })?;
            (path, BTreeMap::from([("default".to_owned(), source)]))
        } else {
            let config = tokenizer_config(folder)?;
            let Some(value) = config.value("chat_template") else {
                return Ok(None);
            };
            let templates = named(value).ok_or_else(|| {
                config.unexpected(
                    "chat_template",
                    "a string, or a list of objects with 'name' and 'template'",
                    "another value",
                )
            })?;
            (config.path().to_owned(), templates)
        };
        Ok(Some(ChatTemplate {
            path,
            templates,
            tokens,
        }))
    }

    /// Renders a chat to text. `add_generation_prompt` appends the start of the model's answer.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ModelError> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| {
                let mut object = Map::new();
                object.insert("role".to_owned(), message.role.clone().into());
                object.insert("content".to_owned(), message.content.clone().into());
                Value::Object(object)
            })
            .collect();
        self.render_with(&messages, add_generation_prompt, Map::new())
    }

    /// Renders a chat of messages that are JSON objects, with more variables such as `tools` or
    /// `enable_thinking`.
    pub fn render_with(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        variables: Map<String, Value>,
    ) -> Result<String, ModelError> {
        let mut context = Map::new();
        // Templates test whether these variables are none, so they must be defined.
        context.insert("tools".to_owned(), Value::Null);
        context.insert("documents".to_owned(), Value::Null);
        for (role, token) in &self.tokens {
            context.insert(role.clone(), token.clone().into());
        }
        context.extend(variables);
        context.insert("messages".to_owned(), messages.to_vec().into());
        context.insert(
            "add_generation_prompt".to_owned(),
            add_generation_prompt.into(),
        );
        let source = self.template(&context)?;
        template::render(&source, &context, prepare).map_err(|error| self.fault(&error))
    }

    /// Selects the template: `tool_use` if the chat has tools and the model has such a template,
    /// otherwise `default`.
    fn template(&self, context: &Map<String, Value>) -> Result<String, ModelError> {
        let tools = context.get("tools").is_some_and(|tools| !tools.is_null());
        let for_tools = self.templates.get("tool_use").filter(|_| tools);
        let source = for_tools.or_else(|| self.templates.get("default"));
        source
            .map(|source| without_generation_tags(source))
            .ok_or_else(|| ModelError::Template {
                path: self.path.clone(),
                problem: format!(
                    "the model has no template 'default', only {}",
                    self.templates
                        .keys()
                        .cloned()
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
            })
    }

    fn fault(&self, error: &Error) -> ModelError {
        ModelError::Template {
            path: self.path.clone(),
            problem: error.to_string().replace('\n', " "),
        }
    }
}

/// Reads one template, or several by name.
fn named(value: &Value) -> Option<BTreeMap<String, String>> {
    match value {
        Value::String(source) => Some(BTreeMap::from([("default".to_owned(), source.clone())])),
        Value::Array(list) => list
            .iter()
            .map(|item| {
                let text = |key: &str| Some(item.get(key)?.as_str()?.to_owned());
                Some((text("name")?, text("template")?))
            })
            .collect(),
        _ => None,
    }
}

/// Adds the functions and filters of transformers to a Jinja environment.
fn prepare(environment: &mut Environment<'static>) {
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    environment.add_function("strftime_now", |format: String| {
        strftime::strftime_now(&format)
            .map_err(|problem| Error::new(ErrorKind::InvalidOperation, problem))
    });
    environment.add_filter("tojson", tojson);
    environment.add_test("iterable", is_iterable);
}

/// Returns whether Python could iterate over a value. Templates use this test to check for tools:
/// `None` is not iterable, a string is.
fn is_iterable(value: &Jinja) -> bool {
    match value.kind() {
        ValueKind::None => false,
        ValueKind::String => true,
        _ => value.try_iter().is_ok(),
    }
}

/// Formats a value as Python's `json.dumps` does. Jinja's own filter escapes for HTML.
fn tojson(value: &Jinja, options: Kwargs) -> Result<Jinja, Error> {
    let style = pyjson::JsonStyle {
        indent: options.get("indent")?,
        separators: separators(options.get("separators")?)?,
        ensure_ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let value = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Jinja::from(pyjson::dumps(&value, &style)))
}

/// Reads the `separators` option, a pair such as `(',', ':')`.
fn separators(given: Option<Vec<String>>) -> Result<Option<(String, String)>, Error> {
    match given {
        None => Ok(None),
        Some(pair) => match <[String; 2]>::try_from(pair) {
            Ok([comma, colon]) => Ok(Some((comma, colon))),
            Err(_) => Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: separators must be two strings",
            )),
        },
    }
}

/// Replaces the tag `generation` by a condition that is always true. transformers marks the
/// model's answers for training with this tag. The condition treats whitespace as the tag does.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        // The percent sign of `{%}` belongs to the start of the tag.
        let Some(length) = tag[2..].find("%}") else {
            break;
        };
        let name = tag[2..2 + length].trim_matches(['-', '+']).trim();
        let (tag, after) = tag.split_at(length + 4);
        result.push_str(before);
        match name {
            "generation" => result.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => result.push_str(&tag.replace("endgeneration", "endif")),
            _ => result.push_str(tag),
        }
        rest = after;
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use serde_json::{Map, Value, json};

    use super::{ChatTemplate, Message, ModelError, without_generation_tags};

    fn template(source: &str) -> ChatTemplate {
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
        ChatTemplate {
            path: PathBuf::from("chat_template.jinja"),
            templates: BTreeMap::from([("default".to_owned(), source.to_owned())]),
            tokens: tokens
                .map(|(role, token)| (role.to_owned(), token.to_owned()))
                .into(),
        }
    }

    fn message(role: &str, content: &str) -> Message {
        Message {
            role: role.to_owned(),
            content: content.to_owned(),
        }
    }

    fn chat() -> Vec<Message> {
        vec![
            message("user", " Hi "),
            message("assistant", "Hello!"),
            message("user", "Who <are> you?"),
        ]
    }

    const LLAMA3: &str = "{% set loop_messages = messages %}{% for message in loop_messages %}\
        {% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ \
        message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}\
        {% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
        {% if add_generation_prompt %}\
        {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

    const MISTRAL: &str = "{{ bos_token }}{% for message in messages %}\
        {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}\
        {% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}\
        {% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% endif %}\
        {% endfor %}";

    const CHATML: &str = "{%- for message in messages %}
    {%- if loop.first and messages[0]['role'] != 'system' %}
        {{- '<|im_start|>system\nBe helpful.<|im_end|>\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
";

    const ZEPHYR: &str = "{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
";

    /// Compares rendered texts with those of Jinja2 with the settings of transformers.
    #[test]
    fn real_templates_render_as_in_python() {
        let check = |source: &str, expect: &str| {
            assert_eq!(template(source).render(&chat(), true).unwrap(), expect);
        };
        check(
            LLAMA3,
            "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>\
             assistant<|end_header_id|>\n\nHello!<|eot_id|><|start_header_id|>user\
             <|end_header_id|>\n\nWho <are> you?<|eot_id|><|start_header_id|>assistant\
             <|end_header_id|>\n\n",
        );
        check(
            MISTRAL,
            "<s>[INST]  Hi  [/INST]Hello!</s>[INST] Who <are> you? [/INST]",
        );
        check(
            CHATML,
            "<|im_start|>system\nBe helpful.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n\
             <|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nWho <are> you?\
             <|im_end|>\n<|im_start|>assistant\n",
        );
        check(
            ZEPHYR,
            "<|user|>\n Hi </s>\n<|assistant|>\nHello!</s>\n<|user|>\nWho <are> you?</s>\n\
             <|assistant|>\n",
        );
    }

    #[test]
    fn python_methods_and_tags_work() {
        let check = |source: &str, expect: &str| {
            assert_eq!(
                template(source).render(&chat(), true).unwrap(),
                expect,
                "{source}"
            );
        };
        check(
            "{{ messages[::-1][0].content.split(' ')[-1].rstrip('?') }}",
            "you",
        );
        check(
            "{{ messages[1:] | length }}{{ messages[0].get('x', 'none') }}",
            "2none",
        );
        check(
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'assistant' %}\
             {% continue %}{% endif %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "2",
        );
        check(
            "{{ messages[1] | tojson }}",
            r#"{"role": "assistant", "content": "Hello!"}"#,
        );
        check("{{ messages[1].items() | list | length }}", "2");
        check("a {%- generation %} b {% endgeneration -%} c", "a b c");
        check("{{ strftime_now('%Y') | length }}", "4");
        check(
            "{{ tools is none }} {{ tools is iterable }} {{ tool is defined }}",
            "True False False",
        );
        check(
            "{% if tools is iterable and tools | length > 0 %}t{% endif %}x",
            "x",
        );
        check(
            "{{ 'a' is iterable }} {{ messages is iterable }} {{ 1 is iterable }}",
            "True True False",
        );
        check("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('y') }}", "<y>");
    }

    #[test]
    fn tools_and_variables_reach_the_template() {
        let mut chat = template("{{ tools[0] | tojson(indent=2) }}{{ enable_thinking }}");
        let variables = json!({"tools": [{"name": "f", "a": 1}], "enable_thinking": false});
        let Value::Object(variables) = variables else {
            unreachable!("the value above is an object")
        };
        let text = chat.render_with(&[], true, variables.clone()).unwrap();
        assert_eq!(text, "{\n  \"name\": \"f\",\n  \"a\": 1\n}False");
        chat.templates
            .insert("tool_use".to_owned(), "with tools".to_owned());
        assert_eq!(
            chat.render_with(&[], true, variables).unwrap(),
            "with tools"
        );
        assert_ne!(
            chat.render_with(&[], true, Map::new()).ok().as_deref(),
            Some("with tools")
        );
    }

    #[test]
    fn template_errors_are_one_line() {
        let check = |source: &str| {
            let error = template(source).render(&chat(), true).unwrap_err();
            assert!(!error.to_string().contains('\n'), "{error}");
            assert!(
                matches!(&error, ModelError::Template { path, .. } if path.ends_with("chat_template.jinja")),
                "{error:?}"
            );
        };
        check("{{ raise_exception('only\none') }}");
        check("{% if %}");
        check("{{ messages.x.y }}");
        // This template runs out of steps.
        check("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}");
        check("{{ strftime_now('%Q') }}");
        check("{% include 'etc/passwd' %}");
    }

    #[test]
    fn generation_tags_become_conditions() {
        let check = |source: &str, expect: &str| {
            assert_eq!(without_generation_tags(source), expect);
        };
        check(
            "{%- generation -%}x{% endgeneration %}",
            "{%- if true -%}x{% endif %}",
        );
        check(
            "{% set generation = 1 %}{% x",
            "{% set generation = 1 %}{% x",
        );
        check("no tags", "no tags");
        check("{%}{% endgeneration %}", "{%}{% endgeneration %}");
        check("{%}", "{%}");
    }
}
