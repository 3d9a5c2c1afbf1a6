//! Instruction sets, and the dispatch of kernels to them.

use std::fmt;
use std::str::FromStr;

use super::lanes::{Kernel, Scalar, Simd};

/// Instruction set that the kernels are compiled for. All sets give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// AVX-512 F, BW, VL, DQ.
    Avx512,
    /// AVX2, FMA and F16C.
    Avx2,
    /// No vector instructions: slow and portable. This code is the oracle of the other sets.
    Scalar,
}

impl Isa {
    /// All instruction sets, best first.
    pub const ALL: [Isa; 3] = [Isa::Avx512, Isa::Avx2, Isa::Scalar];

    /// Returns the best instruction set of this machine.
    pub fn detect() -> Isa {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.is_available())
            .unwrap_or(Isa::Scalar)
    }

    /// Returns whether this machine has the instruction set.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx512 | Isa::Avx2 => false,
            Isa::Scalar => true,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Scalar => "scalar",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.name() == text)
            .ok_or_else(|| format!("unknown instruction set '{text}'; use avx512, avx2 or scalar"))
    }
}

/// An instruction set that this machine has: proof that its kernels may run.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimdEngine(Isa);

impl SimdEngine {
    /// Creates the proof; `None` if this machine lacks the instruction set.
    pub(super) fn new(isa: Isa) -> Option<Self> {
        isa.is_available().then_some(SimdEngine(isa))
    }

    pub(super) fn isa(self) -> Isa {
        self.0
    }

    /// Runs a kernel.
    #[inline]
    pub(super) fn run<K: Kernel>(self, kernel: K) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `SimdEngine` exists only for instructions the machine has.
            Isa::Avx512 => unsafe { super::avx512::enter(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `SimdEngine` exists only for instructions the machine has.
            Isa::Avx2 => unsafe { super::avx2::enter(kernel) },
            _ => Scalar.call(kernel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse(), Ok(isa));
        }
        assert!("sse9".parse::<Isa>().is_err());
        assert!(Isa::detect().is_available());
    }
}
