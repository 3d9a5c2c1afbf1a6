//! Tests of tokenizers of both common kinds: byte-level, and SentencePiece with byte fallback.

mod common;

use common::root;
use djinn_model::{KeyProblem, ModelError, Tokenizer};
use serde_json::{Map, Value, json};

fn stories() -> Tokenizer {
    read(&root().join("models/stories-7m"))
}

fn read(folder: &std::path::Path) -> Tokenizer {
    Tokenizer::read(folder)
        .unwrap_or_else(|error| panic!("{error}"))
        .expect("a tokenizer")
}

/// Returns a tokenizer like that of Llama 2: a space is `▁`, unknown characters are bytes.
fn pieces() -> Value {
    let mut vocab = Map::new();
    let words = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let letters = [
        "▁", "H", "i", "y", "o", "u", "▁H", "▁Hi", "yo", "you", "▁you", "<think>",
    ];
    let tokens = words
        .into_iter()
        .chain(bytes)
        .chain(letters.map(str::to_owned));
    for (id, token) in tokens.enumerate() {
        vocab.insert(token, id.into());
    }
    let special = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": special})
    };
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [special(0, "<unk>", true), special(1, "<s>", true),
                         special(2, "</s>", true), special(270, "<think>", false)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>",
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "vocab": vocab,
            "merges": ["▁ H", "▁H i", "y o", "yo u", "▁ you"]},
    })
}

fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (name, value) in files {
        std::fs::write(dir.path().join(name), value.to_string()).expect("written");
    }
    dir
}

fn llama(config: Value) -> Tokenizer {
    read(
        folder(&[
            ("tokenizer.json", pieces()),
            ("tokenizer_config.json", config),
        ])
        .path(),
    )
}

#[test]
fn special_tokens_are_added_as_in_transformers() {
    let check = |config: Value, text: &str, expect: &[u32]| {
        let found = llama(config.clone()).encode(text).expect("encodes");
        assert_eq!(found, expect, "{config} {text}");
    };
    // Without settings tokenizer.json decides; its truncation to 3 tokens is ignored.
    check(json!({}), "Hi you you", &[1, 266, 269, 269]);
    let tokens = json!({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}});
    let with = |key: &str, value: bool| {
        let mut config = tokens.clone();
        config[key] = value.into();
        config
    };
    check(tokens.clone(), "Hi", &[1, 266]);
    check(with("add_bos_token", true), "Hi", &[1, 266]);
    check(with("add_bos_token", true), "<s>Hi", &[1, 266]);
    check(with("add_bos_token", false), "Hi", &[266]);
    check(with("add_eos_token", true), "Hi", &[266, 2]);
    check(json!({"add_bos_token": true}), "Hi", &[266]);
}

#[test]
fn special_tokens_come_from_either_file() {
    let check = |config: Value, map: Value, bos: Option<u32>, eos: Option<u32>| {
        let dir = folder(&[
            ("tokenizer.json", pieces()),
            ("tokenizer_config.json", config),
            ("special_tokens_map.json", map),
        ]);
        let text = read(dir.path());
        assert_eq!((text.bos(), text.eos()), (bos, eos));
    };
    let both = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}});
    check(both.clone(), json!({}), Some(1), Some(2));
    check(json!({}), both.clone(), Some(1), Some(2));
    check(
        json!({"bos_token": "</s>", "eos_token": null}),
        both,
        Some(2),
        Some(2),
    );
    check(json!({"bos_token": "<nowhere>"}), json!({}), None, None);
    let text = llama(json!({"bos_token": "<s>"}));
    assert_eq!(text.special_tokens()["bos_token"], "<s>");
    assert!(text.is_special(1) && !text.is_special(270));
    assert_eq!(text.vocab(), 271);
    assert_eq!(
        (text.id("▁Hi"), text.token(266)),
        (Some(266), Some("▁Hi".to_owned()))
    );
}

#[test]
fn encoding_and_decoding_are_inverse() {
    let story = stories();
    for text in [
        "Once upon a time, there was a cat.",
        " naïve café — 你好 🙂\n",
        "<|endoftext|>x",
        "",
    ] {
        let ids = story.encode_plain(text).expect("encodes");
        assert_eq!(story.decode(&ids, false).expect("decodes"), text);
        let with = story.encode(text).expect("encodes");
        assert_eq!(
            with.first(),
            story.bos().as_ref(),
            "every document starts with token 0"
        );
    }
    assert_eq!(
        story.decode(&[0, 390, 389], true).expect("decodes"),
        "Once upon"
    );
    assert_eq!(
        story
            .decode(&[u32::MAX], true)
            .expect("no text beyond the vocabulary"),
        ""
    );
}

/// Decodes tokens one by one after a context; returns the whole text.
fn stream(text: &Tokenizer, context: &[u32], ids: &[u32], skip: bool) -> String {
    let mut decoder = text.decoder(context, skip);
    let mut out: String = ids.iter().filter_map(|&id| decoder.push(id)).collect();
    out.extend(decoder.finish());
    assert_eq!(decoder.finish(), None, "no text is returned twice");
    out
}

#[test]
fn streamed_text_equals_decoded_text() {
    let llama = llama(json!({"bos_token": "<s>", "eos_token": "</s>"}));
    for text in [stories(), llama] {
        for source in [
            "Hi you",
            "  Hi  you ",
            "naïve 你好🙂🙂 é",
            "\u{fffd}x",
            "🙂",
            "",
        ] {
            let ids = text.encode(source).expect("encodes");
            for skip in [true, false] {
                let whole = text.decode(&ids, skip).expect("decodes");
                assert_eq!(stream(&text, &[], &ids, skip), whole, "{source}");
                for cut in 0..ids.len() {
                    let (context, rest) = ids.split_at(cut);
                    let before = text.decode(context, skip).expect("decodes");
                    if before.ends_with(char::REPLACEMENT_CHARACTER) {
                        continue;
                    }
                    let streamed = before + &stream(&text, context, rest, skip);
                    assert_eq!(streamed, whole, "{source} cut at {cut}");
                }
            }
        }
    }
}

#[test]
fn text_is_returned_once_characters_are_complete() {
    let text = llama(json!({"bos_token": "<s>", "eos_token": "</s>"}));
    let check = |context: &[u32], steps: &[(u32, Option<&str>)], end: Option<&str>| {
        let mut decoder = text.decoder(context, true);
        for &(id, expect) in steps {
            assert_eq!(decoder.push(id).as_deref(), expect, "{id} of {steps:?}");
        }
        assert_eq!(decoder.finish().as_deref(), end, "{steps:?}");
    };
    let byte = |byte: u32| 3 + byte;
    // The space before the first word is dropped; later spaces stay.
    check(
        &[],
        &[(1, None), (266, Some("Hi")), (269, Some(" you"))],
        None,
    );
    check(
        &[1, 266],
        &[(269, Some(" you")), (2, None), (269, Some(" you"))],
        None,
    );
    // A character of four bytes is returned with its last byte.
    let smile = [(byte(0xf0), None), (byte(0x9f), None), (byte(0x99), None)];
    check(
        &[266],
        &[smile[0], smile[1], smile[2], (byte(0x82), Some("🙂"))],
        None,
    );
    check(&[266], &smile, Some("\u{fffd}\u{fffd}\u{fffd}"));
    // An invalid byte sequence delays the following text by a few tokens only.
    let broken: Vec<(u32, Option<&str>)> = (0..8)
        .map(|i| {
            (
                byte(0xff),
                (i == 7)
                    .then_some("\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}"),
            )
        })
        .collect();
    check(&[266], &broken, None);
}

#[test]
fn invalid_tokenizers_are_errors() {
    let error = |files: &[(&str, Value)]| {
        let error = Tokenizer::read(folder(files).path()).err();
        let error = error.expect("the tokenizer is invalid");
        assert!(!error.to_string().contains('\n'), "{error}");
        error
    };
    for invalid in [json!({"version": "1.0"}), json!([])] {
        let error = error(&[("tokenizer.json", invalid)]);
        assert!(
            matches!(&error, ModelError::Tokenizer { path, .. } if path.ends_with("tokenizer.json")),
            "{error:?}"
        );
    }
    for (key, value) in [("bos_token", json!(7)), ("add_bos_token", json!("yes"))] {
        let config = json!({key: value});
        let error = error(&[
            ("tokenizer.json", pieces()),
            ("tokenizer_config.json", config),
        ]);
        let (file, found, problem) = common::key_problem(error);
        assert_eq!((&*file, &*found), ("tokenizer_config.json", key));
        assert!(
            matches!(problem, KeyProblem::Unexpected { .. }),
            "{problem:?}"
        );
    }
    let none = tempfile::tempdir().expect("a temporary folder");
    assert!(Tokenizer::read(none.path()).expect("allowed").is_none());
}

#[test]
fn chat_templates_are_read_from_either_file() {
    let stories = common::open(&root().join("models/stories-7m"));
    assert_eq!(stories.name, "stories-7m");
    assert_eq!(stories.generation.eos, [0]);
    assert!(stories.chat.is_none());
    assert_eq!(
        stories.tokenizer.expect("a tokenizer").vocab(),
        stories.program.dims.vocab
    );

    let check = |files: &[(&str, &str)], expect: Option<&str>| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        let chat = djinn_model::ChatTemplate::read(dir.path(), Default::default());
        let chat = chat.unwrap_or_else(|error| panic!("{error}"));
        let text = chat.map(|chat| chat.render(&[], true).unwrap_or_else(|e| e.to_string()));
        assert_eq!(text.as_deref(), expect, "{files:?}");
    };
    let config = "tokenizer_config.json";
    check(&[], None);
    check(&[(config, r#"{"chat_template": null}"#)], None);
    check(&[(config, r#"{"chat_template": "one"}"#)], Some("one"));
    check(
        &[
            (config, r#"{"chat_template": "one"}"#),
            ("chat_template.jinja", "two\n"),
        ],
        Some("two"),
    );
    let list = r#"{"chat_template": [{"name": "rag", "template": "r"},
                                     {"name": "default", "template": "d"}]}"#;
    check(&[(config, list)], Some("d"));
}
