//! Kernels by name: compiled by the driver when a card is opened, and put on a stream.

use std::collections::HashMap;
use std::ffi::{CString, c_void};

use cudarc::driver::{result, sys};
use djinn_kernels::{ROOMS, Room};

use super::context::CardContext;
use super::driver::{DriverContext, Version};
use crate::{DeviceError, Result};

/// A launch's size: blocks, threads of a block, shared bytes.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) blocks: [usize; 3],
    pub(super) threads: usize,
    pub(super) shared: usize,
}

/// All kernels, compiled for a card.
pub(super) struct Kernels {
    modules: Vec<Module>,
    functions: HashMap<&'static str, Function>,
    /// Shared memory that blocks of the simple attention may ask for.
    pub(super) shared_max: usize,
}

struct Module(sys::CUmodule);

// SAFETY: a handle of the driver.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

#[derive(Clone, Copy)]
struct Function {
    handle: sys::CUfunction,
    /// Whether it waits by itself for the one before it, so that it may be put on the
    /// card before that has ended.
    follows: bool,
}

// SAFETY: a handle of the driver.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// Blocks of a launch in its second and third dimension at most: rows, mostly.
pub const ROWS_MAX: usize = 65_535;

/// Kernels for this capability and later wait for the one before them by themselves.
const FOLLOWS: u32 = 90;

const SHARED_MAX: sys::CUdevice_attribute =
    sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
/// Shared bytes the simple attention takes beside what is asked for: partial sums.
const SHARED_OTHER: usize = 1024;

impl Kernels {
    /// Has the driver compile them, room by room side by side; it keeps the result for
    /// the next time.
    pub(super) fn load(card: &CardContext) -> Result<Self> {
        let capability = card.capability()?;
        if capability < Version::CAPABILITY_NEEDED {
            return Err(DeviceError::Setup(format!(
                "{}: {} has compute capability {capability}; the kernels need {} or later; use \
                 --device cpu",
                card.label(),
                card.name(),
                Version::CAPABILITY_NEEDED,
            )));
        }
        let loaded: Vec<Result<Loaded>> = std::thread::scope(|scope| {
            let compile = |room| scope.spawn(move || compile(card, room));
            let threads: Vec<_> = fitting(10 * capability.major + capability.minor)
                .into_iter()
                .map(compile)
                .collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            let panicked = |_| Err(DeviceError::Setup("compiling the kernels panicked".into()));
            joined
                .map(|result| result.unwrap_or_else(panicked))
                .collect()
        });
        let mut kernels = Kernels {
            modules: Vec::new(),
            functions: HashMap::new(),
            shared_max: card.attribute(SHARED_MAX)? as usize - SHARED_OTHER,
        };
        for loaded in loaded {
            let (module, functions) = loaded?;
            kernels.modules.push(module);
            kernels.functions.extend(functions);
        }
        for (name, function) in &kernels.functions {
            if ["attend", "pattern"].contains(name) || name.starts_with("attend_many") {
                allow_shared(*function, kernels.shared_max + SHARED_OTHER)?;
            }
        }
        Ok(kernels)
    }

    /// Puts a kernel on a stream, unless it would have no blocks, and says whether it did.
    /// Arguments are pointers to what its parameters take. `close` says that what comes
    /// before it there is a kernel too.
    ///
    /// # Safety
    /// They must be of the types the sources say, and places they name must stay until
    /// the stream has passed the kernel.
    pub(super) unsafe fn launch(
        &self,
        name: &str,
        size: Size,
        stream: sys::CUstream,
        close: bool,
        arguments: &mut [*mut c_void],
    ) -> Result<bool> {
        let [x, y, z] = size.blocks;
        if x == 0 || y == 0 || z == 0 {
            return Ok(false);
        }
        let function = self.functions[name];
        let failed = |detail: String| DeviceError::Setup(format!("{name}: {detail}"));
        if y > ROWS_MAX || z > ROWS_MAX {
            return Err(failed(format!(
                "{y} by {z} rows at once; a card takes {ROWS_MAX}"
            )));
        }
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x as u32,
            gridDimY: y as u32,
            gridDimZ: z as u32,
            blockDimX: size.threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: size.shared as u32,
            hStream: stream,
            attrs: &raw mut attribute,
            numAttrs: u32::from(function.follows && close),
        };
        // SAFETY: a function of a module that is loaded; the rest is the caller's.
        unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                function.handle,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
        .context("putting a kernel on the card")
        .map(|()| true)
        .map_err(|error| failed(error.to_string()))
    }
}

type Loaded = (Module, Vec<(&'static str, Function)>);

/// Of each room the latest that the card can run.
fn fitting(capability: u32) -> Vec<Room> {
    let mut rooms: HashMap<&str, Room> = HashMap::new();
    for room in ROOMS
        .into_iter()
        .filter(|room| room.capability <= capability)
    {
        rooms.insert(room.name, room);
    }
    rooms.into_values().collect()
}

fn compile(card: &CardContext, room: Room) -> Result<Loaded> {
    card.enter()?;
    let text = CString::new(room.ptx).expect("PTX is text");
    // SAFETY: text that ends with a zero, as the driver wants it.
    let module = unsafe { result::module::load_data(text.as_ptr().cast()) }
        .context("compiling the kernels for this card")?;
    let function = |name: &'static str| {
        let text = CString::new(name).expect("names are text");
        // SAFETY: a module just loaded.
        let handle = unsafe { result::module::get_function(module, text) };
        let function = Function {
            handle: handle.context("finding a kernel")?,
            follows: room.capability >= FOLLOWS,
        };
        Ok((name, function))
    };
    let functions: Result<Vec<_>> = room.kernels().map(function).collect();
    Ok((Module(module), functions?))
}

/// Lets a kernel ask for all there is beside what it takes anyway.
fn allow_shared(function: Function, most: usize) -> Result<()> {
    use sys::CUfunction_attribute as Attribute;
    let taken = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
    // SAFETY: a function of a loaded module.
    let taken = unsafe { result::function::get_function_attribute(function.handle, taken) };
    let bytes = most as i32 - taken.context("asking for shared memory")?;
    let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: a function of a loaded module.
    unsafe { result::function::set_function_attribute(function.handle, attribute, bytes) }
        .context("asking for shared memory")
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once, and nothing of it runs any more.
        let _ = unsafe { result::module::unload(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::fitting;

    #[test]
    fn a_card_takes_the_latest_it_can_run() {
        for (capability, expect) in [(80, 80), (89, 80), (90, 90), (120, 90)] {
            let rooms = fitting(capability);
            let few = rooms
                .iter()
                .find(|room| room.name == "product_few")
                .unwrap();
            assert_eq!(few.capability, expect);
            assert_eq!(rooms.len(), 11);
        }
    }
}
