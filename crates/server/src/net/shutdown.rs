//! Phases of a server's shutdown.

/// Progress of a shutdown. The phases follow each other in the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShutdownPhase {
    /// The server accepts connections and requests.
    Serving,
    /// The server accepts nothing new. Requests in flight may finish.
    Draining,
    /// The server closes every connection at once.
    Closing,
}
