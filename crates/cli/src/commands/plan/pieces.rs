//! Tables of the pieces that weights are cut into.

use djinn_client::v1::{self, PiecePlace};
use djinn_types::{Size, text::table};
use serde_json::{Value, json};

/// Largest number of lines in the table of segments.
const LINES: usize = 6;

/// Table of all pieces, or of the segments that they belong to; empty if all weights are resident as a whole.
pub(super) fn pieces_table(pieces: &[v1::PlanPiece], each: bool) -> String {
    match each {
        _ if pieces.is_empty() => String::new(),
        true => {
            let rows: Vec<Vec<String>> = pieces.iter().map(piece_row).collect();
            table(&["piece", "bytes", "place", "offset", "after"], &rows)
        }
        false => {
            let header = [
                "segment",
                "bytes",
                "resident",
                "streams",
                "pieces",
                "ring offsets",
            ];
            table(&header, &segment_rows(&by_segment(pieces)))
        }
    }
}

/// Pieces of one segment together.
#[derive(Default)]
struct SegmentLine {
    segment: String,
    bytes: u64,
    resident: u64,
    streamed: u64,
    pieces: usize,
    ring_offsets: Vec<u64>,
    is_expert: bool,
}

fn by_segment(pieces: &[v1::PlanPiece]) -> Vec<SegmentLine> {
    let mut lines: Vec<SegmentLine> = Vec::new();
    for piece in pieces {
        if lines
            .last()
            .is_none_or(|line| line.segment != piece.segment)
        {
            lines.push(SegmentLine {
                segment: piece.segment.clone(),
                ..SegmentLine::default()
            });
        }
        let line = lines.last_mut().expect("the segment has a line");
        line.bytes += piece.bytes;
        line.pieces += 1;
        match piece.place() {
            PiecePlace::Ring => {
                line.streamed += piece.bytes;
                line.ring_offsets.push(piece.offset);
            }
            PiecePlace::Expert => line.is_expert = true,
            PiecePlace::Resident | PiecePlace::Unspecified => line.resident += piece.bytes,
        }
    }
    lines
}

/// Rows of the table of segments, without the middle ones of a long table.
fn segment_rows(lines: &[SegmentLine]) -> Vec<Vec<String>> {
    let size = |bytes: u64| match bytes {
        0 => "-".to_owned(),
        bytes => Size(bytes).to_string(),
    };
    let row = |line: &SegmentLine| {
        let offsets = line.ring_offsets.iter().take(4).map(u64::to_string);
        let offsets: Vec<String> = offsets.collect();
        let more = if line.ring_offsets.len() > 4 {
            " …"
        } else {
            ""
        };
        let streamed = match line.is_expert {
            true => "when chosen".to_owned(),
            false => size(line.streamed),
        };
        vec![
            line.segment.clone(),
            size(line.bytes),
            size(line.resident),
            streamed,
            line.pieces.to_string(),
            offsets.join(" ") + more,
        ]
    };
    if lines.len() <= LINES {
        return lines.iter().map(row).collect();
    }
    let half = LINES / 2;
    let left_out = format!("… {} more", lines.len() - 2 * half);
    let head = lines[..half].iter().map(row);
    let tail = lines[lines.len() - half..].iter().map(row);
    head.chain(std::iter::once(vec![left_out]))
        .chain(tail)
        .collect()
}

fn piece_row(piece: &v1::PlanPiece) -> Vec<String> {
    let (place, offset) = match piece.place() {
        PiecePlace::Ring => ("ring", piece.offset.to_string()),
        PiecePlace::Expert => ("when chosen", String::new()),
        PiecePlace::Resident | PiecePlace::Unspecified => ("resident", piece.offset.to_string()),
    };
    let after = piece.after.map_or(String::new(), |after| after.to_string());
    let bytes = Size(piece.bytes).to_string();
    vec![piece.name.clone(), bytes, place.to_owned(), offset, after]
}

pub(super) fn piece_json(piece: &v1::PlanPiece) -> Value {
    let mut value = json!({ "name": piece.name, "bytes": piece.bytes });
    match piece.place() {
        PiecePlace::Ring => {
            value["place"] = json!("ring");
            value["offset"] = json!(piece.offset);
            value["after"] = json!(piece.after);
        }
        PiecePlace::Expert => value["place"] = json!("when chosen"),
        PiecePlace::Resident | PiecePlace::Unspecified => {
            value["place"] = json!("resident");
            value["offset"] = json!(piece.offset);
        }
    }
    value
}
