//! Kernels that fail or never end, for tests. They are not part of the kernels that a card loads.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::driver::DriverContext;
use super::pinned::Pinned;
use crate::Result;
use crate::fault::{Fault, FaultSwitch};

/// `fault_trap` fails. `fault_hang` runs until the word at `word` is not zero.
const PTX: &str = "
.version 7.0
.target sm_80
.address_size 64

.visible .entry fault_trap(.param .u64 word)
{
    trap;
    ret;
}

.visible .entry fault_hang(.param .u64 word)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [word];
    cvta.to.global.u64 %rd2, %rd1;
AGAIN:
    ld.volatile.global.u32 %r1, [%rd2];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ret;
}
";

/// Kernels that break a device.
pub(super) struct FaultKernels {
    trap: sys::CUfunction,
    hang: sys::CUfunction,
    /// Pinned word that ends a hang.
    word: Arc<Pinned>,
}

// SAFETY: the fields are handles of the driver, which allows their use from any thread, and memory
// that only volatile accesses use.
unsafe impl Send for FaultKernels {}
// SAFETY: the argument for `Send` also holds for `Sync`.
unsafe impl Sync for FaultKernels {}

impl FaultKernels {
    /// Compiles the kernels in the current context. They stay loaded until the process ends.
    pub(super) fn load() -> Result<Self> {
        let text = CString::new(PTX).expect("PTX is text");
        // SAFETY: text that ends with a zero.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }
            .context("compiling the kernels of a test")?;
        let function = |name: &str| {
            let name = CString::new(name).expect("names are text");
            // SAFETY: a module just loaded, which is never unloaded.
            unsafe { result::module::get_function(module, name) }.context("looking up a kernel")
        };
        Ok(FaultKernels {
            trap: function("fault_trap")?,
            hang: function("fault_hang")?,
            word: Arc::new(Pinned::new(4)?),
        })
    }

    /// Launches a kernel that breaks the device on a stream. A hang ends when the switch is
    /// cleared.
    pub(super) fn launch(
        &self,
        fault: Fault,
        switch: &FaultSwitch,
        stream: sys::CUstream,
    ) -> Result<()> {
        let function = match fault {
            Fault::Trap => self.trap,
            Fault::Hang => {
                write_word(&self.word, 0);
                end_with(switch, &self.word)?;
                self.hang
            }
        };
        let mut word = self.word.start as u64;
        let mut arguments = [(&raw mut word).cast::<c_void>()];
        // SAFETY: a kernel with one parameter of eight bytes. The word lives as long as the device,
        // which waits for the stream before it drops.
        unsafe {
            sys::cuLaunchKernel(
                function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
        .context("launching a kernel")
    }
}

fn write_word(word: &Pinned, value: u32) {
    // SAFETY: four bytes of pinned memory, aligned to a page. Only volatile accesses use them.
    unsafe { word.start.cast::<u32>().write_volatile(value) };
}

/// Starts a thread that ends the hang when the switch is cleared.
fn end_with(switch: &FaultSwitch, word: &Arc<Pinned>) -> Result<()> {
    let (switch, word) = (switch.clone(), Arc::clone(word));
    let wait = move || {
        switch.wait_while_hanging();
        write_word(&word, 1);
    };
    let thread = std::thread::Builder::new().name("djinn-fault".into());
    thread.spawn(wait)?;
    Ok(())
}
