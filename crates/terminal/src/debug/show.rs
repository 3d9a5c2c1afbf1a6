//! Texts that the debugger prints.

use djinn_engine::Tensor;
use djinn_types::text::table;

use super::target::{DebugTarget, PausePoint};
use crate::output::Failure;

/// Line about the hook where a session stopped.
pub fn place(at: &PausePoint) -> String {
    let positions = match at.rows {
        1 => format!("position {}", at.position),
        rows => format!("positions {} to {}", at.position, at.position + rows - 1),
    };
    format!("stopped at {} {:?}, {positions}\n", at.hook, at.shape)
}

/// Line about a generated token.
pub fn token(target: &mut DebugTarget<'_>, token: u32) -> Result<String, Failure> {
    let name = target.names(&[token])?.pop().unwrap_or_default();
    Ok(format!("generated {token} '{name}'\n"))
}

/// Line with all tokens of a session as text.
pub fn tokens(target: &mut DebugTarget<'_>, id: u64) -> Result<String, Failure> {
    let tokens = target.tokens(id)?.unwrap_or_default();
    Ok(match target.text(&tokens) {
        Some(text) => format!("{} tokens: {}\n", tokens.len(), text.trim()),
        None => format!("{} tokens: {tokens:?}\n", tokens.len()),
    })
}

fn rows(tensor: &Tensor) -> (usize, usize) {
    let count = tensor.shape.first().copied().unwrap_or(0).max(1);
    (count, tensor.data.len() / count)
}

/// Table of the norm of every row, with its token.
pub fn norms(target: &mut DebugTarget<'_>, id: u64, tensor: &Tensor) -> Result<String, Failure> {
    let (count, width) = rows(tensor);
    let all = target.tokens(id)?.unwrap_or_default();
    let at = target.stop_point(id)?;
    // After the last block only the last rows are computed.
    let end = at.map_or(all.len(), |at| at.position + at.rows);
    let first = end.saturating_sub(count);
    let read = all.get(first..end.min(all.len())).unwrap_or_default();
    let names = target.names(read)?;
    let lines: Vec<Vec<String>> = tensor
        .data
        .chunks_exact(width.max(1))
        .enumerate()
        .map(|(i, row)| {
            let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
            vec![
                (first + i).to_string(),
                names.get(i).cloned().unwrap_or_default(),
                format!("{:.4}", squares.sqrt()),
            ]
        })
        .collect();
    Ok(table(&["position", "token", "norm"], &lines))
}

/// Table of the largest elements of the last row.
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

/// Table of the positions that the last token attends to most. Runs the session's tokens again to read
/// the head's pattern.
pub fn attention(
    target: &mut DebugTarget<'_>,
    id: u64,
    block: usize,
    head: usize,
) -> Result<String, Failure> {
    let tokens = target.tokens(id)?.unwrap_or_default();
    let pattern = target.pattern(&tokens, block)?;
    let [heads, _, keys] = pattern.shape[..] else {
        let shape = &pattern.shape;
        return Err(Failure::Message(format!(
            "the attention pattern has shape {shape:?}, expected [heads, 1, keys]"
        )));
    };
    if head >= heads {
        return Err(Failure::Message(format!(
            "no head {head}: the block has heads 0 to {}",
            heads - 1
        )));
    }
    let row = &pattern.data[head * keys..(head + 1) * keys];
    let mut order: Vec<usize> = (0..keys).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    let names = target.names(&tokens)?;
    let lines: Vec<Vec<String>> = order
        .iter()
        .take(10)
        .map(|&at| {
            let token = names.get(at).cloned().unwrap_or_default();
            vec![at.to_string(), token, format!("{:.1} %", 100.0 * row[at])]
        })
        .collect();
    Ok(table(&["position", "token", "share"], &lines))
}
