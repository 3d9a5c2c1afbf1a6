//! A whole report, from result files to pages and pictures.

#![allow(clippy::unwrap_used, missing_docs)]

mod samples;

use std::{fs, path::Path};

use djinn_report::{
    Baseline, ReportError, ResultFile, Run, Set, Status, compare, measurements_table,
};
use resvg::{tiny_skia::Pixmap, usvg};

const FIGURES: [&str; 6] = [
    "effective_bandwidth_comparison",
    "latency_timeline",
    "memory_usage",
    "figure6_memory_virtualization",
    "figure7_resume_latency",
    "agents_latency",
];

/// How a result is made wrong.
type Break = fn(&mut ResultFile);

fn stored(folder: &Path, results: Vec<ResultFile>) {
    for (i, mut result) in results.into_iter().enumerate() {
        result.write(&folder.join(format!("{i}.json"))).unwrap();
    }
}

fn written(set: &Set, folder: &Path) -> djinn_report::Written {
    set.write(folder, None, &mut |_| {}).unwrap()
}

#[test]
fn everything_is_drawn_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("in"), dir.path().join("out"));
    stored(&from, samples::all());
    fs::write(
        from.join("result.schema.json"),
        djinn_report::schema().to_string(),
    )
    .unwrap();
    let set = Set::read(&[from.clone(), from.join("0.json")]).unwrap();
    assert_eq!(
        set.results().len(),
        6,
        "a file that is named twice counts once"
    );
    let mut told = 0;
    let done = set
        .write(&to, Some(&compare(&set, &set)), &mut |_| told += 1)
        .unwrap();
    assert!(done.pass && set.pass(), "{}", set.verdict_table());
    assert!(done.left_out.is_empty() && told > 6);
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
            "55.3 GB/s alone".to_owned(),
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
    assert!(html.contains("Beside earlier results"));
    assert!(
        fs::read_to_string(to.join("comparison.md"))
            .unwrap()
            .contains("within noise")
    );
}

/// A figure is there in three forms, and something is on it.
fn figure(folder: &Path, name: &str) {
    let svg = fs::read_to_string(folder.join(format!("{name}.svg"))).unwrap();
    assert!(svg.len() < 200_000, "{name} has {} bytes", svg.len());
    let tree = usvg::Tree::from_str(&svg, &usvg::Options::default()).unwrap();
    let pixels = Pixmap::load_png(folder.join(format!("{name}.png"))).unwrap();
    let scale = 200.0 / 96.0;
    let near = |pixels: u32, units: f32| (pixels as f32 - units * scale).abs() <= 1.0;
    let (w, h) = (tree.size().width(), tree.size().height());
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
        text.starts_with("%PDF") && text.contains("/FontFile") && text.contains("+Inter"),
        "{name}"
    );
}

#[test]
fn broken_results_fail_on_every_page() {
    let breaks: [(&str, Break); 3] = [
        ("norm 5", |result| result.runs[1].logit_norm = Some(5.0)),
        ("other tokens", |result| {
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
        let set = Set::of(vec![result, samples::steering("good")]);
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
        assert!(measurements_table(&set).contains("not to be trusted"));
    }
}

#[test]
fn a_lost_session_fails() {
    let mut result = samples::memory_pressure("lost", 50);
    result.runs[2].sessions_completed = Some(49);
    let set = Set::of(vec![result]);
    assert!(!set.pass());
    assert!(
        set.verdict_table().contains("49 of 50"),
        "{}",
        set.verdict_table()
    );
}

#[test]
fn a_figure_without_data_is_left_out_and_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut result = samples::virtual_memory("only", "m", 26.0);
    (result.timeline, result.memory) = (None, Vec::new());
    let done = written(&Set::of(vec![result]), dir.path());
    let left: Vec<&str> = done
        .left_out
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(left, FIGURES[1..], "all but the first");
    let analysis = fs::read_to_string(dir.path().join("analysis.md")).unwrap();
    assert!(analysis.contains("`latency_timeline`: no virtual-memory result has a timeline"));
    assert!(analysis.contains("`agents_latency`: there is no result of agents"));
    assert!(!dir.path().join("agents_latency.svg").exists());
}

#[test]
fn what_is_no_result_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let none = Set::read(&[dir.path().to_owned()]).unwrap_err();
    assert!(matches!(none, ReportError::Nothing { .. }), "{none}");
    assert!(none.to_string().starts_with("no results in "), "{none}");
    stored(dir.path(), vec![samples::steering("good")]);
    fs::write(dir.path().join("readme.txt"), "not JSON, and not looked at").unwrap();
    assert_eq!(
        Set::read(&[dir.path().to_owned()]).unwrap().results().len(),
        1
    );
    fs::write(dir.path().join("other.json"), "{\"a\": 1}").unwrap();
    let error = Set::read(&[dir.path().to_owned()]).unwrap_err().to_string();
    assert!(error.contains("other.json: not a result"), "{error}");
    let gone = Set::read(&[dir.path().join("gone.json")])
        .unwrap_err()
        .to_string();
    assert!(gone.contains("gone.json"), "{gone}");
}

#[test]
fn order_does_not_depend_on_files() {
    let names = |set: &Set| {
        set.results()
            .map(|result| result.name.clone())
            .collect::<Vec<_>>()
    };
    let mut backwards = samples::all();
    backwards.reverse();
    assert_eq!(names(&Set::of(samples::all())), names(&Set::of(backwards)));
}

#[test]
fn earlier_results_are_compared() {
    let slower = |result: &mut ResultFile| {
        for run in &mut result.runs {
            run.per_token_ms = run.per_token_ms.map(|ms| ms * 2.0);
        }
    };
    let old = Set::of(vec![
        samples::virtual_memory("a", "m", 26.0),
        samples::steering("gone"),
    ]);
    let mut changed = samples::virtual_memory("a", "m", 26.0);
    slower(&mut changed);
    changed.baselines.remove(0);
    let new = Set::of(vec![changed, samples::agents("new")]);
    let comparison = compare(&old, &new);
    assert!(comparison.worse() && !compare(&old, &old).worse());
    let terminal = comparison.terminal();
    assert!(
        terminal.contains("worse   virtual-memory a (m), Djinn: a token"),
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
    assert!(markdown.contains("2 standard deviations"), "{markdown}");
    let backwards = compare(&new, &old).terminal();
    assert!(
        backwards.contains("better  virtual-memory a (m), Djinn: a token"),
        "{backwards}"
    );
}

#[test]
fn a_readme_has_every_experiment() {
    let table = measurements_table(&Set::of(samples::all()));
    for row in [
        "| what | measured | beside (ours is so many times as fast) |",
        "| a token, llama-13b in 16 GB |",
        "; Accelerate: ",
        "PCIe 5 x16 alone: 55.3 GB/s",
        "| 50 sessions at once, llama-13b in 16 GB | 50 of 50 complete |",
        "eager PyTorch: out of memory ",
        "resume at layer 0–31, KV on the device, llama-7b",
        "manual offload: ",
        "added to a token by steering, stories-7m in 16 GB",
        "next token of one of 64 agents, 99 % of the time, llama-7b",
    ] {
        assert!(table.contains(row), "{row} not in\n{table}");
    }
    assert!(!table.contains("DeepSpeed"), "who is absent is not in it");
}

/// Few and many contenders, long names, one session and fifty, who ends in the same place.
fn extremes() -> Vec<ResultFile> {
    let mut one = samples::virtual_memory("one", "m", 26.0);
    one.baselines.clear();
    let long = "a-name-that-is-much-longer-than-anyone-would-like-to-read";
    let mut many = samples::virtual_memory(long, "organisation/a-model-with-a-long-name-too", 26.0);
    for i in 0..4 {
        let name = format!("another_contender_with_a_long_name_{i}");
        let run = |j| Run {
            effective_bandwidth_gbps: Some(f64::from(i * 900 + j + 1)),
            ..many.runs[0].clone()
        };
        let runs = (0..3).map(run).collect();
        let ran = samples::baseline(&name, "x", Status::Ran);
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
fn extremes_are_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let done = written(&Set::of(extremes()), dir.path());
    assert!(done.left_out.is_empty());
    for name in FIGURES {
        figure(dir.path(), name);
    }
}

/// `REPORT_SAMPLE=FOLDER cargo test -p djinn-report` leaves reports to look at.
#[test]
fn a_sample_to_look_at() {
    let Some(folder) = std::env::var_os("REPORT_SAMPLE") else {
        return;
    };
    let folder = Path::new(&folder);
    stored(&folder.join("results"), samples::all());
    let set = Set::read(&[folder.join("results")]).unwrap();
    set.write(folder, Some(&compare(&set, &set)), &mut |_| {})
        .unwrap();
    fs::write(folder.join("measurements.md"), measurements_table(&set)).unwrap();
    written(&Set::of(extremes()), &folder.join("extreme"));
}
