//! The table and the picture of plans that this machine may not be able to make.

use djinn_client::v1;

use super::{
    lines::PlannedMemory,
    memory_line::{MemoryLine, PlanTier, Purpose},
    picture::svg,
};

const MB: u64 = 1_000_000;
const PAGE: u64 = MB / 2;

/// Plan on a card with 100 MB: 40 pages on the device, 10 in host memory.
fn card_plan() -> v1::PlanReply {
    v1::PlanReply {
        model: "small".to_owned(),
        budget_bytes: 100 * MB,
        host_budget_bytes: 1000 * MB,
        memory: Some(v1::ModelMemory {
            resident_bytes: 50 * MB,
            kv_bytes: 40 * PAGE,
            activations_bytes: 5 * MB,
            scratch_bytes: 2 * MB,
            driver_bytes: 3 * MB,
            total_bytes: 80 * MB,
            ..v1::ModelMemory::default()
        }),
        sizing: Some(v1::PlanSizing {
            page_bytes: PAGE,
            page_tokens: 16,
            device_pages: 40,
            most_device_pages: 40,
            host_pages: 10,
            context_reason: "context 512".to_owned(),
            ..v1::PlanSizing::default()
        }),
        limits: Some(v1::ModelLimits {
            rows: 64,
            ..v1::ModelLimits::default()
        }),
        ..v1::PlanReply::default()
    }
}

/// Planned memory of one model whose plan is changed.
fn planned(change: impl FnOnce(&mut v1::ModelMemory, &mut v1::PlanSizing)) -> PlannedMemory {
    let mut plan = card_plan();
    let (mut memory, mut sizing) = (
        plan.memory.unwrap_or_default(),
        plan.sizing.take().unwrap_or_default(),
    );
    change(&mut memory, &mut sizing);
    let plan = v1::PlanReply {
        memory: Some(memory),
        sizing: Some(sizing),
        ..plan
    };
    PlannedMemory::of(&[("small".to_owned(), plan)], 100 * MB)
}

fn line(memory: &PlannedMemory, tier: PlanTier, purpose: Purpose) -> Option<&MemoryLine> {
    memory.tier(tier).find(|line| line.purpose == purpose)
}

/// Checks the bytes of a line, and that its explanation contains all of `parts`.
#[track_caller]
fn check(memory: &PlannedMemory, at: (PlanTier, Purpose), bytes: u64, parts: &[&str]) {
    let text = memory.text();
    let line = line(memory, at.0, at.1).unwrap_or_else(|| panic!("no {at:?} in\n{text}"));
    assert_eq!(line.bytes, bytes, "{at:?}");
    for part in parts {
        assert!(line.why.contains(part), "'{part}' is not in: {}", line.why);
    }
    assert!(text.contains(&line.why), "{text}");
    let picture = svg(memory);
    assert!(
        picture.contains(&line.why),
        "'{}' is cut in the picture",
        line.why
    );
}

/// Bytes of the parts that the picture draws with a class, and their shares of the bar.
fn drawn(memory: &PlannedMemory, class: &str) -> Vec<(u64, f64)> {
    let picture = svg(memory);
    let document = roxmltree::Document::parse(&picture).expect("the picture is XML");
    let number = |node: &roxmltree::Node<'_, '_>, name: &str| {
        let text = node.attribute(name).unwrap_or_default();
        text.parse::<f64>()
            .unwrap_or_else(|_| panic!("{name}: {text}"))
    };
    let of_class = |class: &str| {
        let wanted = format!("part {class}");
        let nodes = document.descendants();
        let nodes = nodes.filter(move |node| node.attribute("class") == Some(wanted.as_str()));
        nodes.collect::<Vec<_>>()
    };
    let mut frames = document.descendants();
    let frame = frames.find(|node| node.attribute("class") == Some("frame"));
    let whole = number(&frame.expect("the picture has a bar"), "width");
    let part = |node: &roxmltree::Node<'_, '_>| {
        (
            number(node, "data-bytes") as u64,
            number(node, "width") / whole,
        )
    };
    of_class(class).iter().map(part).collect()
}

fn device_bytes(memory: &PlannedMemory) -> u64 {
    memory.tier(PlanTier::Device).map(|line| line.bytes).sum()
}

#[test]
fn a_plan_in_which_everything_fits_has_no_special_lines() {
    let memory = planned(|_, _| {});
    let device = PlanTier::Device;
    check(
        &memory,
        (device, Purpose::Resident),
        50 * MB,
        &["all weights fit"],
    );
    check(
        &memory,
        (device, Purpose::Kv),
        20 * MB,
        &["40 pages of 16 tokens"],
    );
    check(
        &memory,
        (PlanTier::Host, Purpose::Kv),
        5 * MB,
        &["10 pages of sessions that wait"],
    );
    for purpose in [Purpose::Yields, Purpose::Window, Purpose::HostCopy] {
        for tier in PlanTier::ALL {
            assert!(
                line(&memory, tier, purpose).is_none(),
                "{purpose:?} {tier:?}"
            );
        }
    }
    assert_eq!(memory.turns_note(), None);
    assert_eq!(device_bytes(&memory), 100 * MB);
}

#[test]
fn the_kv_window_is_apart_from_the_pages_of_the_device() {
    let memory = planned(|memory, sizing| {
        memory.kv_bytes += 4 * MB;
        sizing.kv_window_bytes = 4 * MB;
        sizing.streamed_pages = 8;
    });
    let device = PlanTier::Device;
    check(
        &memory,
        (device, Purpose::Kv),
        40 * PAGE,
        &["40 pages", "500.0 kB each"],
    );
    check(
        &memory,
        (device, Purpose::Window),
        4 * MB,
        &["stream through it", "8 of a full session"],
    );
    let host = (PlanTier::Host, Purpose::Kv);
    check(
        &memory,
        host,
        5 * MB,
        &["10 pages", "that stream in every pass"],
    );
    assert_eq!(device_bytes(&memory), 100 * MB);
    assert_eq!(drawn(&memory, "window"), [(4 * MB, 0.04)]);
}

#[test]
fn weights_that_may_yield_are_apart_from_those_that_stay() {
    let memory = planned(|memory, sizing| {
        memory.ring_bytes = 3 * MB;
        sizing.yield_bytes = 30 * MB;
        sizing.most_device_pages = 100;
        sizing.host_weights_bytes = 30 * MB;
    });
    let device = PlanTier::Device;
    check(
        &memory,
        (device, Purpose::Resident),
        20 * MB,
        &["at any load"],
    );
    check(
        &memory,
        (device, Purpose::Yields),
        30 * MB,
        &["KV pages", "up to 100"],
    );
    check(
        &memory,
        (device, Purpose::Ring),
        3 * MB,
        &["yielded stream through it"],
    );
    let host = (PlanTier::Host, Purpose::Streamed);
    check(&memory, host, 30 * MB, &["may yield"]);
    assert!(
        !memory.text().contains("all weights fit"),
        "{}",
        memory.text()
    );
    assert_eq!(device_bytes(&memory), 100 * MB);
    assert_eq!(drawn(&memory, "yields"), [(30 * MB, 0.3)]);
}

#[test]
fn a_host_copy_is_not_copied_in_every_pass() {
    let memory = planned(|_, sizing| {
        sizing.host_weights_bytes = 50 * MB;
        sizing.host_copy = true;
    });
    let host = PlanTier::Host;
    check(
        &memory,
        (host, Purpose::HostCopy),
        50 * MB,
        &["returns to the device"],
    );
    check(&memory, (host, Purpose::Kv), 5 * MB, &["off the device"]);
    assert!(line(&memory, host, Purpose::Streamed).is_none());
    assert!(
        !memory.text().contains("in every pass"),
        "{}",
        memory.text()
    );
    let weights: Vec<u64> = drawn(&memory, "weights")
        .iter()
        .map(|part| part.0)
        .collect();
    assert_eq!(weights, [50 * MB; 2], "resident weights, and their copy");
}

#[test]
fn models_that_take_turns_are_named_as_such() {
    let plans = ["a", "b"].map(|name| (name.to_owned(), card_plan()));
    let fit = PlannedMemory::of(&plans, 160 * MB);
    assert_eq!((fit.turns_note(), fit.in_turns), (None, None));
    let memory = PlannedMemory::of(&plans, 100 * MB);
    let note = memory.turns_note().expect("160 MB exceed 100 MB");
    assert!(note.contains("160.0 MB of 100.0 MB"), "{note}");
    assert!(
        memory.text().ends_with(&format!("{note}\n")),
        "{}",
        memory.text()
    );
    assert!(line(&memory, PlanTier::Device, Purpose::Free).is_none());
    let picture = svg(&memory);
    assert!(picture.contains(&note), "{picture}");
    assert!(picture.contains("100.0 MB in turns"), "{picture}");
    // The bar stands for the memory of all models together, so that no part lies outside it.
    assert_eq!(drawn(&memory, "kv")[..2], [(20 * MB, 0.125); 2]);
}
