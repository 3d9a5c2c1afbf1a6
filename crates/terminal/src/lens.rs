//! Logit lens as a table and as a picture.

use djinn_analysis::{Lens, TokenPrediction};

use crate::grid;

/// Most likely token after every block and position, with its probability in percent: a row for each
/// block, the last block first.
pub fn lens_text(lens: &Lens) -> String {
    let row = |(block, row): (usize, &Vec<Vec<TokenPrediction>>)| {
        let block = std::iter::once(block.to_string());
        let cells = row.iter().map(|top| {
            let percent = (100.0 * top[0].probability).round();
            format!("{} {percent:.0}", lens.text(top[0].token).trim())
        });
        block.chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = lens.predictions.iter().enumerate().rev().map(row).collect();
    let prompt = lens.prompt.iter().map(|&token| lens.text(token).trim());
    let header: Vec<&str> = std::iter::once("block").chain(prompt).collect();
    grid::text(&header, &rows)
}

/// Picture of the most likely token after every block and position.
pub fn lens_svg(lens: &Lens) -> String {
    let cell = |top: &Vec<TokenPrediction>| {
        let text = lens.text(top[0].token).to_owned();
        (text, top[0].probability)
    };
    let cells = lens.predictions.iter().rev();
    let cells: Vec<Vec<(String, f64)>> = cells.map(|row| row.iter().map(cell).collect()).collect();
    let blocks = (0..lens.predictions.len()).rev();
    let rows: Vec<String> = blocks.map(|block| block.to_string()).collect();
    let prompt = lens.prompt.iter();
    let header: Vec<String> = prompt.map(|&token| lens.text(token).to_owned()).collect();
    grid::svg(&header, &rows, &cells)
}
