//! A whole report, from result files to pages and pictures.

#![allow(clippy::unwrap_used, missing_docs)]

mod samples;

use std::{fs, path::Path};

use djinn_report::{
    Baseline, BaselineStatus, Experiment, MetricChange, MissingData, ReportError, ResultFile,
    ResultSet, RunRecord, compare, measurements_table, summary_table,
};
use roxmltree::Document;
use tiny_skia::Pixmap;

const FIGURES: [&str; 6] = [
    "effective_bandwidth_comparison",
    "latency_timeline",
    "memory_usage",
    "figure6_memory_virtualization",
    "figure7_resume_latency",
    "agents_latency",
];

/// A change that makes a result invalid.
type Break = fn(&mut ResultFile);

fn stored(folder: &Path, results: Vec<ResultFile>) {
    for (i, mut result) in results.into_iter().enumerate() {
        result.write(&folder.join(format!("{i}.json"))).unwrap();
    }
}

fn written(set: &ResultSet, folder: &Path) -> djinn_report::WrittenReport {
    set.write(folder, None, &mut |_| {}).unwrap()
}

#[test]
fn a_report_contains_all_figures_and_values() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("in"), dir.path().join("out"));
    stored(&from, samples::all());
    fs::write(
        from.join("result.schema.json"),
        djinn_report::schema().to_string(),
    )
    .unwrap();
    let set = ResultSet::read(&[from.clone(), from.join("0.json")]).unwrap();
    assert_eq!(
        set.results().len(),
        6,
        "a file that is given twice counts once"
    );
    let mut steps = 0;
    let done = set
        .write(&to, Some(&compare(&set, &set)), &mut |_| steps += 1)
        .unwrap();
    assert!(done.pass && set.pass(), "{}", set.verdict_table());
    assert!(done.left_out.is_empty() && steps > 6);
    assert_eq!(done.files.len(), 18 + 3);
    for name in FIGURES {
        figure(&to, name);
    }
    let analysis = fs::read_to_string(to.join("analysis.md")).unwrap();
    let html = fs::read_to_string(to.join("report.html")).unwrap();
    let ours = set.results().next().unwrap();
    let bandwidth = ours.summary.metrics["effective_bandwidth_gbps"].median;
    for page in [&analysis, &html] {
        for value in [
            format!("{bandwidth:.1} GB/s"),
            "0123abc".to_owned(),
            "55.3 GB/s without compute".to_owned(),
            "150 of 150, in all runs".to_owned(),
            "the package is not installed here".to_owned(),
            "CUDA out of memory while loading layer 21 of 40".to_owned(),
            "Overall: ".to_owned(),
            "llama.cpp is better".to_owned(),
        ] {
            assert!(page.contains(&value), "{value}");
        }
        assert!(!page.contains("FAIL"));
    }
    for name in FIGURES {
        assert!(analysis.contains(&format!("({name}.svg)")), "{name}");
        assert!(
            html.contains(&format!("<figure id=\"{name}\">\n<svg")),
            "{name}"
        );
    }
    assert!(!html.contains("<script") && !html.contains(" src="));
    assert!(html.contains("Comparison with earlier results"));
    assert!(
        fs::read_to_string(to.join("comparison.md"))
            .unwrap()
            .contains("within noise")
    );
}

/// Checks that a figure exists as SVG, PNG and PDF, and is not blank.
fn figure(folder: &Path, name: &str) {
    let svg = fs::read_to_string(folder.join(format!("{name}.svg"))).unwrap();
    assert!(svg.len() < 200_000, "{name} has {} bytes", svg.len());
    let parsed = Document::parse(&svg).unwrap();
    let size = |name: &str| parsed.root_element().attribute(name).unwrap();
    let pixels = Pixmap::load_png(folder.join(format!("{name}.png"))).unwrap();
    let scale = 200.0 / 96.0;
    let near = |pixels: u32, units: f32| (pixels as f32 - units * scale).abs() <= 1.0;
    let (w, h) = (
        size("width").parse().unwrap(),
        size("height").parse().unwrap(),
    );
    assert!(
        near(pixels.width(), w) && near(pixels.height(), h),
        "{name}: {w} × {h}"
    );
    let inked = pixels
        .pixels()
        .iter()
        .filter(|pixel| pixel.red() < 250 || pixel.blue() < 250)
        .count();
    assert!(
        inked * 100 > pixels.pixels().len(),
        "{name} is nearly blank: {inked}"
    );
    assert!(
        pixels.pixels().iter().all(|pixel| pixel.alpha() == 255),
        "{name} is transparent"
    );
    let pdf = fs::read(folder.join(format!("{name}.pdf"))).unwrap();
    let text = String::from_utf8_lossy(&pdf);
    assert!(
        text.starts_with("%PDF") && text.contains("/FontFile2") && text.contains("/Inter-Regular"),
        "{name}"
    );
}

#[test]
fn invalid_results_fail_on_every_page() {
    let breaks: [(&str, Break); 3] = [
        ("norm 5", |result| result.runs[1].logit_norm = Some(5.0)),
        ("tokens differ", |result| {
            result.runs[0].tokens_match = Some(false);
        }),
        ("device memory within", |result| {
            result.runs[0].vram_used_mb = Some(17_000.0);
        }),
    ];
    for (expect, broken) in breaks {
        let dir = tempfile::tempdir().unwrap();
        let mut result = samples::virtual_memory("broken", "m", 26.0);
        broken(&mut result);
        let set = ResultSet::of(vec![result, samples::steering("good")]);
        let done = written(&set, dir.path());
        assert!(!done.pass);
        for page in ["analysis.md", "report.html"] {
            let text = fs::read_to_string(dir.path().join(page)).unwrap();
            assert!(
                text.contains("FAIL") && text.contains(expect),
                "{page}: {expect}"
            );
            assert!(text.contains("1 of 2 results failed"), "{page}");
        }
        let table = set.verdict_table();
        assert!(
            table.contains("FAIL  virtual-memory") && table.contains("PASS  steering"),
            "{table}"
        );
        assert!(table.contains(expect), "{table}");
        assert!(measurements_table(&set).contains("invalid: checks failed"));
    }
}

#[test]
fn a_lost_session_fails_the_result() {
    let mut result = samples::memory_pressure("lost", 50);
    result.runs[2].sessions_completed = Some(49);
    let set = ResultSet::of(vec![result]);
    assert!(!set.pass());
    assert!(
        set.verdict_table().contains("49 of 50"),
        "{}",
        set.verdict_table()
    );
}

#[test]
fn figures_without_data_are_omitted_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let mut result = samples::virtual_memory("only", "m", 26.0);
    (result.timeline, result.memory) = (None, Vec::new());
    let done = written(&ResultSet::of(vec![result]), dir.path());
    let left: Vec<&str> = done
        .left_out
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(left, FIGURES[1..], "all but the first");
    assert_eq!(done.left_out[0].1, MissingData::Timeline);
    let agents = MissingData::Experiment(&[Experiment::Agents]);
    assert_eq!(done.left_out[4].1, agents);
    let analysis = fs::read_to_string(dir.path().join("analysis.md")).unwrap();
    assert!(analysis.contains("`latency_timeline`: no virtual-memory result has a timeline"));
    assert!(analysis.contains("`agents_latency`: there is no agents result"));
    assert!(!dir.path().join("agents_latency.svg").exists());
}

#[test]
fn files_that_are_not_results_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let none = ResultSet::read(&[dir.path().to_owned()]).unwrap_err();
    assert!(matches!(none, ReportError::NoResults { .. }), "{none}");
    stored(dir.path(), vec![samples::steering("good")]);
    fs::write(dir.path().join("readme.txt"), "not JSON").unwrap();
    assert_eq!(
        ResultSet::read(&[dir.path().to_owned()])
            .unwrap()
            .results()
            .len(),
        1
    );
    fs::write(dir.path().join("other.json"), "{\"a\": 1}").unwrap();
    let error = ResultSet::read(&[dir.path().to_owned()]).unwrap_err();
    let ReportError::Schema { path, .. } = &error else {
        panic!("{error}");
    };
    assert!(path.ends_with("other.json"), "{error}");
    let gone = ResultSet::read(&[dir.path().join("gone.json")]).unwrap_err();
    assert!(matches!(gone, ReportError::File { .. }), "{gone}");
}

#[test]
fn the_order_of_results_does_not_depend_on_files() {
    let names = |set: &ResultSet| {
        set.results()
            .map(|result| result.name.clone())
            .collect::<Vec<_>>()
    };
    let mut backwards = samples::all();
    backwards.reverse();
    assert_eq!(
        names(&ResultSet::of(samples::all())),
        names(&ResultSet::of(backwards))
    );
}

#[test]
fn results_are_compared_with_earlier_ones() {
    let slower = |result: &mut ResultFile| {
        for run in &mut result.runs {
            run.per_token_ms = run.per_token_ms.map(|ms| ms * 2.0);
        }
    };
    let old = ResultSet::of(vec![
        samples::virtual_memory("a", "m", 26.0),
        samples::steering("gone"),
    ]);
    let mut changed = samples::virtual_memory("a", "m", 26.0);
    slower(&mut changed);
    changed.baselines.remove(0);
    let new = ResultSet::of(vec![changed, samples::agents("new")]);
    let comparison = compare(&old, &new);
    assert!(comparison.worse() && !compare(&old, &old).worse());
    let per_token = comparison.rows.iter();
    let per_token =
        per_token.filter(|row| row.metric == "time per token" && row.contender == "Djinn");
    let per_token: Vec<_> = per_token.map(|row| (row.change, row.share())).collect();
    assert_eq!(per_token, [(MetricChange::Worse, Some(1.0))]);
    let terminal = comparison.terminal();
    assert!(
        terminal.contains("worse   virtual-memory a (m), Djinn: time per token"),
        "{terminal}"
    );
    assert!(terminal.contains("(+100.0 %)"), "{terminal}");
    assert!(
        terminal.contains("agents new (shapes/llama-7b): only in the new results"),
        "{terminal}"
    );
    assert!(
        terminal.contains("steering gone (models/stories-7m): only in the old results"),
        "{terminal}"
    );
    assert!(
        terminal.contains("ring_buffer_no_prefetch: only in the old results"),
        "{terminal}"
    );
    let markdown = comparison.markdown();
    assert!(markdown.contains("| +100.0 % | **worse** |"), "{markdown}");
    assert!(
        markdown.contains("2 combined standard deviations"),
        "{markdown}"
    );
    let backwards = compare(&new, &old).terminal();
    assert!(
        backwards.contains("better  virtual-memory a (m), Djinn: time per token"),
        "{backwards}"
    );
}

#[test]
fn the_readme_table_has_every_experiment() {
    let table = measurements_table(&ResultSet::of(samples::all()));
    for row in [
        "| Measurement | Djinn | Compared with (speed-up of Djinn) |",
        "| time per token, llama-13b in 16 GB |",
        "; Accelerate: ",
        "PCIe 5 x16 without compute: 55.3 GB/s",
        "| 50 concurrent sessions, llama-13b in 16 GB | 50 of 50 complete |",
        "eager PyTorch: out of memory ",
        "resume at layer 0–31, KV on the device, llama-7b",
        "manual offload: ",
        "steering overhead per token, stories-7m in 16 GB",
        "next token with 64 agents, p99, llama-7b",
    ] {
        assert!(table.contains(row), "{row} not in\n{table}");
    }
    assert!(
        !table.contains("DeepSpeed"),
        "absent baselines are not in the table"
    );
}

#[test]
fn the_summary_table_is_short() {
    let table = summary_table(&ResultSet::of(samples::all()));
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows[0], "| Measurement | Djinn | Compared with |");
    assert!(rows.len() <= 2 + 8, "{table}");
    assert!(rows.iter().all(|row| row.len() < 160), "{table}");
    assert!(
        !table.contains("no prefetch") && !table.contains('×'),
        "{table}"
    );
    assert!(
        table.contains("Accelerate: ") && table.contains("stateless: "),
        "{table}"
    );
}

/// Results with few and many contenders, long names, and several baselines that stop at the same point.
fn extremes() -> Vec<ResultFile> {
    let mut one = samples::virtual_memory("one", "m", 26.0);
    one.baselines.clear();
    let long = "a-name-that-is-much-longer-than-anyone-would-like-to-read";
    let mut many = samples::virtual_memory(long, "organisation/a-model-with-a-long-name-too", 26.0);
    for i in 0..4 {
        let name = format!("another_contender_with_a_long_name_{i}");
        let run = |j| RunRecord {
            effective_bandwidth_gbps: Some(f64::from(i * 900 + j + 1)),
            ..many.runs[0].clone()
        };
        let runs = (0..3).map(run).collect();
        let ran = samples::baseline(&name, "x", BaselineStatus::Ran);
        many.baselines.push(Baseline { runs, ..ran });
    }
    let named = |name: &str, one: &Baseline| Baseline {
        baseline: name.to_owned(),
        ..one.clone()
    };
    let mut ended = samples::memory_pressure("fifty", 50);
    let mut crowd = samples::resume_latency("crowd");
    for name in ["vllm", "llama_cpp", "deepspeed_zero", "another_one"] {
        ended.baselines.push(named(name, &ended.baselines[0]));
        crowd.baselines.push(named(name, &crowd.baselines[0]));
    }
    let single = samples::memory_pressure("single", 1);
    let agents = ["a", "b", "c"].map(samples::agents);
    [one, many, single, ended, crowd]
        .into_iter()
        .chain(agents)
        .collect()
}

#[test]
fn extreme_results_are_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let done = written(&ResultSet::of(extremes()), dir.path());
    assert!(done.left_out.is_empty());
    for name in FIGURES {
        figure(dir.path(), name);
    }
}

/// `REPORT_SAMPLE=FOLDER cargo test -p djinn-report` writes sample reports for inspection.
#[test]
fn a_sample_report_for_inspection() {
    let Some(folder) = std::env::var_os("REPORT_SAMPLE") else {
        return;
    };
    let folder = Path::new(&folder);
    stored(&folder.join("results"), samples::all());
    let set = ResultSet::read(&[folder.join("results")]).unwrap();
    set.write(folder, Some(&compare(&set, &set)), &mut |_| {})
        .unwrap();
    fs::write(folder.join("measurements.md"), measurements_table(&set)).unwrap();
    written(&ResultSet::of(extremes()), &folder.join("extreme"));
}
