//! Text forms: hooks, positions, parts, captures, edits, breakpoints, sizes and model references.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use djinn_engine::{BreakSpec, CaptureSpec, EditSpec, Operand, Part, Positions, Probe, Reduce};
use djinn_hub::{ModelId, ModelPaths, resolve_in};
use djinn_model::{Shape, hook};
use djinn_types::{Amount, Size};

use crate::fixtures;

/// Positions of a session whose captures are counted.
const POSITIONS: usize = 48;
/// Number of prompt tokens of that session.
const PROMPT: usize = 16;

/// Parses every line of the input as every text form.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.lines() {
        probes(line);
        positions(line);
        references(line);
        reads_back::<Amount>(line);
        let _ = line.parse::<Size>().map(|size| size.to_string());
        let _ = line.parse::<Part>();
        let _ = line.parse::<Reduce>();
    }
}

/// Checks that an accepted text is read back from its display.
fn reads_back<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    let Ok(value) = text.parse::<T>() else {
        return;
    };
    let shown = value.to_string();
    match shown.parse::<T>() {
        Ok(again) => assert_eq!(again, value, "{text:?} is shown as {shown:?}"),
        Err(_) => panic!("{text:?} is shown as {shown:?}, which is refused"),
    }
}

fn probes(line: &str) {
    let program = fixtures::program();
    let _ = hook::find(program, line);
    reads_back::<BreakSpec>(line);
    let none: [&str; 0] = [];
    if line.parse::<CaptureSpec>().is_ok()
        && let Ok(probe) = Probe::new(program, &[line], Positions::All, &[])
    {
        probe.captured_bytes(program, 0..POSITIONS, PROMPT);
        probe.captured_hooks();
    }
    if let Ok(edit) = line.parse::<EditSpec>()
        && !matches!(edit.change.operand(), Some(Operand::File { .. }))
    {
        let _ = Probe::new(program, &none, Positions::All, &[edit]);
    }
    if let Ok(spec) = line.parse::<BreakSpec>() {
        let _ = Probe::default().with_breaks(program, &[spec]);
    }
}

fn positions(line: &str) {
    reads_back::<Positions>(line);
    let Ok(positions) = line.parse::<Positions>() else {
        return;
    };
    let selected = (0..POSITIONS).filter(|&p| positions.contains(p, PROMPT));
    assert_eq!(positions.count(POSITIONS, PROMPT), selected.count());
    let _ = positions.within(0..POSITIONS, PROMPT);
}

fn references(line: &str) {
    reads_back::<ModelId>(line);
    if let Ok(id) = line.parse::<ModelId>() {
        assert!(!id.as_str().contains("..") && !id.as_str().starts_with('/'));
    }
    if let Ok(shape) = Shape::parse(line) {
        shape.config_json();
    }
    let paths = ModelPaths {
        home: fixtures::model_folder().to_owned(),
        hf_cache: None,
    };
    let _ = resolve_in(line, &paths);
    let _ = djinn_server::check_name(&djinn_server::default_name(line));
}
