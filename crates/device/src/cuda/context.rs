//! Primary context of a card, and properties that the driver reports.

use std::ffi::CStr;

use cudarc::driver::{result, sys};

use super::driver::{DriverContext, Version};
use crate::{DeviceError, Result};

/// The primary context of a card, retained by this process.
pub(super) struct CardContext {
    ordinal: usize,
    name: String,
    bus_id: String,
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: the fields are handles of the driver, which allows their use from any thread.
unsafe impl Send for CardContext {}
// SAFETY: the argument for `Send` also holds for `Sync`.
unsafe impl Sync for CardContext {}

/// A card that the driver reports, without a context yet.
pub(super) struct FoundCard {
    ordinal: usize,
    name: String,
    device: sys::CUdevice,
    /// Address of the card on the PCI bus.
    pub(super) bus_id: String,
}

impl FoundCard {
    /// Loads the driver and finds the card with this number.
    pub(super) fn find(ordinal: usize) -> Result<Self> {
        let device = find(ordinal)?;
        Ok(FoundCard {
            ordinal,
            name: result::device::get_name(device).context("reading the card's name")?,
            device,
            bus_id: bus_id(device)?,
        })
    }

    /// Retains the card's context and makes it current for the calling thread.
    pub(super) fn retain(self) -> Result<CardContext> {
        // SAFETY: a device that the driver just returned; released on drop.
        let context =
            unsafe { result::primary_ctx::retain(self.device) }.context("creating a context")?;
        let card = CardContext {
            ordinal: self.ordinal,
            name: self.name,
            bus_id: self.bus_id,
            device: self.device,
            context,
        };
        card.enter()?;
        card.shrink()?;
        Ok(card)
    }
}

impl CardContext {
    /// Name of the card in flags and reports: `cuda:0`.
    pub(super) fn label(&self) -> String {
        format!("cuda:{}", self.ordinal)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Address of the card on the PCI bus.
    pub(super) fn bus_id(&self) -> &str {
        &self.bus_id
    }

    /// Makes this context current for the calling thread.
    pub(super) fn enter(&self) -> Result<()> {
        // SAFETY: the context lives as long as `self`.
        unsafe { result::ctx::set_current(self.context) }.context("entering the context")
    }

    /// Free and total bytes of the card's memory.
    pub(super) fn memory(&self) -> Result<(u64, u64)> {
        self.enter()?;
        let (free, total) = result::mem_get_info().context("querying free memory")?;
        Ok((free as u64, total as u64))
    }

    /// Compute capability of the card.
    pub(super) fn capability(&self) -> Result<Version> {
        use sys::CUdevice_attribute as Attribute;
        let major = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(Version {
            major: major as u32,
            minor: minor as u32,
        })
    }

    /// Value of one of the card's attributes.
    pub(super) fn attribute(&self, what: sys::CUdevice_attribute) -> Result<i32> {
        // SAFETY: a device of the driver.
        unsafe { result::device::get_attribute(self.device, what) }
            .context("reading an attribute of the card")
    }

    /// Limits the memory of the context: no kernel prints, allocates, or has a stack.
    fn shrink(&self) -> Result<()> {
        use sys::CUlimit as Limit;
        for (limit, bytes) in [
            (Limit::CU_LIMIT_STACK_SIZE, 0),
            (Limit::CU_LIMIT_PRINTF_FIFO_SIZE, 0),
            (Limit::CU_LIMIT_MALLOC_HEAP_SIZE, 0),
        ] {
            result::ctx::set_limit(limit, bytes).context("limiting the context's memory")?;
        }
        Ok(())
    }
}

impl Drop for CardContext {
    fn drop(&mut self) {
        // SAFETY: the context was retained once and is not used any more.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Returns the driver's handle of the card with this number.
fn find(ordinal: usize) -> Result<sys::CUdevice> {
    let refuse = |reason: &str| DeviceError::Setup(format!("cuda:{ordinal}: {reason}"));
    // SAFETY: only looks for the library; without it every other call would panic.
    if !unsafe { sys::is_culib_present() } {
        return Err(refuse(
            "no NVIDIA driver found (libcuda is missing); install one, or use --device cpu",
        ));
    }
    let hidden = std::env::var_os("CUDA_VISIBLE_DEVICES");
    let none = || match &hidden {
        Some(value) => refuse(&format!(
            "the driver shows no card, because CUDA_VISIBLE_DEVICES is '{}'; unset it or name a \
             card in it, or use --device cpu",
            value.to_string_lossy()
        )),
        None => {
            refuse("the driver shows no card; run `nvidia-smi` to see why, or use --device cpu")
        }
    };
    match result::init() {
        Err(result::DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Err(none()),
        started => started.context("starting the driver")?,
    }
    let count = result::device::get_count().context("counting cards")? as usize;
    if count == 0 {
        return Err(none());
    }
    if ordinal >= count {
        let last = count - 1;
        return Err(refuse(&format!(
            "the driver shows no such card; use cuda:0 to cuda:{last}"
        )));
    }
    result::device::get(ordinal as i32).context("opening the card")
}

fn bus_id(device: sys::CUdevice) -> Result<String> {
    let mut text = [0 as std::ffi::c_char; 32];
    // SAFETY: a buffer that is large enough, and its length.
    unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, device) }
        .result()
        .context("reading the card's PCI address")?;
    // SAFETY: the driver ends the text with a zero.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }
        .to_string_lossy()
        .into())
}
