//! Self-test: compares every operation of one device with another device on random inputs of
//! difficult shapes. A new backend, card or driver has to pass it.

mod cases;
mod fast;
mod fused;
mod pair;

pub use pair::{Case, SLAB_BYTES};

use crate::{Device, PassLimits, Result};
use pair::{DevicePair, LIMIT};

/// Limits of the passes that a self-test runs.
pub const LIMITS: PassLimits = PassLimits {
    rows: 256,
    width: 8192,
    generated: 64,
    heads: 64,
    d_head: 128,
    keys: 2048,
};

/// Runs every case, and reports each case when it ends.
pub fn selftest(
    reference: &dyn Device,
    device: &dyn Device,
    seed: u64,
    report: &mut dyn FnMut(Case),
) -> Result<()> {
    let mut pair = DevicePair {
        both: [reference, device],
        random: seed,
        end: 0,
        aligned: false,
        limit: LIMIT,
    };
    for test in cases::ALL.into_iter().chain(fast::ALL).chain(fused::ALL) {
        test(&mut pair, report)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{SLAB_BYTES, selftest};
    use crate::cpu::{CpuDevice, CpuOptions, Isa};

    fn cpu(isa: Option<Isa>) -> CpuDevice {
        let options = CpuOptions {
            threads: Some(1),
            slab_bytes: SLAB_BYTES,
            isa,
        };
        CpuDevice::new(options).unwrap()
    }

    #[test]
    fn instruction_sets_agree_to_the_bit() {
        let (reference, device) = (cpu(Some(Isa::Scalar)), cpu(None));
        let mut cases = 0;
        selftest(&reference, &device, 1, &mut |case| {
            assert_eq!(case.error, 0.0, "{} {}", case.op, case.what);
            cases += 1;
        })
        .unwrap();
        assert!(cases > 150, "{cases}");
    }
}
