//! Options of the checks.

use djinn_device::DeviceName;

/// Options of the checks.
#[derive(Clone, Copy, Debug)]
pub struct DoctorOptions {
    /// Device to check. A card that is missing fails only if it is named.
    pub device: DeviceName,
    /// Smallest bandwidth in GB/s from pinned memory to the card.
    pub threshold: f64,
}
