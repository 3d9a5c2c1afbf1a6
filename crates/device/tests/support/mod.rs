//! CPU devices of every instruction set, and images of the slab to run operations on.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use djinn_device::cpu::{CpuDevice, CpuOptions, Isa};
use djinn_device::{Device, DeviceError, Result, Span, Transfers, View};
use djinn_types::DType;
use half::{bf16, f16};

/// Bytes of every slab.
pub const SLAB: usize = 2 << 20;

/// Devices for every instruction set of this machine, with one thread and with all cores. The
/// first is the oracle.
pub fn devices() -> MutexGuard<'static, Vec<CpuDevice>> {
    static DEVICES: OnceLock<Mutex<Vec<CpuDevice>>> = OnceLock::new();
    let devices = DEVICES.get_or_init(|| {
        let cores = djinn_device::host::cores();
        let mut devices = Vec::new();
        for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512] {
            for threads in [1, cores] {
                if isa.is_available() && !(threads == cores && isa == Isa::Avx2) {
                    devices.push(device(isa, threads));
                }
            }
        }
        Mutex::new(devices)
    });
    devices.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn device(isa: Isa, threads: usize) -> CpuDevice {
    let options = CpuOptions {
        threads: Some(threads),
        slab_bytes: SLAB as u64,
        isa: Some(isa),
    };
    CpuDevice::new(options).unwrap()
}

/// Initial bytes of a slab: all ones (NaN, or the id -1) outside of the allocated matrices.
#[derive(Clone)]
pub struct Image {
    pub bytes: Vec<u8>,
    next: usize,
    seed: u64,
}

impl Image {
    pub fn new(seed: u64) -> Self {
        Image {
            bytes: vec![0xff; SLAB],
            next: 0,
            seed: seed | 1,
        }
    }

    pub fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Random number in about -2..2, sometimes zero or tiny.
    pub fn number(&mut self) -> f32 {
        let bits = self.random();
        match bits % 97 {
            0 => 0.0,
            1 => -0.0,
            2 => 1e-41,
            _ => ((bits >> 8) % (1 << 20)) as f32 / (1 << 18) as f32 - 2.0,
        }
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.random() % limit as u64) as usize
    }

    /// Allocates a matrix at a random alignment, with gaps between its rows.
    pub fn room(&mut self, dtype: DType, rows: usize, cols: usize) -> View {
        let (lead, gap) = (self.below(70), self.below(4));
        let view = View {
            stride: cols + gap,
            ..View::new((self.next + lead) as u64, dtype, rows, cols)
        };
        self.next = view.span().end() as usize + 80;
        assert!(self.next < SLAB, "the image is full");
        view
    }

    /// Allocates a matrix of random numbers.
    pub fn floats(&mut self, dtype: DType, rows: usize, cols: usize) -> View {
        let view = self.room(dtype, rows, cols);
        for r in 0..rows {
            for c in 0..cols {
                let number = self.number();
                self.set(view, r, c, number);
            }
        }
        view
    }

    pub fn f32(&mut self, rows: usize, cols: usize) -> View {
        self.floats(DType::F32, rows, cols)
    }

    /// Allocates a matrix of ids.
    pub fn ids(&mut self, rows: usize, cols: usize, ids: impl Fn(usize, usize) -> i32) -> View {
        let view = self.room(DType::I32, rows, cols);
        for r in 0..rows {
            for c in 0..cols {
                let at = place(view, r, c);
                self.bytes[at..at + 4].copy_from_slice(&ids(r, c).to_le_bytes());
            }
        }
        view
    }

    pub fn set(&mut self, view: View, r: usize, c: usize, x: f32) {
        let at = place(view, r, c);
        match view.dtype {
            DType::F32 => self.bytes[at..at + 4].copy_from_slice(&x.to_le_bytes()),
            DType::F16 => {
                self.bytes[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
            }
            DType::Bf16 => {
                self.bytes[at..at + 2].copy_from_slice(&bf16::from_f32(x).to_le_bytes());
            }
            DType::I32 => panic!("not a float"),
        }
    }

    pub fn get(&self, view: View, r: usize, c: usize) -> f64 {
        let at = place(view, r, c);
        let two = [self.bytes[at], self.bytes[at + 1]];
        match view.dtype {
            DType::F32 => f64::from(f32::from_bits(self.bits(view, r, c))),
            DType::F16 => f64::from(f16::from_le_bytes(two)),
            DType::Bf16 => f64::from(bf16::from_le_bytes(two)),
            DType::I32 => f64::from(self.bits(view, r, c) as i32),
        }
    }

    pub fn bits(&self, view: View, r: usize, c: usize) -> u32 {
        let at = place(view, r, c);
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap())
    }

    pub fn row(&self, view: View, r: usize) -> Vec<f64> {
        (0..view.cols).map(|c| self.get(view, r, c)).collect()
    }

    /// Runs an operation and returns the image after it. Every device must give the same bytes
    /// and change only `outs`.
    pub fn after(&self, outs: &[View], op: impl Fn(&dyn Device) -> Result<()>) -> Image {
        let devices = devices();
        let mut images = devices.iter().map(|device| {
            let image = self.on(device, &op);
            (device.info().detail, image)
        });
        let (oracle, after) = images.next().unwrap();
        for (detail, image) in images {
            assert_same(&after, &image, &format!("{detail} is not {oracle}"));
        }
        let mut restored = after.clone();
        for &out in outs.iter().filter(|out| out.cols > 0) {
            for r in 0..out.rows {
                let (at, bytes) = (place(out, r, 0), out.cols * out.dtype.bytes());
                restored.bytes[at..at + bytes].copy_from_slice(&self.bytes[at..at + bytes]);
            }
        }
        assert_same(self, &restored, "an operation wrote where it should not");
        after
    }

    /// Runs an operation on one device and returns the image after it.
    pub fn on(&self, device: &CpuDevice, op: impl Fn(&dyn Device) -> Result<()>) -> Image {
        let span = Span {
            offset: 0,
            bytes: SLAB as u64,
        };
        device
            .upload(djinn_device::Stream::Compute, span, &self.bytes)
            .unwrap();
        op(device).unwrap();
        Image {
            bytes: read(device),
            ..self.clone()
        }
    }

    /// Runs an operation that must fail. Every device must give the same error and leave the
    /// slab unchanged.
    pub fn error(&self, op: impl Fn(&dyn Device) -> Result<()>) -> Refusal {
        let mut errors = Vec::new();
        for device in devices().iter() {
            let error = std::cell::RefCell::new(None);
            let after = self.on(device, |device| {
                *error.borrow_mut() = op(device).err();
                Ok(())
            });
            assert_same(self, &after, "a refused operation wrote");
            errors.push(error.into_inner().expect("the operation is refused"));
        }
        let same = |pair: &[DeviceError]| pair[0].to_string() == pair[1].to_string();
        assert!(errors.windows(2).all(same), "{errors:?}");
        match errors.swap_remove(0) {
            DeviceError::Shape { op, .. } => Refusal::Shape(op),
            DeviceError::OutOfSlab { op, .. } => Refusal::OutOfSlab(op),
            other => panic!("{other:?}"),
        }
    }
}

/// Kind of a refusal, with the name of the refused operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Shape(&'static str),
    OutOfSlab(&'static str),
}

/// Reads all bytes of a slab.
fn read(device: &CpuDevice) -> Vec<u8> {
    let mut ids = vec![0; SLAB / 4];
    let all = View::new(0, DType::I32, 1, SLAB / 4);
    device.download_ids(all, &mut ids).unwrap();
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

fn place(view: View, r: usize, c: usize) -> usize {
    assert!(r < view.rows && c < view.cols);
    view.offset as usize + (r * view.stride + c) * view.dtype.bytes()
}

fn assert_same(want: &Image, got: &Image, message: &str) {
    if want.bytes != got.bytes {
        let at = (0..SLAB).find(|&i| want.bytes[i] != got.bytes[i]).unwrap();
        panic!("{message}: first at byte {at}");
    }
}

/// Asserts that a result is near its reference, for terms of magnitude `size`.
pub fn assert_near(got: f64, want: f64, size: f64, what: &str) {
    let error = (got - want).abs();
    assert!(
        error <= 2e-6 * size.max(1e-30),
        "{what}: {got}, not {want} (terms of {size})"
    );
}

pub const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
