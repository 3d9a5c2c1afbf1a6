//! How long a session that stopped takes to go on, layer by layer.

use super::lines::{Drawn, Lines, Series, heights, looks, own_ticks, places};
use crate::{
    Experiment, ResultFile,
    contender::label,
    draw::{Axis, Scale},
};

pub fn draw(results: &[&ResultFile]) -> Result<String, String> {
    let lines = Lines::of(results, Experiment::ResumeLatency)?;
    // What a client sees is comparable; the tables have both.
    let lines = lines.without(|series| series.ends_with("_inside"));
    let drawn = styles(lines.results(), &lines.kinds());
    let words = ("Resume latency", "Time to resume by layer, in ms");
    Ok(lines.draw(words, &drawn, axes))
}

fn axes(series: &[Series<'_>]) -> (Axis<'static>, Axis<'static>) {
    let at = places(series);
    let mut x = Axis::new("layer", Scale::whole(at.iter().copied(), 9));
    x.ticks = own_ticks(&at);
    (x, Axis::new("ms, log axis", Scale::log(heights(series))))
}

/// Every series looks as its contender, the first of ours as ours everywhere.
fn styles<'a>(results: &[&ResultFile], kinds: &[(&'a str, &'a str)]) -> Vec<Drawn<'a>> {
    let looks = looks(kinds);
    let of = |(i, (who, series)): (usize, &(&'a str, &'a str))| {
        let again = kinds[..i].iter().any(|(other, _)| other == who);
        let look = if again {
            looks.of(who).second()
        } else {
            looks.of(who)
        };
        let ours = results.iter().any(|result| result.baseline == *who);
        let alone = kinds.iter().filter(|(other, _)| other == who).count() == 1;
        Drawn {
            of: (who, series),
            label: told(who, series, ours, alone),
            look,
        }
    };
    kinds.iter().enumerate().map(of).collect()
}

fn told(who: &str, series: &str, ours: bool, alone: bool) -> String {
    let place = match series {
        "resume" if ours && !alone => "KV on the device",
        "resume_from_host" => "KV in host memory",
        "resume" | "" => return label(who).to_owned(),
        other => other,
    };
    format!("{}, {place}", label(who))
}
