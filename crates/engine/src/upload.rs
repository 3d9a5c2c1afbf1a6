//! Uploads of small arrays to the device.

use djinn_device::{Device, DeviceError, Span, Stream, View};

/// Uploads ids to the first elements of a view.
pub(crate) fn upload_ids(device: &dyn Device, to: View, ids: &[i32]) -> Result<(), DeviceError> {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    upload(device, to, &bytes)
}

/// Uploads numbers to the first elements of a view.
pub(crate) fn upload_numbers(
    device: &dyn Device,
    to: View,
    numbers: &[f32],
) -> Result<(), DeviceError> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    upload(device, to, &bytes)
}

fn upload(device: &dyn Device, to: View, bytes: &[u8]) -> Result<(), DeviceError> {
    let span = Span {
        offset: to.offset,
        bytes: bytes.len() as u64,
    };
    device.upload(Stream::Compute, span, bytes)
}
