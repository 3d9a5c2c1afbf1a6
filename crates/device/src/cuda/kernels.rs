//! Kernels by name. The driver compiles them when a card is opened.

use std::collections::HashMap;
use std::ffi::{CString, c_void};

use cudarc::driver::{result, sys};
use djinn_kernels::{KERNEL_MODULES, KernelModule};

use super::context::CardContext;
use super::driver::{DriverContext, Version};
use crate::{DeviceError, Result};

/// Size of a launch: blocks, threads of a block, bytes of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaunchSize {
    pub(super) blocks: [usize; 3],
    pub(super) threads: usize,
    pub(super) shared: usize,
}

/// All kernels, compiled for one card.
pub(super) struct Kernels {
    modules: Vec<LoadedModule>,
    functions: HashMap<&'static str, Function>,
    /// Bytes of shared memory that a block of the simple attention may use.
    pub(super) shared_max: usize,
}

struct LoadedModule(sys::CUmodule);

// SAFETY: the field is a handle of the driver, which allows its use from any thread.
unsafe impl Send for LoadedModule {}
// SAFETY: the argument for `Send` also holds for `Sync`.
unsafe impl Sync for LoadedModule {}

#[derive(Clone, Copy)]
struct Function {
    handle: sys::CUfunction,
    /// Whether the kernel itself waits for the previous kernel, so that its launch may precede
    /// the end of the previous kernel.
    waits: bool,
}

// SAFETY: the handle belongs to the driver, which allows its use from any thread.
unsafe impl Send for Function {}
// SAFETY: the argument for `Send` also holds for `Sync`.
unsafe impl Sync for Function {}

/// Largest number of blocks of a launch in its second and third dimension, which is usually
/// the number of rows.
pub const ROWS_MAX: usize = 65_535;

/// Least compute capability, times ten, on which a kernel itself waits for the previous kernel.
const WAITS_FROM: u32 = 90;

const SHARED_MAX: sys::CUdevice_attribute =
    sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
/// Bytes of shared memory that the simple attention uses for partial sums.
const SHARED_OTHER: usize = 1024;

impl Kernels {
    /// Compiles all modules in parallel through the driver. The driver caches the result.
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
        let loaded: Vec<Result<CompiledModule>> = std::thread::scope(|scope| {
            let compile = |module| scope.spawn(move || compile(card, module));
            let threads: Vec<_> = fitting(10 * capability.major + capability.minor)
                .into_iter()
                .map(compile)
                .collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            let panicked = |_| {
                Err(DeviceError::Setup(
                    "a thread panicked while it compiled the kernels".into(),
                ))
            };
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
            let is_large = ["attend_prefill", "product_chain"];
            let is_large = is_large.iter().any(|large| name.starts_with(large));
            if ["attend", "pattern"].contains(name) || is_large {
                allow_shared(*function, kernels.shared_max + SHARED_OTHER)?;
            }
        }
        Ok(kernels)
    }

    /// Launches a kernel unless it has no blocks, and returns whether it did. `arguments` are
    /// pointers to the values of its parameters. `overlaps` tells that the last work on the
    /// stream is a kernel.
    ///
    /// # Safety
    /// The arguments must have the types of the CUDA sources, and the memory they point to
    /// must be valid until the stream has passed the kernel.
    pub(super) unsafe fn launch(
        &self,
        name: &str,
        size: LaunchSize,
        stream: sys::CUstream,
        overlaps: bool,
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
                "{y} by {z} blocks exceed the card's limit of {ROWS_MAX}"
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
            numAttrs: u32::from(function.waits && overlaps),
        };
        // SAFETY: a function of a loaded module; the caller guarantees the arguments.
        unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                function.handle,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
        .context("launching a kernel")
        .map(|()| true)
        .map_err(|error| error.within(name))
    }
}

type CompiledModule = (LoadedModule, Vec<(&'static str, Function)>);

/// Returns the latest version of each module that the card can run.
fn fitting(capability: u32) -> Vec<KernelModule> {
    let mut modules: HashMap<&str, KernelModule> = HashMap::new();
    for module in KERNEL_MODULES
        .into_iter()
        .filter(|module| module.capability <= capability)
    {
        modules.insert(module.name, module);
    }
    modules.into_values().collect()
}

fn compile(card: &CardContext, module: KernelModule) -> Result<CompiledModule> {
    card.enter()?;
    let text = CString::new(module.ptx).expect("PTX is text");
    // SAFETY: text that ends with a zero.
    let handle = unsafe { result::module::load_data(text.as_ptr().cast()) }
        .context("compiling the kernels for this card")?;
    let function = |name: &'static str| {
        let text = CString::new(name).expect("names are text");
        // SAFETY: a module just loaded.
        let found = unsafe { result::module::get_function(handle, text) };
        let function = Function {
            handle: found.context("looking up a kernel")?,
            waits: module.capability >= WAITS_FROM,
        };
        Ok((name, function))
    };
    let functions: Result<Vec<_>> = module.kernels().map(function).collect();
    Ok((LoadedModule(handle), functions?))
}

/// Allows a kernel to use all shared memory that its static variables leave free.
fn allow_shared(function: Function, most: usize) -> Result<()> {
    use sys::CUfunction_attribute as Attribute;
    let taken = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
    // SAFETY: a function of a loaded module.
    let taken = unsafe { result::function::get_function_attribute(function.handle, taken) };
    let bytes = most as i32 - taken.context("configuring shared memory")?;
    let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: a function of a loaded module.
    unsafe { result::function::set_function_attribute(function.handle, attribute, bytes) }
        .context("configuring shared memory")
}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        // SAFETY: loaded once, and none of its kernels still runs.
        let _ = unsafe { result::module::unload(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::fitting;

    #[test]
    fn a_card_gets_the_latest_version_it_can_run() {
        for (capability, expect) in [(80, 80), (89, 80), (90, 90), (120, 90)] {
            let modules = fitting(capability);
            let gemv = modules
                .iter()
                .find(|module| module.name == "gemv_small_batch")
                .unwrap();
            assert_eq!(gemv.capability, expect);
            assert_eq!(modules.len(), 13);
        }
    }
}
