//! Tests of a card that fails or hangs. A card that took a trap is unusable for its process, so each
//! test runs its own program again as a process. Without a card the tests do nothing.

#![cfg(feature = "faults")]
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use djinn_device::cuda::CudaBackend;
use djinn_device::testing::{Fault, FaultSwitch, FaultyBackend};
use djinn_device::{Backend, Device, PassLimits, Span, Stream, View};
use djinn_types::DType;

/// Environment variable of child processes; without it their tests do nothing.
const CHILD: &str = "DJINN_FAULTS_CHILD";

/// Runs one test of this program in a process of its own, if there is a card.
fn in_a_process(test: &str) {
    if CudaBackend::new(0).is_err() {
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{error}");
    assert!(said.contains("the end is reached"), "{said}{error}");
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn open() -> (FaultyBackend, FaultSwitch, Arc<dyn Device>) {
    let switch = FaultSwitch::default();
    let card: Arc<dyn Backend> = Arc::new(CudaBackend::new(0).unwrap());
    let backend = FaultyBackend::new(card, switch.clone());
    let device = backend.open(1 << 20, PassLimits::default()).unwrap();
    (backend, switch, device)
}

fn views() -> [View; 2] {
    [0, 256].map(|offset| View::new(offset, DType::F32, 1, 4))
}

#[test]
fn child_takes_a_trap() {
    if !is_child() {
        return;
    }
    let (backend, switch, device) = open();
    let [x, y] = views();
    let host = device.host_slab(1 << 20).unwrap();
    host.seal().unwrap();
    device.add(x, y).unwrap();
    device.synchronize(Stream::Compute).unwrap();
    switch.set(Fault::Trap);
    let _ = device.add(x, y);
    let span = Span {
        offset: 0,
        bytes: 1 << 20,
    };
    let _ = device.copy_out(Stream::Compute, span, &host, 0);
    for _ in 0..2 {
        let error = device.synchronize(Stream::Compute).unwrap_err();
        assert!(error.is_sticky(), "{error:?}");
    }
    let errors = [
        device.add(x, y).unwrap_err(),
        device.record(Stream::Copy).map(drop).unwrap_err(),
        device.download(x, &mut [0.0; 4]).unwrap_err(),
        device.load(span, &mut |_| Ok(())).unwrap_err(),
        backend
            .open(1 << 20, PassLimits::default())
            .map(drop)
            .unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_sticky(), "{error:?}");
    }
    // Health checks still work or fail, but they do not block.
    let _ = (backend.free_memory(), backend.overhead());
    drop(host);
    drop(device);
    drop(backend);
    println!("\nthe end is reached");
}

#[test]
fn a_trap_is_a_sticky_error_and_the_device_can_be_dropped() {
    in_a_process("child_takes_a_trap");
}

#[test]
fn child_hangs() {
    if !is_child() {
        return;
    }
    let (backend, switch, device) = open();
    let [x, y] = views();
    switch.set(Fault::Hang);
    let (done, is_done) = channel();
    let pass = Arc::clone(&device);
    let thread = std::thread::spawn(move || {
        pass.add(x, y).unwrap();
        done.send(pass.synchronize(Stream::Compute).is_ok())
            .unwrap();
    });
    assert!(is_done.recv_timeout(Duration::from_millis(500)).is_err());
    // Health checks do not wait for the pass.
    assert!(!device.info().name.is_empty());
    assert!(backend.free_memory().unwrap() > 0);
    assert!(backend.overhead() > 0);
    let card = backend.card().unwrap();
    assert!(card.memory().unwrap().1 > 0);
    let _ = card.used();
    // Another stream still copies.
    let span = Span {
        offset: 4096,
        bytes: 4096,
    };
    device
        .load(span, &mut |bytes| {
            bytes.fill(1);
            Ok(())
        })
        .unwrap();
    switch.clear();
    assert_eq!(is_done.recv(), Ok(true));
    thread.join().unwrap();
    device.add(x, y).unwrap();
    device.synchronize(Stream::Compute).unwrap();
    println!("\nthe end is reached");
}

#[test]
fn a_hang_blocks_the_waiting_thread_alone() {
    in_a_process("child_hangs");
}
