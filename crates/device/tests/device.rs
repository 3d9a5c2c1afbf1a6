//! Tests of opening a device, of copies in and out, and of streams.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::io;

use djinn_device::cpu::{CpuDevice, CpuOptions, Isa};
use djinn_device::host;
use djinn_device::{Device, DeviceError, Span, Stream, Streams, Transfers, View};
use djinn_types::DType;

fn device(slab_bytes: u64) -> CpuDevice {
    CpuDevice::new(CpuOptions {
        slab_bytes,
        ..CpuOptions::default()
    })
    .unwrap()
}

#[test]
fn a_device_describes_itself() {
    let info = device(1 << 20).info();
    assert_eq!(info.name, "cpu");
    let threads = format!("{} thread", host::cores());
    assert!(info.detail.contains(&threads), "{}", info.detail);
    assert!(info.detail.starts_with(&Isa::detect().to_string()));
    assert_eq!(info.slab_bytes, 1 << 20);
}

#[test]
fn unavailable_options_are_refused() {
    let setup = |options: CpuOptions| match CpuDevice::new(options) {
        Err(DeviceError::Setup(reason)) => reason,
        other => panic!("{:?}", other.err()),
    };
    let cores = host::cores();
    for threads in [0, cores + 1] {
        let reason = setup(CpuOptions {
            threads: Some(threads),
            ..CpuOptions::default()
        });
        assert!(reason.contains(&format!("--threads {threads}")), "{reason}");
    }
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
        let reason = setup(CpuOptions {
            isa: Some(isa),
            ..CpuOptions::default()
        });
        assert!(reason.contains(&isa.to_string()), "{reason}");
    }
    let huge = CpuOptions {
        slab_bytes: u64::MAX / 2,
        ..CpuOptions::default()
    };
    assert!(matches!(
        CpuDevice::new(huge),
        Err(DeviceError::NoMemory { .. })
    ));
}

#[test]
fn an_untouched_slab_takes_no_memory() {
    let before = host::rss_bytes().unwrap_or(0);
    let device = device(4 << 30);
    assert!(host::rss_bytes().unwrap_or(0) < before + (64 << 20));
    let zeros = View::new((4 << 30) - 8, DType::F32, 1, 2);
    let mut out = [1.0; 2];
    device.download(zeros, &mut out).unwrap();
    assert_eq!(out, [0.0; 2]);
}

#[test]
fn a_load_fills_all_of_a_span_and_nothing_else() {
    let device = device(40 << 20);
    let span = Span {
        offset: 4 * 999,
        bytes: 4 * (8 << 20) + 4,
    };
    let mut fill = |bytes: &mut [u8]| {
        for (i, word) in bytes.chunks_mut(4).enumerate() {
            word.copy_from_slice(&(i as u32 + 1).to_le_bytes());
        }
        Ok(())
    };
    device.load(span, &mut fill).unwrap();
    let mut words = vec![0; 10 << 20];
    device
        .download_ids(View::new(0, DType::I32, 1, 10 << 20), &mut words)
        .unwrap();
    let (first, count) = (999, (8 << 20) + 1);
    assert!(words[..first].iter().all(|&word| word == 0));
    assert!(
        words[first..first + count]
            .iter()
            .zip(1..)
            .all(|(&word, want)| word == want)
    );
    assert!(words[first + count..].iter().all(|&word| word == 0));
}

#[test]
fn a_failed_load_returns_its_error() {
    let device = device(64 << 20);
    let span = Span {
        offset: 0,
        bytes: 64 << 20,
    };
    let error = device.load(span, &mut |_| Err(io::Error::other("the disk is gone")));
    assert_eq!(error.unwrap_err().to_string(), "the disk is gone");
    let error = device.load(Span { offset: 1, ..span }, &mut |_| {
        panic!("must not be called")
    });
    assert!(matches!(
        error,
        Err(DeviceError::OutOfSlab { op: "load", .. })
    ));
}

#[test]
fn copies_are_checked() {
    let device = device(4096);
    let span = Span {
        offset: 100,
        bytes: 8,
    };
    device
        .upload(Stream::Copy, span, &[1, 0, 0, 0, 2, 0, 0, 0])
        .unwrap();
    let mut ids = [0; 2];
    device
        .download_ids(View::new(100, DType::I32, 2, 1), &mut ids)
        .unwrap();
    assert_eq!(ids, [1, 2]);
    assert!(device.upload(Stream::Copy, span, &[0; 7]).is_err());
    assert!(
        device
            .upload(
                Stream::Copy,
                Span {
                    offset: 4090,
                    bytes: 8
                },
                &[0; 8]
            )
            .is_err()
    );
    assert!(
        device
            .download_ids(View::new(0, DType::I32, 2, 2), &mut ids)
            .is_err()
    );
    assert!(
        device
            .download_ids(View::new(0, DType::F32, 1, 2), &mut ids)
            .is_err()
    );
    assert!(
        device
            .download(View::new(4092, DType::F32, 1, 2), &mut [0.0; 2])
            .is_err()
    );
}

#[test]
fn streams_are_idle_when_calls_return() {
    let device = device(64);
    let first = device.record(Stream::Copy).unwrap();
    let second = device.record(Stream::Compute).unwrap();
    device.wait(Stream::Compute, &first).unwrap();
    device.wait_here(&second).unwrap();
    assert!(device.seconds_between(&first, &second).unwrap() >= 0.0);
    device.synchronize(Stream::Compute).unwrap();
    device.synchronize(Stream::Copy).unwrap();
}

#[test]
fn memory_bandwidth_is_plausible() {
    let rate = 1e-9 * device(0).read_bandwidth(8 << 20).unwrap();
    assert!(rate > 0.05 && rate < 10_000.0, "{rate} GB/s");
}
