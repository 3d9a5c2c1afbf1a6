//! Authentication and rate limits: API keys, their owners, and the requests each owner has in flight.

mod caller;
mod key_file;
mod keys;

pub use caller::Caller;
pub use key_file::KeyFileError;
pub use keys::{KeyStore, LOCAL_OWNER};
