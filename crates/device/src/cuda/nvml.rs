//! The driver's management library (NVML). NVML reports the memory that all processes use on a
//! card, including contexts; the driver itself does not.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use libloading::{Library, Symbol};

/// Memory of a card, filled in by the library. `version` holds the size and version of this
/// structure.
#[repr(C)]
struct MemoryInfo {
    version: c_uint,
    total: c_ulonglong,
    /// Bytes that no process can use.
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

const MEMORY_INFO_2: c_uint = size_of::<MemoryInfo>() as c_uint | 2 << 24;

type InitFn = unsafe extern "C" fn() -> c_int;
type FindFn = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
type MemoryInfoFn = unsafe extern "C" fn(*mut c_void, *mut MemoryInfo) -> c_int;
type ProcessesFn = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut c_void) -> c_int;

/// The library, initialised.
pub(super) struct Nvml {
    library: Library,
}

impl Nvml {
    /// Returns the library; `None` if it is missing or fails to start. The library starts only
    /// once, because each start takes file descriptors and stalls the driver.
    pub(super) fn get() -> Option<&'static Self> {
        static STARTED: OnceLock<Option<Nvml>> = OnceLock::new();
        STARTED.get_or_init(Nvml::start).as_ref()
    }

    fn start() -> Option<Self> {
        // SAFETY: a library of the driver; its initialiser has no other effect.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        // SAFETY: the signature is the library's; it may be called at any time.
        let started = unsafe {
            let init: Symbol<'_, InitFn> = library.get(b"nvmlInit_v2").ok()?;
            init()
        };
        (started == 0).then_some(Nvml { library })
    }

    fn device(&self, bus_id: &str) -> Option<*mut c_void> {
        let bus_id = CString::new(bus_id).ok()?;
        let mut device = std::ptr::null_mut();
        // SAFETY: the signature is the library's; both pointers live through the call.
        let found = unsafe {
            let find: Symbol<'_, FindFn> =
                self.library.get(b"nvmlDeviceGetHandleByPciBusId_v2").ok()?;
            find(bus_id.as_ptr(), &raw mut device)
        };
        (found == 0).then_some(device)
    }

    /// Bytes of a card's memory in use by all processes.
    pub(super) fn used(&self, bus_id: &str) -> Option<u64> {
        let device = self.device(bus_id)?;
        let mut info = MemoryInfo {
            version: MEMORY_INFO_2,
            total: 0,
            reserved: 0,
            free: 0,
            used: 0,
        };
        // SAFETY: the signature and the structure are the library's.
        let status = unsafe {
            let ask: Symbol<'_, MemoryInfoFn> =
                self.library.get(b"nvmlDeviceGetMemoryInfo_v2").ok()?;
            ask(device, &raw mut info)
        };
        (status == 0).then_some(info.used)
    }

    /// Number of processes that compute on a card.
    pub(super) fn processes(&self, bus_id: &str) -> Option<usize> {
        let device = self.device(bus_id)?;
        let mut count: c_uint = 0;
        // With no buffer the call only counts the processes. It returns 7 if there are any.
        // SAFETY: the signature is the library's; without a buffer it writes only the count.
        let status = unsafe {
            let ask: Symbol<'_, ProcessesFn> = self
                .library
                .get(b"nvmlDeviceGetComputeRunningProcesses_v3")
                .ok()?;
            ask(device, &raw mut count, std::ptr::null_mut())
        };
        matches!(status, 0 | 7).then_some(count as usize)
    }
}
