//! Flags of `djinn models`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use djinn_types::Size;

use super::{ServerArgs, at_least_one};

/// `djinn models`
#[derive(Debug, Args)]
#[command(after_help = "\
Without --server it is the one that DJINN_SERVER names, or this machine's own at the usual port.
A server loads models by hub id, by shape, from folders it was started with (--model-dir), and what
was pushed to it. Pushing sends only what the server has not, and resumes after an interruption.

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
    /// What to do; without it, they are listed
    #[command(subcommand)]
    pub what: Option<Models>,
}

/// What is done with models of a server.
#[derive(Debug, Subcommand)]
pub enum Models {
    /// All of them: where each stands, how large it is, who uses it
    List,
    /// Load one, under a name
    Register {
        /// A folder the server lets clients name, a hub id, shape:NAME or pushed:HASH
        #[arg(value_name = "M")]
        reference: String,
        #[command(flatten)]
        layout: LayoutArgs,
    },
    /// Send one from a folder of this machine, and load it
    Push {
        /// The folder: config.json, tokenizer.json, *.safetensors
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
        /// Send the files without loading the model
        #[arg(long, conflicts_with_all = ["name", "memory", "context", "batch", "sessions"])]
        no_load: bool,
        #[command(flatten)]
        layout: LayoutArgs,
    },
    /// Give a model's memory back
    Unload {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
        /// Also where sessions are open that would be lost
        #[arg(long)]
        force: bool,
        /// Forget it too: it is not loaded again when it is asked for
        #[arg(long)]
        forget: bool,
    },
}

/// What a model is called, and laid out for; what is not given is the server's to decide.
#[derive(Clone, Debug, Default, Args)]
pub struct LayoutArgs {
    /// What it is called from now on [default: the last part of what it is loaded from]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Memory of the device it may take
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Positions of its longest session
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub context: Option<usize>,
    /// Sessions in one pass
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub batch: Option<usize>,
    /// Sessions open at once
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub sessions: Option<usize>,
}
