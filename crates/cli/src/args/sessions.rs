//! Flags of `djinn sessions`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::server::ServerArgs;

/// `djinn sessions`
#[derive(Debug, Args)]
#[command(after_help = "\
A saved session consists of its tokens, its sampling and its edits. Djinn recomputes the
KV cache from them, bit for bit.

Examples:
  djinn run --state ./sessions --prompt 'Tom had a red boat.' --max-tokens 40
  djinn sessions list --state ./sessions
  djinn sessions show 01KA9ZJ8Q3V5T7WXR2MDGH6B4C --state ./sessions
  djinn sessions save 01KA9ZJ8Q3V5T7WXR2MDGH6B4C boat.djinn --state ./sessions
  djinn sessions load boat.djinn --state ./elsewhere
  djinn sessions delete 01KA9ZJ8Q3V5T7WXR2MDGH6B4C --state ./sessions
  djinn sessions repair --state ./sessions
  djinn sessions list --server gpu:5556
  djinn sessions save big:01KA9ZJ8Q3V5T7WXR2MDGH6B4C boat.djinn --server gpu:5556")]
pub struct SessionsArgs {
    /// Folder of saved sessions
    #[arg(long, value_name = "DIR", global = true)]
    pub state: Option<PathBuf>,
    #[command(flatten)]
    pub server: ServerArgs,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Action on sessions to run.
    #[command(subcommand)]
    pub action: Sessions,
}

/// Action on sessions.
#[derive(Debug, Subcommand)]
pub enum Sessions {
    /// List all sessions with owner, state and length
    List {
        /// List the sessions of all owners of a server, which needs an admin key
        #[arg(long)]
        all_owners: bool,
    },
    /// Show the input and the output of a session
    Show {
        /// Id of the session; on a server, its name
        #[arg(value_name = "ID")]
        id: String,
        /// Model whose tokenizer turns tokens into text [default: the bundled model, if the folder belongs
        /// to it]
        #[arg(long, value_name = "M")]
        model: Option<String>,
    },
    /// Save a session to a file that any folder or server with the same model can load
    Save {
        /// Id of the session; on a server, its name
        #[arg(value_name = "ID")]
        id: String,
        /// File to write
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Overwrite an existing file
        #[arg(long)]
        force: bool,
    },
    /// Load a session from a file, under a new id
    Load {
        /// File to read
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Model on the server [default: the server's first model]
        #[arg(long, value_name = "M")]
        model: Option<String>,
    },
    /// Delete sessions
    Delete {
        /// Numbers of the sessions; on a server, their names
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Repair a damaged folder: sets the damaged log aside and keeps every session that can be read
    Repair,
}
