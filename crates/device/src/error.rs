//! What can go wrong on a device.

use crate::Span;

/// Result of a device call.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// Failure of a device call.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The host would not give the memory.
    #[error("cannot take {:.2} GB of memory: {reason}", *bytes as f64 / 1e9)]
    NoMemory {
        /// Asked for.
        bytes: u64,
        /// As the system put it.
        reason: String,
    },
    /// A view reaches beyond the slab.
    #[error("{op}: bytes {}..{} lie outside the slab of {slab_bytes}", span.offset, span.end())]
    OutOfSlab {
        /// The operation.
        op: &'static str,
        /// The view's bytes.
        span: Span,
        /// What there is.
        slab_bytes: u64,
    },
    /// Operands that do not fit together.
    #[error("{op}: {detail}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// What did not fit.
        detail: String,
    },
    /// The slow tier could not be read.
    #[error("{0}")]
    Read(#[from] std::io::Error),
    /// A GPU's driver refused something.
    #[error("{what}: {reason}")]
    Driver {
        /// What was asked of it.
        what: &'static str,
        /// As it put it.
        reason: String,
    },
    /// The device cannot be set up as asked.
    #[error("{0}")]
    Setup(String),
}
