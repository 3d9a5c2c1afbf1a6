//! All targets.

mod archive;
mod chat;
mod config;
mod grpc;
mod http;
mod log;
mod prefixes;
mod results;
mod safetensors;
mod session;
mod settings;
mod syntax;
mod tensors;
mod tokenizer;
mod tokens;
mod vectors;
mod wire;

/// A reader of bytes from outside, with the properties that it must keep.
pub struct FuzzTarget {
    /// Name of the target, and of the folder of its seeds.
    pub name: &'static str,
    /// Runs the reader; panics if a property is violated.
    pub run: fn(&[u8]),
    /// Words of the format, for mutations.
    pub tokens: &'static [&'static str],
    /// Length in bytes of the longest useful input.
    pub longest: usize,
}

/// All targets.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget {
        name: "safetensors",
        run: safetensors::run,
        tokens: tokens::SAFETENSORS,
        longest: 16 << 10,
    },
    FuzzTarget {
        name: "vectors",
        run: vectors::run,
        tokens: tokens::VECTORS,
        longest: 8 << 10,
    },
    FuzzTarget {
        name: "config",
        run: config::run,
        tokens: tokens::CONFIG,
        longest: 8 << 10,
    },
    FuzzTarget {
        name: "tokenizer",
        run: tokenizer::run,
        tokens: tokens::TOKENIZER,
        longest: 32 << 10,
    },
    FuzzTarget {
        name: "chat",
        run: chat::run,
        tokens: tokens::CHAT,
        longest: 8 << 10,
    },
    FuzzTarget {
        name: "archive",
        run: archive::run,
        tokens: tokens::SESSION,
        longest: 8 << 10,
    },
    FuzzTarget {
        name: "session",
        run: session::run,
        tokens: tokens::SESSION,
        longest: 8 << 10,
    },
    FuzzTarget {
        name: "log",
        run: log::run,
        tokens: tokens::SESSION,
        longest: 16 << 10,
    },
    FuzzTarget {
        name: "prefixes",
        run: prefixes::run,
        tokens: tokens::PREFIXES,
        longest: 8 << 10,
    },
    FuzzTarget {
        name: "wire",
        run: wire::run,
        tokens: tokens::SYNTAX,
        longest: 8 << 10,
    },
    FuzzTarget {
        name: "grpc",
        run: grpc::run,
        tokens: tokens::GRPC,
        longest: 8 << 10,
    },
    FuzzTarget {
        name: "http",
        run: http::run,
        tokens: tokens::HTTP,
        longest: 8 << 10,
    },
    FuzzTarget {
        name: "settings",
        run: settings::run,
        tokens: tokens::SETTINGS,
        longest: 16 << 10,
    },
    FuzzTarget {
        name: "results",
        run: results::run,
        tokens: tokens::RESULTS,
        longest: 16 << 10,
    },
    FuzzTarget {
        name: "tensors",
        run: tensors::run,
        tokens: tokens::SAFETENSORS,
        longest: 8 << 10,
    },
    FuzzTarget {
        name: "syntax",
        run: syntax::run,
        tokens: tokens::SYNTAX,
        longest: 4 << 10,
    },
];

/// Returns the target of this name.
pub fn target(name: &str) -> Option<&'static FuzzTarget> {
    TARGETS.iter().find(|target| target.name == name)
}
