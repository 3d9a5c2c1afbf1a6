//! The rules, applied to this workspace.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use djinn_tidy::{Crate, TypeName, cycles, impl_files, prose_faults, type_names};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("workspace root")
}

fn workspace() -> Vec<Crate> {
    djinn_tidy::workspace(&root()).expect("sources parse")
}

#[test]
fn modules_do_not_import_each_other_in_cycles() {
    let mut found = Vec::new();
    for of in &workspace() {
        for cycle in cycles(of) {
            found.push(format!("{}: {}", of.name, cycle.join(", ")));
        }
    }
    assert!(found.is_empty(), "import cycles:\n{}", found.join("\n"));
}

#[test]
fn a_type_name_means_one_thing() {
    let mut names: BTreeMap<String, Vec<TypeName>> = BTreeMap::new();
    for of in workspace() {
        for found in type_names(&of) {
            names.entry(found.name.clone()).or_default().push(found);
        }
    }
    let repeated: Vec<String> = names
        .into_iter()
        .filter(|(name, _)| name != "Result" && name != "Error")
        .filter(|(_, places)| places.len() > 1)
        .map(|(name, places)| {
            let places = places
                .iter()
                .map(|at| format!("{}:{}", at.file.display(), at.line));
            format!("{name}: {}", places.collect::<Vec<_>>().join(" "))
        })
        .collect();
    assert!(
        repeated.is_empty(),
        "{} names:\n{}",
        repeated.len(),
        repeated.join("\n")
    );
}

#[test]
fn the_engine_is_implemented_in_one_file() {
    let crates = workspace();
    let engine = crates
        .iter()
        .find(|of| of.name == "engine")
        .expect("crates/engine");
    let files = impl_files(engine, "Engine");
    assert_eq!(files, [Path::new("crates/engine/src/engine.rs")]);
}

#[test]
fn prose_names_its_subjects() {
    let faults = prose_faults(&root()).expect("sources are readable");
    let lines = faults
        .iter()
        .map(|at| format!("{}:{}: {}", at.file.display(), at.line, at.found));
    let lines: Vec<String> = lines.collect();
    assert!(
        lines.is_empty(),
        "{} lines:\n{}",
        lines.len(),
        lines.join("\n")
    );
}

#[test]
fn the_architecture_document_names_existing_files() {
    let root = root();
    let text = std::fs::read_to_string(root.join("docs/ARCHITECTURE.md")).expect("the document");
    let quoted = text.split('`').skip(1).step_by(2);
    let paths: Vec<&str> = quoted.filter(|quote| quote.contains("/src/")).collect();
    assert!(paths.len() > 50, "only {} paths found", paths.len());
    let missing: Vec<&str> = paths
        .into_iter()
        .filter(|path| !root.join(path).exists() && !root.join("crates").join(path).exists())
        .collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
}
