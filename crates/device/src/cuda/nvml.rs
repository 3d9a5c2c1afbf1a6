//! What the driver's management library says of a card's memory: all that every process
//! has taken there, contexts included, which no call of the driver itself tells.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use libloading::{Library, Symbol};

/// What the library fills in where it is told the structure's size and version.
#[repr(C)]
struct MemoryInfo {
    version: c_uint,
    total: c_ulonglong,
    /// What nobody can have.
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

const MEMORY_INFO_2: c_uint = size_of::<MemoryInfo>() as c_uint | 2 << 24;

type Init = unsafe extern "C" fn() -> c_int;
type Find = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
type Info = unsafe extern "C" fn(*mut c_void, *mut MemoryInfo) -> c_int;
type Processes = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut c_void) -> c_int;

/// The library, started.
pub(super) struct Nvml {
    library: Library,
}

impl Nvml {
    /// `None` where it is missing or does not start. It is started once: each start takes
    /// descriptors, and holds up the driver for whoever computes.
    pub(super) fn get() -> Option<&'static Self> {
        static STARTED: OnceLock<Option<Nvml>> = OnceLock::new();
        STARTED.get_or_init(Nvml::start).as_ref()
    }

    fn start() -> Option<Self> {
        // SAFETY: a library of the driver; its initialiser has no other effect.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        // SAFETY: the signature is the library's; it may be called at any time.
        let started = unsafe {
            let init: Symbol<'_, Init> = library.get(b"nvmlInit_v2").ok()?;
            init()
        };
        (started == 0).then_some(Nvml { library })
    }

    fn device(&self, bus_id: &str) -> Option<*mut c_void> {
        let bus_id = CString::new(bus_id).ok()?;
        let mut device = std::ptr::null_mut();
        // SAFETY: the signature is the library's; both pointers live through the call.
        let found = unsafe {
            let find: Symbol<'_, Find> =
                self.library.get(b"nvmlDeviceGetHandleByPciBusId_v2").ok()?;
            find(bus_id.as_ptr(), &raw mut device)
        };
        (found == 0).then_some(device)
    }

    /// Bytes of a card's memory that are taken, by whomever.
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
        let told = unsafe {
            let ask: Symbol<'_, Info> = self.library.get(b"nvmlDeviceGetMemoryInfo_v2").ok()?;
            ask(device, &raw mut info)
        };
        (told == 0).then_some(info.used)
    }

    /// How many processes compute on a card.
    pub(super) fn processes(&self, bus_id: &str) -> Option<usize> {
        let device = self.device(bus_id)?;
        let mut count: c_uint = 0;
        // Without room for any, it only says how many there are: 7 means more than none.
        // SAFETY: the signature is the library's; nothing is written for no room.
        let told = unsafe {
            let ask: Symbol<'_, Processes> = self
                .library
                .get(b"nvmlDeviceGetComputeRunningProcesses_v3")
                .ok()?;
            ask(device, &raw mut count, std::ptr::null_mut())
        };
        matches!(told, 0 | 7).then_some(count as usize)
    }
}
