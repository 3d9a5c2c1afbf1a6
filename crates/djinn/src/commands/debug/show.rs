//! What commands print.

use djinn_engine::{Engine, Paused, Positions, Probe, Request, SessionId, Tensor};
use djinn_model::{Model, Site};

use crate::{
    commands::{lens, run_out},
    failure::Failure,
    style::table,
};

/// Where a session stopped.
pub fn place(engine: &Engine, id: SessionId, at: &Paused) -> String {
    let positions = match at.rows {
        1 => format!("position {}", at.position),
        rows => format!("positions {} to {}", at.position, at.position + rows - 1),
    };
    let shape = engine.activation(id).map(|tensor| tensor.shape);
    format!(
        "stopped at {} {:?}, {positions}\n",
        at.site,
        shape.unwrap_or_default()
    )
}

/// A token that was generated.
pub fn token(model: &Model, token: u32) -> String {
    format!("generated {token} '{}'\n", lens::name(model, token))
}

/// What was read and generated.
pub fn tokens(engine: &Engine, id: SessionId) -> String {
    let tokens = engine.tokens(id).unwrap_or_default();
    let text = engine.model().text.as_ref();
    match text.and_then(|text| text.decode(tokens, true).ok()) {
        Some(text) => format!("{} tokens: {}\n", tokens.len(), text.trim()),
        None => format!("{} tokens: {tokens:?}\n", tokens.len()),
    }
}

fn rows(tensor: &Tensor) -> (usize, usize) {
    let count = tensor.shape.first().copied().unwrap_or(0).max(1);
    (count, tensor.data.len() / count)
}

/// The length of every row, with its token.
pub fn norms(engine: &Engine, id: SessionId, tensor: &Tensor) -> String {
    let (count, width) = rows(tensor);
    let all = engine.tokens(id).unwrap_or_default();
    let at = engine.paused(id);
    // Behind the last block only some rows are left, the last ones.
    let end = at.map_or(all.len(), |at| at.position + at.rows);
    let first = end.saturating_sub(count);
    let lines: Vec<Vec<String>> = tensor
        .data
        .chunks_exact(width.max(1))
        .enumerate()
        .map(|(i, row)| {
            let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
            let token = all.get(first + i).map(|&t| lens::name(engine.model(), t));
            vec![
                (first + i).to_string(),
                token.unwrap_or_default(),
                format!("{:.4}", squares.sqrt()),
            ]
        })
        .collect();
    table(&["position", "token", "norm"], &lines)
}

/// The largest elements of the last row.
pub fn largest(tensor: &Tensor, n: usize) -> String {
    let (_, width) = rows(tensor);
    let row = &tensor.data[tensor.data.len() - width..];
    let mut order: Vec<usize> = (0..width).collect();
    order.sort_by(|&a, &b| row[b].abs().total_cmp(&row[a].abs()));
    let lines: Vec<Vec<String>> = order
        .iter()
        .take(n)
        .map(|&i| vec![i.to_string(), format!("{:+.4}", row[i])])
        .collect();
    table(&["element", "value"], &lines)
}

/// Where the last token of a session looks: its tokens once more, with a head's pattern read.
pub fn attention(
    engine: &mut Engine,
    id: SessionId,
    block: usize,
    head: usize,
) -> Result<String, Failure> {
    let program = &engine.model().program;
    let heads = program.dims.heads;
    if head >= heads {
        return Err(Failure::Message(format!(
            "head {head}: there are 0 to {}",
            heads - 1
        )));
    }
    let hook = Site::Pattern(block).to_string();
    let last = Positions::Ranges(vec![(-1, 0)]);
    let tokens = engine.tokens(id).unwrap_or_default().to_vec();
    let probe = Probe::new(program, &[&hook], last, &[])?;
    let other = engine.open(Request {
        tokens: tokens.clone(),
        probe,
        ..Request::default()
    })?;
    run_out(engine)?;
    let transcript = engine.close(other).expect("it is open");
    let pattern = transcript.captured.tensors().remove(&hook);
    let pattern = pattern.ok_or_else(|| Failure::Message("no pattern was read".into()))?;
    let keys = pattern.shape[2];
    let row = &pattern.data[head * keys..(head + 1) * keys];
    let mut order: Vec<usize> = (0..keys).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    let lines: Vec<Vec<String>> = order
        .iter()
        .take(10)
        .map(|&at| {
            let token = lens::name(engine.model(), tokens[at]);
            vec![at.to_string(), token, format!("{:.1} %", 100.0 * row[at])]
        })
        .collect();
    Ok(table(&["position", "token", "share"], &lines))
}
