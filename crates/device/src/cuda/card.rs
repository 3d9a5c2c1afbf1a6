//! A card, its context, its streams and the memory on it: the driver's calls, each with
//! what it was for.

use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::blas::Blas;
use super::books::Books;
use super::facts::Version;
use super::kernels::Kernels;
use super::nvml::Nvml;
use crate::{DeviceError, Result};

/// Names a driver call in its error.
pub(super) trait Said<T> {
    fn said(self, what: &'static str) -> Result<T>;
}

impl<T> Said<T> for std::result::Result<T, result::DriverError> {
    fn said(self, what: &'static str) -> Result<T> {
        self.map_err(|error| {
            let text = error.error_string().ok();
            let reason = text.map_or_else(|| format!("{error:?}"), |t| t.to_string_lossy().into());
            DeviceError::Driver { what, reason }
        })
    }
}

/// A card that is in use by this process: a context on it, and the kernels compiled for
/// it. Taken once and shared by all that runs there.
pub struct Card {
    // Before the context they live in.
    pub(super) kernels: Option<Kernels>,
    /// Missing where the library is.
    pub(super) blas: Option<Blas>,
    ordinal: usize,
    name: String,
    bus_id: String,
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Bytes that were in use before it was opened, where nobody else was there.
    before: Option<u64>,
    books: Arc<Books>,
}

// SAFETY: handles of the driver, which may be used from any thread.
unsafe impl Send for Card {}
// SAFETY: as above.
unsafe impl Sync for Card {}

/// What a context takes where the management library does not say; and what none takes less
/// than.
const TAKEN_USUALLY: u64 = 640 << 20;
const TAKEN_LEAST: u64 = 64 << 20;
/// What the driver takes later, when a model first runs: up to 34 MiB were seen.
const TAKEN_LATER: u64 = 48 << 20;

impl Card {
    /// Finds the driver and takes a card.
    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        let device = find(ordinal)?;
        let name = result::device::get_name(device).said("asking the card's name")?;
        let bus_id = bus_id(device)?;
        let nvml = Nvml::get();
        let used = || nvml?.used(&bus_id);
        let before = used();
        // SAFETY: a device the driver just gave; released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.said("making a context")?;
        let mut card = Card {
            kernels: None,
            blas: None,
            ordinal,
            name,
            bus_id: bus_id.clone(),
            device,
            context,
            before: None,
            books: Arc::new(Books::new(TAKEN_USUALLY)),
        };
        card.enter()?;
        card.leave_room()?;
        card.kernels = Some(Kernels::load(&card)?);
        card.blas = Blas::open();
        if let (Some(before), Some(after)) = (before, used()) {
            let alone = card.is_alone();
            card.before = alone.then_some(before);
            card.books = Arc::new(Books::new(taken(before, after, alone)));
        }
        Ok(Arc::new(card))
    }

    /// How many processes compute there, where the system says.
    fn processes(&self) -> Option<usize> {
        Nvml::get()?.processes(&self.bus_id)
    }

    /// Whether no other process computes there.
    fn is_alone(&self) -> bool {
        self.processes() == Some(1)
    }

    /// Why so many bytes cannot be had, and what to do about it.
    pub fn too_little(&self, bytes: u64, free: u64) -> DeviceError {
        let others = match self.processes().unwrap_or(0).saturating_sub(1) {
            0 => String::new(),
            1 => ", another process runs there".to_owned(),
            n => format!(", {n} other processes run there"),
        };
        let reason = format!(
            "{:.2} GB are free on {} ({}){others}; give less --memory, or wait until more is free",
            free as f64 / 1e9,
            self.label(),
            self.name,
        );
        DeviceError::NoMemory { bytes, reason }
    }

    /// As the user names it: `cuda:0`.
    pub fn label(&self) -> String {
        format!("cuda:{}", self.ordinal)
    }

    /// What it is.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it sits.
    pub(super) fn bus_id(&self) -> &str {
        &self.bus_id
    }

    /// Free and all bytes of its memory.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.enter()?;
        let (free, total) = result::mem_get_info().said("asking for free memory")?;
        Ok((free as u64, total as u64))
    }

    /// Bytes of its memory that this process takes before any slab: context, kernels,
    /// libraries. A budget covers them too. It grows when models first run, and stays so when
    /// they go. So it is looked at again while nothing else is ours, on a card that nobody
    /// shares.
    pub fn taken(&self) -> u64 {
        self.books.kept(|| {
            let (before, now) = (self.before?, self.used()?);
            self.is_alone().then(|| taken(before, now, true))
        })
    }

    /// Bytes of its memory in use by all processes, where the system says.
    pub fn used(&self) -> Option<u64> {
        Nvml::get()?.used(&self.bus_id)
    }

    /// Keeps the context small: no kernel here prints, allocates, or has a stack.
    fn leave_room(&self) -> Result<()> {
        use sys::CUlimit as Limit;
        for (limit, bytes) in [
            (Limit::CU_LIMIT_STACK_SIZE, 0),
            (Limit::CU_LIMIT_PRINTF_FIFO_SIZE, 0),
            (Limit::CU_LIMIT_MALLOC_HEAP_SIZE, 0),
        ] {
            result::ctx::set_limit(limit, bytes).said("making the context small")?;
        }
        Ok(())
    }

    pub(super) fn kernels(&self) -> &Kernels {
        self.kernels
            .as_ref()
            .expect("loaded when the card was opened")
    }

    /// Makes the calling thread's calls go to this card.
    pub(super) fn enter(&self) -> Result<()> {
        // SAFETY: the context lives as long as this.
        unsafe { result::ctx::set_current(self.context) }.said("entering the context")
    }

    /// Its compute capability.
    pub(super) fn capability(&self) -> Result<Version> {
        use sys::CUdevice_attribute as Attribute;
        let major = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(Version {
            major: major as u32,
            minor: minor as u32,
        })
    }

    /// A number the driver knows of the card.
    pub(super) fn attribute(&self, what: sys::CUdevice_attribute) -> Result<i32> {
        // SAFETY: a device of the driver.
        unsafe { result::device::get_attribute(self.device, what) }.said("asking about the card")
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Card({}, {})", self.label(), self.name)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let _ = self.enter();
        (self.kernels, self.blas) = (None, None);
        // SAFETY: retained once, and nothing of it is used any more.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// What was taken between two readings of what all processes have. Where there are others,
/// they may have taken or given back something meanwhile.
fn taken(before: u64, after: u64, alone: bool) -> u64 {
    let taken = after.saturating_sub(before);
    match alone || (TAKEN_LEAST..=TAKEN_USUALLY).contains(&taken) {
        true => taken + TAKEN_LATER,
        false => TAKEN_USUALLY,
    }
}

/// The driver's card of this number.
fn find(ordinal: usize) -> Result<sys::CUdevice> {
    let refuse = |reason: &str| DeviceError::Setup(format!("cuda:{ordinal}: {reason}"));
    // SAFETY: only looks for the library; without it every other call would panic.
    if !unsafe { sys::is_culib_present() } {
        return Err(refuse(
            "no NVIDIA driver here (libcuda is not found); install one, or use --device cpu",
        ));
    }
    let hidden = std::env::var_os("CUDA_VISIBLE_DEVICES");
    let none = || match &hidden {
        Some(value) => refuse(&format!(
            "the driver shows no card, because CUDA_VISIBLE_DEVICES is '{}'; unset it or name a \
             card in it, or use --device cpu",
            value.to_string_lossy()
        )),
        None => refuse("the driver shows no card; `nvidia-smi` says why, or use --device cpu"),
    };
    match result::init() {
        Err(result::DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Err(none()),
        started => started.said("starting the driver")?,
    }
    let count = result::device::get_count().said("counting cards")? as usize;
    if count == 0 {
        return Err(none());
    }
    if ordinal >= count {
        let last = count - 1;
        return Err(refuse(&format!(
            "there is no such card; the last is cuda:{last}"
        )));
    }
    result::device::get(ordinal as i32).said("taking the card")
}

/// Where a card sits.
fn bus_id(device: sys::CUdevice) -> Result<String> {
    let mut text = [0 as std::ffi::c_char; 32];
    // SAFETY: room for what the driver writes, and its length.
    unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, device) }
        .result()
        .said("asking where the card sits")?;
    // SAFETY: the driver ends it with a zero.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }
        .to_string_lossy()
        .into())
}

/// Memory on the card.
pub(super) struct Memory {
    pub(super) address: sys::CUdeviceptr,
    pub(super) bytes: u64,
    books: Arc<Books>,
}

impl Memory {
    pub(super) fn new(card: &Card, bytes: u64) -> Result<Self> {
        card.enter()?;
        let (free, _) = card.memory()?;
        if bytes > free {
            return Err(card.too_little(bytes, free));
        }
        // SAFETY: plain memory, given back when this is dropped.
        let take = || unsafe { result::malloc_sync(bytes.max(1) as usize) };
        let memory = Memory {
            address: card
                .books
                .lend(bytes, take)
                .said("taking memory of the card")?,
            bytes,
            books: Arc::clone(&card.books),
        };
        // SAFETY: the memory just taken.
        unsafe { result::memset_d8_sync(memory.address, 0, bytes as usize) }
            .said("clearing memory")?;
        // Whatever its name says, the driver clears on a stream of its own that ours do not
        // wait for: what is loaded first would be cleared afterwards.
        result::ctx::synchronize().said("clearing memory")?;
        Ok(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.books.take_back(self.bytes, || {
            // SAFETY: taken once; the owner has waited for all work that uses it.
            let _ = unsafe { result::free_sync(self.address) };
        });
    }
}

/// A queue of work.
pub(super) struct Queue {
    pub(super) stream: sys::CUstream,
}

// SAFETY: a handle of the driver.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// A queue that gives way to others, or one (`first`) that goes before them.
    pub(super) fn new(card: &Card, first: bool) -> Result<Self> {
        card.enter()?;
        let kind = result::stream::StreamKind::NonBlocking;
        let (least, greatest) =
            result::stream::get_priority_range().said("asking for priorities")?;
        let priority = if first { greatest } else { least };
        let stream = result::stream::create_with_priority(kind, priority);
        Ok(Queue {
            stream: stream.said("making a stream")?,
        })
    }

    pub(super) fn wait(&self) -> Result<()> {
        // SAFETY: a stream of this device.
        unsafe { result::stream::synchronize(self.stream) }.said("waiting for the card")
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: made once; its owner has waited for its work.
        let _ = unsafe { result::stream::destroy(self.stream) };
    }
}

#[cfg(test)]
mod tests {
    use super::{TAKEN_LATER, TAKEN_USUALLY, taken};

    #[test]
    fn what_others_take_meanwhile_is_not_ours() {
        let (gib, mib) = (1u64 << 30, 1u64 << 20);
        let ours = 300 * mib + TAKEN_LATER;
        for alone in [true, false] {
            assert_eq!(taken(gib, gib + 300 * mib, alone), ours);
        }
        assert_eq!(taken(gib, 9 * gib, false), TAKEN_USUALLY);
        assert_eq!(taken(9 * gib, gib, false), TAKEN_USUALLY);
        assert_eq!(taken(0, 2 * gib, true), 2 * gib + TAKEN_LATER);
    }
}
