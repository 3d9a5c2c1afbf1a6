//! Protection from strangers: web pages, floods of connections, and floods of log lines.

mod addresses;
mod bucket;
mod log_limit;
mod origin;

pub use addresses::{AddressLimit, AddressPermit};
pub use bucket::TokenBucket;
pub use log_limit::{LogLimit, for_log};
pub use origin::{OriginRules, is_grpc};
