//! Protection from strangers: web pages, floods of connections, and floods of log lines.

mod addresses;
mod log_limit;
mod origin;

pub use addresses::{AddressLimit, AddressPermit};
pub use log_limit::{LogLimit, for_log};
pub use origin::{OriginRules, is_grpc};
