//! Tests that the files generated from the protocol are up to date: the reference documentation,
//! and the descriptors of the Python package. `UPDATE_REFERENCE=1 cargo test -p djinn-wire`
//! regenerates them.

#![allow(clippy::unwrap_used, missing_docs)]

use std::{collections::HashMap, fmt::Write, fs, path::Path};

use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

/// Compares bytes with a file of the source tree; with UPDATE_REFERENCE, writes the file first.
fn check(path: &str, bytes: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
    }
    let found = fs::read(&path).unwrap_or_default();
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    assert!(
        found == bytes,
        "{name} is out of date: run the tests with UPDATE_REFERENCE=1"
    );
}

#[test]
fn the_descriptors_of_the_python_package_are_up_to_date() {
    check(
        "python/src/djinn/_wire/djinn.binpb",
        djinn_wire::DESCRIPTORS,
    );
}

#[test]
fn the_grpc_reference_is_up_to_date() {
    let files = FileDescriptorSet::decode(djinn_wire::COMMENTED).unwrap();
    let mut text =
        "# The gRPC protocol\n\nGenerated from [the .proto files](../../crates/wire/proto/djinn/v1). \
                    The server offers it on the same port as HTTP, with reflection and health checks.\n"
            .to_owned();
    for file in &files.file {
        ProtoDocs::new(file).services(&mut text);
    }
    text += "\n## Messages\n";
    for file in &files.file {
        ProtoDocs::new(file).messages(&mut text);
    }
    check("docs/reference/grpc.md", text.as_bytes());
}

/// A `.proto` file with its comments by path.
struct ProtoDocs<'f> {
    file: &'f FileDescriptorProto,
    comments: HashMap<Vec<i32>, String>,
}

impl<'f> ProtoDocs<'f> {
    fn new(file: &'f FileDescriptorProto) -> Self {
        let info = file.source_code_info.iter().flat_map(|info| &info.location);
        let comment = |l: &prost_types::source_code_info::Location| {
            let lines = l.leading_comments().lines().map(str::trim);
            (
                l.path.clone(),
                lines.collect::<Vec<_>>().join(" ").trim().to_owned(),
            )
        };
        ProtoDocs {
            file,
            comments: info.map(comment).collect(),
        }
    }

    fn comment(&self, path: &[i32]) -> &str {
        self.comments.get(path).map_or("", String::as_str)
    }

    fn services(&self, text: &mut String) {
        for (s, service) in (0..).zip(&self.file.service) {
            let about = self.comment(&[6, s]);
            write!(
                text,
                "\n## {}\n\n{about}\n\n| Call | Request | Reply | Description |\n|---|---|---|---|\n",
                service.name()
            )
            .unwrap();
            for (m, method) in (0..).zip(&service.method) {
                let stream = |is: bool| if is { "stream of " } else { "" };
                writeln!(
                    text,
                    "| `{}` | {}{} | {}{} | {} |",
                    method.name(),
                    stream(method.client_streaming()),
                    link(method.input_type()),
                    stream(method.server_streaming()),
                    link(method.output_type()),
                    self.comment(&[6, s, 2, m]),
                )
                .unwrap();
            }
        }
    }

    fn messages(&self, text: &mut String) {
        for (m, message) in (0..).zip(&self.file.message_type) {
            self.message(text, &[4, m], message);
        }
        for (e, list) in (0..).zip(&self.file.enum_type) {
            self.list(text, &[5, e], list);
        }
    }

    fn message(&self, text: &mut String, path: &[i32], message: &DescriptorProto) {
        write!(text, "\n### {}\n\n", message.name()).unwrap();
        let about = self.comment(path);
        if !about.is_empty() {
            write!(text, "{about}\n\n").unwrap();
        }
        if message.field.is_empty() {
            return text.push_str("No fields.\n");
        }
        text.push_str("| Field | Type | Description |\n|---|---|---|\n");
        for (f, field) in (0..).zip(&message.field) {
            let about = self.comment(&[path, &[2, f]].concat());
            writeln!(
                text,
                "| `{}` | {} | {about} |",
                field.name(),
                kind(message, field)
            )
            .unwrap();
        }
    }

    fn list(&self, text: &mut String, path: &[i32], list: &EnumDescriptorProto) {
        write!(text, "\n### {}\n\n{}\n\n", list.name(), self.comment(path)).unwrap();
        for (v, value) in (0..).zip(&list.value) {
            let about = self.comment(&[path, &[2, v]].concat());
            let sep = if about.is_empty() { "" } else { ": " };
            writeln!(text, "- `{}`{sep}{about}", value.name()).unwrap();
        }
    }
}

/// Link to a message of the protocol.
fn link(name: &str) -> String {
    let short = name.rsplit('.').next().unwrap();
    format!("[{short}](#{})", short.to_lowercase())
}

fn kind(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let name = match field.r#type() {
        Type::Message | Type::Enum => {
            let entry = message
                .nested_type
                .iter()
                .find(|n| field.type_name().ends_with(n.name()));
            match entry {
                Some(entry) => {
                    let of = |i: usize| format!("{:?}", entry.field[i].r#type()).to_lowercase();
                    return format!("map of {} to {}", of(0), of(1));
                }
                None => link(field.type_name()),
            }
        }
        plain => format!("{plain:?}").to_lowercase(),
    };
    match (field.label(), field.proto3_optional(), field.oneof_index) {
        (Label::Repeated, ..) => format!("repeated {name}"),
        (_, true, _) => format!("{name}, optional"),
        (_, false, Some(of)) => format!(
            "{name}, one of `{}`",
            message.oneof_decl[of as usize].name()
        ),
        _ => name,
    }
}
