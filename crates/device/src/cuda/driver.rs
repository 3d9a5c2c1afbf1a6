//! Errors of driver calls, and versions of CUDA.

use std::fmt;

use cudarc::driver::result::DriverError;

use crate::{DeviceError, Result};

/// Adds the purpose of a driver call to its error.
pub(super) trait DriverContext<T> {
    /// Adds the purpose of the call to its error, as in "allocating device memory".
    fn context(self, what: &'static str) -> Result<T>;
}

impl<T> DriverContext<T> for std::result::Result<T, DriverError> {
    fn context(self, what: &'static str) -> Result<T> {
        self.map_err(|error| {
            let text = error.error_string().ok();
            let reason = text.map_or_else(|| format!("{error:?}"), |t| t.to_string_lossy().into());
            let code = error.0 as u32;
            DeviceError::Driver { what, code, reason }
        })
    }
}

/// A version of CUDA, or the compute capability of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Number before the point.
    pub major: u32,
    /// Number after the point.
    pub minor: u32,
}

impl Version {
    /// CUDA version that the bindings and the PTX need. Later drivers support it as well.
    pub const DRIVER_NEEDED: Version = Version {
        major: 13,
        minor: 0,
    };
    /// Least compute capability that the kernels run on.
    pub const CAPABILITY_NEEDED: Version = Version { major: 8, minor: 0 };

    /// Converts the driver's number, such as 13000 for 13.0.
    pub(super) fn from_number(number: i32) -> Self {
        let number = number.max(0) as u32;
        Version {
            major: number / 1000,
            minor: number % 1000 / 10,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn versions_are_compared_and_printed() {
        assert_eq!(Version::from_number(13000), Version::DRIVER_NEEDED);
        assert_eq!(Version::from_number(12080).to_string(), "12.8");
        assert!(Version::from_number(12080) < Version::DRIVER_NEEDED);
        assert!(Version { major: 9, minor: 0 } > Version::CAPABILITY_NEEDED);
    }
}
