//! Sessions that outlive the process: what was acknowledged is in a log before it is, and a
//! session goes on from there with the same bits.
//!
//! A session's KV is not written down. Its tokens are, as they come, and its keys and values
//! follow from them, computed again the way they were: given tokens together, generated
//! ones one by one. So a token that was not yet on disk when the power went is the one that
//! is generated again.

mod identity;
mod journal;
pub(crate) mod records;
pub(crate) mod recovery;
mod saved_session;
mod state_folder;

pub(crate) use journal::Journal;
pub use saved_session::{SavedLogprobs, SavedSession, SavedState, SavedStop};
pub(crate) use saved_session::{from_unix, load_logprobs};
pub use state_folder::{SavedFile, State as StateFolder};
