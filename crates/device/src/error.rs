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
    /// Another call uses the same bytes of host memory.
    #[error("{op}: another call uses bytes {}..{} of the memory", span.offset, span.end())]
    InUse {
        /// Name of the operation.
        op: &'static str,
        /// Bytes that the operation needs.
        span: Span,
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
        /// Number of the error, a `CUresult`.
        code: u32,
        /// Reason given by the driver.
        reason: String,
    },
    /// The device cannot be opened with these options.
    #[error("{0}")]
    Setup(String),
}

/// Errors of the CUDA driver after which every later call in the context fails. According to the
/// driver's documentation they leave the process in an inconsistent state, and only a new process
/// can use the card.
const STICKY_CODES: [(u32, &str); 19] = [
    (4, "CUDA_ERROR_DEINITIALIZED"),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE"),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE"),
    (220, "CUDA_ERROR_NVLINK_UNCORRECTABLE"),
    (226, "CUDA_ERROR_CONTAINED"),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    (702, "CUDA_ERROR_LAUNCH_TIMEOUT"),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"),
    (710, "CUDA_ERROR_ASSERT"),
    (714, "CUDA_ERROR_HARDWARE_STACK_ERROR"),
    (715, "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
    (716, "CUDA_ERROR_MISALIGNED_ADDRESS"),
    (717, "CUDA_ERROR_INVALID_ADDRESS_SPACE"),
    (718, "CUDA_ERROR_INVALID_PC"),
    (LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"),
    (721, "CUDA_ERROR_TENSOR_MEMORY_LEAK"),
    (810, "CUDA_ERROR_MPS_CLIENT_TERMINATED"),
    (911, "CUDA_ERROR_EXTERNAL_DEVICE"),
    (999, "CUDA_ERROR_UNKNOWN"),
];

/// Error of the CUDA driver for a kernel that failed.
pub(crate) const LAUNCH_FAILED: u32 = 719;

impl DeviceError {
    /// Whether the device is unusable from now on. After such an error every later call fails,
    /// also for other devices on the same card in this process. Only a new process can use the
    /// card again.
    pub fn is_sticky(&self) -> bool {
        match self {
            DeviceError::Driver { code, .. } => {
                STICKY_CODES.iter().any(|(sticky, _)| sticky == code)
            }
            _ => false,
        }
    }

    /// Adds the name of a kernel or library to the reason of a driver error.
    pub(crate) fn within(self, name: &str) -> DeviceError {
        match self {
            DeviceError::Driver { what, code, reason } => DeviceError::Driver {
                what,
                code,
                reason: format!("{name}: {reason}"),
            },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use cudarc::driver::sys::CUresult;

    use super::{DeviceError, LAUNCH_FAILED};

    #[test]
    fn errors_that_break_the_context_are_sticky() {
        let error = |code: CUresult| DeviceError::Driver {
            what: "testing",
            code: code as u32,
            reason: String::new(),
        };
        assert_eq!(CUresult::CUDA_ERROR_LAUNCH_FAILED as u32, LAUNCH_FAILED);
        for code in [
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUresult::CUDA_ERROR_INVALID_PC,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUresult::CUDA_ERROR_ASSERT,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            CUresult::CUDA_ERROR_DEINITIALIZED,
            CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED,
            CUresult::CUDA_ERROR_EXTERNAL_DEVICE,
            CUresult::CUDA_ERROR_UNKNOWN,
        ] {
            assert!(error(code).within("a kernel").is_sticky(), "{code:?}");
        }
        for code in [
            CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_NOT_READY,
            CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        ] {
            assert!(!error(code).is_sticky(), "{code:?}");
        }
        assert!(!DeviceError::Setup("no card".into()).is_sticky());
    }
}
