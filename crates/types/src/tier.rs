//! Sources of streamed weights.

/// Source that weights stream from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The model's files, read by threads during a pass.
    Files,
    /// Host memory, filled from the files at start; the device copies from it.
    Host,
}
