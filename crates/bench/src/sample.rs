//! Prompts, limits and statistics that benchmarks share.

use djinn_model::program::Program;

use crate::BenchError;

/// Bytes to read when memory bandwidth is measured: far more than caches hold.
pub const BANDWIDTH_BYTES: u64 = 1 << 30;

/// Refuses sessions longer than the model's context.
pub fn check_context(program: &Program, needed: usize) -> Result<(), BenchError> {
    let context = program.dims.context;
    if needed > context {
        return Err(BenchError::Context { needed, context });
    }
    Ok(())
}

/// Token ids spread over the vocabulary, so that no two positions are alike.
pub fn some_tokens(program: &Program, count: usize, salt: usize) -> Vec<u32> {
    let at = |i: usize| (i * 7919 + salt * 104_729 + 1) % program.dims.vocab;
    (0..count).map(|i| at(i) as u32).collect()
}

/// Median of one measure of all items.
pub fn median_of<T>(items: &[T], measure: impl Fn(&T) -> f64) -> f64 {
    median(&mut items.iter().map(measure).collect::<Vec<_>>())
}

/// Median of times or rates; sorts them.
pub fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
