//! How long a session that stopped takes to go on, layer by layer.

use super::{
    lines::{Drawn, heights, kinds, looks, own_ticks, places, series_of},
    plot_title,
};
use crate::{
    ResultFile,
    contender::label,
    draw::{Axis, Frame, Plan, Scale},
};

pub fn draw(results: &[&ResultFile]) -> Result<String, String> {
    let has = |result: &&&ResultFile| !series_of(result).is_empty();
    let shown: Vec<&ResultFile> = results.iter().filter(has).copied().collect();
    if shown.is_empty() {
        return Err("no resume-latency result has points".to_owned());
    }
    let series: Vec<_> = shown.iter().map(|result| series_of(result)).collect();
    let drawn = styles(&shown, &kinds(&series));
    let plan = Plan {
        title: "Resume latency",
        legend: drawn.iter().map(Drawn::entry).collect(),
        plots: shown.len(),
        columns: 2,
        size: (460.0, 300.0),
        lead: 0.0,
    };
    let (mut canvas, cells) = plan.lay();
    for ((result, series), cell) in shown.iter().zip(&series).zip(cells) {
        let at = places(series);
        let mut x = Axis::new("layer", Scale::whole(at.iter().copied(), 9));
        x.ticks = own_ticks(&at);
        let y = Axis::new("ms, log axis", Scale::log(heights(series)));
        let title = &plot_title(result);
        let plot = Frame { title, x, y }.draw(&mut canvas, cell);
        for one in series {
            let of = (one.contender, one.series);
            if let Some(drawn) = drawn.iter().find(|drawn| drawn.of == of) {
                drawn.draw(&plot, &mut canvas, one);
            }
        }
    }
    Ok(canvas.svg("Time to resume by layer, in ms"))
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
