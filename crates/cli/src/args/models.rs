//! Flags of `djinn models`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use djinn_types::{KvDtype, Size};

use super::{parse::at_least_one, server::ServerArgs};

/// `djinn models`
#[derive(Debug, Args)]
#[command(after_help = "\
Without --server, the command uses the server that DJINN_SERVER names, or the one on this machine at
the default port. A server loads models by hub id, by shape, from the folders of its --model-dir, and
pushed models. A push sends only the bytes that the server does not have, and resumes after an
interruption.

Examples:
  djinn models
  djinn models register shape:llama-2-7b --name big --memory 8GB --server gpu:5556
  djinn models push ./stories-7m --server gpu:5556
  djinn models unload big --forget")]
pub struct ModelsArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Action [default: list]
    #[command(subcommand)]
    pub action: Option<Models>,
}

/// Action on models of a server.
#[derive(Debug, Subcommand)]
pub enum Models {
    /// List all models with state, memory and sessions
    List,
    /// Load a model under a name
    Register {
        /// Reference: a folder below the server's --model-dir, a hub id, shape:NAME or pushed:HASH
        #[arg(value_name = "M")]
        reference: String,
        #[command(flatten)]
        layout: LayoutArgs,
    },
    /// Push a model from a folder of this machine, and load it
    Push {
        /// Folder with config.json, tokenizer.json and *.safetensors
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
        /// Send the files without loading the model
        #[arg(long, conflicts_with_all = ["name", "memory", "context", "batch", "sessions", "kv_dtype"])]
        no_load: bool,
        #[command(flatten)]
        layout: LayoutArgs,
    },
    /// Unload a model and free its memory
    Unload {
        /// Name of the model
        #[arg(value_name = "NAME")]
        name: String,
        /// Unload the model even if open sessions are lost
        #[arg(long)]
        force: bool,
        /// Also remove the model from the list, so that no request loads it again
        #[arg(long)]
        forget: bool,
    },
}

/// Name and limits of a model. The server chooses defaults for missing limits.
#[derive(Clone, Debug, Default, Args)]
pub struct LayoutArgs {
    /// Name of the model [default: the last part of its reference]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Device memory of the model
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Tokens of the longest session
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub context: Option<usize>,
    /// Sessions in one pass
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub batch: Option<usize>,
    /// Sessions open at once
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub sessions: Option<usize>,
    /// Type of keys and values
    #[arg(long, value_name = "auto|f16|bf16|f32")]
    pub kv_dtype: Option<KvDtype>,
}
