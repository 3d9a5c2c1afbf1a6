//! Flags of `djinn sessions`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::ServerArgs;

/// `djinn sessions`
#[derive(Debug, Args)]
#[command(after_help = "\
A session is its tokens, how it chooses the next ones, and what it changes on the way. All
else follows from these, to the bit, so that is what a folder keeps and what a file holds.

Examples:
  djinn run --state ./sessions --prompt 'Tom had a red boat.' --max-tokens 40
  djinn sessions list --state ./sessions
  djinn sessions show 0 --state ./sessions
  djinn sessions save 0 boat.djinn --state ./sessions
  djinn sessions load boat.djinn --state ./elsewhere
  djinn sessions delete 0 --state ./sessions
  djinn sessions list --server gpu:5556
  djinn sessions save big:0 boat.djinn --server gpu:5556")]
pub struct SessionsArgs {
    /// The folder they are in
    #[arg(long, value_name = "DIR", global = true)]
    pub state: Option<PathBuf>,
    #[command(flatten)]
    pub server: ServerArgs,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub what: Sessions,
}

/// What is done with them.
#[derive(Debug, Subcommand)]
pub enum Sessions {
    /// All of them: whose, where each stands, how long it is
    List,
    /// One of them: what was given and what it generated
    Show {
        /// Its number; on a server, its name
        #[arg(value_name = "ID")]
        id: String,
        /// The model that has the words for its tokens [default: the bundled one, if it is its]
        #[arg(long, value_name = "M")]
        model: Option<String>,
    },
    /// Write one to a file that another folder, here or elsewhere, can load
    Save {
        /// Its number; on a server, its name
        #[arg(value_name = "ID")]
        id: String,
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Write over a file that is there
        #[arg(long)]
        force: bool,
    },
    /// Take one in from a file, under a number of its own
    Load {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// With --server: its model there [default: the server's first]
        #[arg(long, value_name = "M")]
        model: Option<String>,
    },
    /// End sessions for good
    Delete {
        /// Their numbers; on a server, their names
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
}
