//! The device as a whole.

#[cfg(any(test, feature = "faults"))]
use crate::fault::{Fault, FaultSwitch};
use crate::{Ops, Streams, Transfers};

/// Description of an opened device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Name in flags and reports: `cpu`, `cuda:0`.
    pub name: String,
    /// Instruction set and threads of a CPU, or product name of a card.
    pub detail: String,
    /// Bytes of the slab.
    pub slab_bytes: u64,
}

/// An opened device: a slab, streams, and the operations that a model is made of.
///
/// Operations are enqueued on [`Stream::Compute`](crate::Stream::Compute) and run in the
/// order of the calls. Activations are f32, weights are read as stored, and sums are
/// accumulated in f32.
///
/// **Invariant.** Every output element is reduced in an order that depends only on its own
/// inputs and the [`Phase`](crate::Phase) of its row: never on the number of rows, on
/// chunking, on the number of threads, or on the operands' places in the slab, as long as
/// weights start at multiples of [`ALIGN`](crate::ALIGN).
///
/// **Contract.** Views must lie in the slab and have the stated shapes; a violation returns
/// [`DeviceError::Shape`](crate::DeviceError::Shape) or
/// [`DeviceError::OutOfSlab`](crate::DeviceError::OutOfSlab). An output must not overlap an
/// input unless the operation allows it. The caller orders work on different streams with
/// events.
pub trait Device: Transfers + Streams + Ops {
    /// Describes this device.
    fn info(&self) -> DeviceInfo;

    /// Everything outside of the program that the bits of results depend on: the kind of the device, and
    /// the versions of its driver and libraries. The same text on two machines means the same bits.
    fn arithmetic(&self) -> String {
        self.info().name
    }

    /// Waits for all streams, and gives the memory of the slab and of the operations back to the
    /// system. The contents are lost. Operations fail until [`Device::restore_memory`] succeeds;
    /// host slabs and events stay valid.
    fn release_memory(&self) -> crate::Result<()>;

    /// Allocates the memory that [`Device::release_memory`] gave back, at the same offsets. Its
    /// contents are unspecified. Does nothing if the device has its memory.
    fn restore_memory(&self) -> crate::Result<()>;

    /// Prepares [`Device::inject`], which may not load kernels in the middle of a pass.
    #[cfg(any(test, feature = "faults"))]
    fn prepare_faults(&self) -> crate::Result<()> {
        Ok(())
    }

    /// Breaks the device on the compute stream, for tests. A CPU fails or blocks in this call; a
    /// card does so in a later call that waits for the stream.
    #[cfg(any(test, feature = "faults"))]
    fn inject(&self, fault: Fault, switch: &FaultSwitch) -> crate::Result<()> {
        crate::fault::strike_here(fault, switch)
    }
}
