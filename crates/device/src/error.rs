//! Errors of devices.

use crate::Span;

/// Result of a device call.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// Failure of a device call.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Memory could not be allocated.
    #[error("cannot allocate {:.2} GB of memory: {reason}", *bytes as f64 / 1e9)]
    NoMemory {
        /// Requested bytes.
        bytes: u64,
        /// Reason, and what to do about it.
        reason: String,
    },
    /// A view reaches beyond the slab.
    #[error("{op}: bytes {}..{} exceed the slab of {slab_bytes} bytes", span.offset, span.end())]
    OutOfSlab {
        /// Name of the operation.
        op: &'static str,
        /// Bytes of the view.
        span: Span,
        /// Bytes of the slab.
        slab_bytes: u64,
    },
    /// Operands do not fit together.
    #[error("{op}: {detail}")]
    Shape {
        /// Name of the operation.
        op: &'static str,
        /// Description of the mismatch.
        detail: String,
    },
    /// Weights could not be read from their file.
    #[error("{0}")]
    Read(#[from] std::io::Error),
    /// A call of the GPU's driver failed.
    #[error("the CUDA driver failed while {what}: {reason}")]
    Driver {
        /// Purpose of the call, as in "launching a kernel".
        what: &'static str,
        /// Reason given by the driver.
        reason: String,
    },
    /// The device cannot be opened with these options.
    #[error("{0}")]
    Setup(String),
}
