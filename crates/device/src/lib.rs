//! The [`Device`] trait and its backends.
//!
//! A device owns one *slab* of memory, taken at start. Everything a pass touches
//! lies in it: weights, KV pages, activations, token ids. Operations take
//! [`View`]s, typed strided matrices at an offset of the slab, and run in order
//! on the compute stream. A device knows nothing of models or sessions.
//!
//! All `unsafe` code of the project lives in this crate.

mod backend;
mod check;
mod draw;
mod error;
mod event;
mod kv;
mod ops;
pub mod selftest;
mod view;

pub mod cpu;
pub mod cuda;
pub mod host;
#[cfg(feature = "yardstick")]
pub mod yardstick;

use djinn_types::{Activation, NormKind, RopeStyle};

pub use backend::{Backend, DeviceLimits, PassLimits};
pub use draw::Draw;
pub use error::DeviceError;
pub use event::Event;
pub use host::{HostRows, HostSlab};
pub use kv::{Attention, KvLayer, Rows};
pub use ops::{Edit, Phase, Reduction, Weight};
pub use view::{Span, View};

/// What every operation returns.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// An ordered queue of work on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Where all operations run.
    Compute,
    /// Weights on their way into the slab.
    Copy,
    /// Pages of sessions on their way in.
    PageIn,
    /// Pages of sessions on their way out.
    PageOut,
}

/// What a device says of itself.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// As the user names it: `cpu`, `cuda:0`.
    pub name: String,
    /// What it is: instruction set and threads, or the card's name.
    pub detail: String,
    /// Bytes of the slab.
    pub slab_bytes: u64,
}

/// What the start of a weight is aligned to for a device to read it at full speed.
pub const ALIGN: u64 = 256;

/// Fills a span's bytes from the slow tier.
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8]) -> std::io::Result<()>;

/// A backend: a slab, streams, and the fused operations a model is made of.
///
/// Operations are enqueued on [`Stream::Compute`] and run in the order they were
/// called. Activations are f32; weights are computed as stored; sums are
/// accumulated in f32.
///
/// **Invariant.** Every output element is reduced in an order that depends only
/// on its own inputs and its row's [`Phase`]: never on how many rows came with it, on
/// chunking, on the number of threads or on where in the slab its operands lie, so long
/// as weights start at multiples of [`ALIGN`].
///
/// **Contract.** Views must lie in the slab and have the shapes stated (checked:
/// [`DeviceError::Shape`], [`DeviceError::OutOfSlab`]); an output must not
/// overlap an input unless the operation says so. Ordering between streams is the
/// caller's business, through events.
pub trait Device: Send + Sync {
    /// What this device is.
    fn info(&self) -> DeviceInfo;

    /// Fills a span from the slow tier in the calling thread. Several threads may load
    /// at once, beside the pass that computes: each span is its caller's alone until
    /// the call returns.
    fn load(&self, dst: Span, fill: Fill<'_>) -> Result<()>;
    /// Takes host memory that [`Device::bring`] and [`Device::send`] copy from and to at
    /// the link's full speed.
    fn host_slab(&self, bytes: u64) -> Result<HostSlab>;
    /// Copies from host memory, from byte `from` on, into a span of the slab. Until the
    /// stream has passed it, nobody else uses either.
    fn bring(&self, stream: Stream, src: &HostSlab, from: u64, dst: Span) -> Result<()>;
    /// The same for several runs of bytes, all `stride` after one another on both sides.
    fn bring_rows(&self, stream: Stream, src: &HostSlab, rows: HostRows) -> Result<()>;
    /// Copies a span of the slab into host memory, from byte `to` on; the same holds.
    fn send(&self, stream: Stream, src: Span, dst: &HostSlab, to: u64) -> Result<()>;
    /// Copies a span of the slab to another, on the compute stream.
    fn copy(&self, src: Span, dst: Span) -> Result<()>;
    /// Says that no more loads will come: what they took beside the slab can go.
    fn loaded(&self) {}
    /// Copies bytes from the host into the slab; they are taken before this returns.
    fn upload(&self, stream: Stream, dst: Span, src: &[u8]) -> Result<()>;
    /// Waits for the compute stream, then copies an f32 view to the host, row by row.
    fn download(&self, src: View, dst: &mut [f32]) -> Result<()>;
    /// Waits for the compute stream, then copies an i32 view to the host.
    fn download_ids(&self, src: View, dst: &mut [i32]) -> Result<()>;

    /// Marks the work enqueued on `stream` so far.
    fn record(&self, stream: Stream) -> Result<Event>;
    /// Makes `stream` wait for `event` before its next work.
    fn wait(&self, stream: Stream, event: &Event) -> Result<()>;
    /// Whether `event` is past.
    fn is_past(&self, event: &Event) -> Result<bool>;
    /// Blocks the caller until `event` is past.
    fn wait_here(&self, event: &Event) -> Result<()>;
    /// Seconds from one event to another; both are past.
    fn seconds_between(&self, from: &Event, to: &Event) -> Result<f64>;
    /// Blocks the caller until `stream` is idle.
    fn synchronize(&self, stream: Stream) -> Result<()>;
    /// Runs `work`, or again what it put on the compute stream when it last ran under
    /// this number: the same operations on the same places, without the cost of asking
    /// for each. `work` only enqueues operations: no upload, download, event or wait.
    fn replay(&self, _number: u64, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        work()
    }

    /// `out[r] = table[ids[r]]`, or `out[r] += table[ids[r]]` when `accumulate`.
    /// `table` may be of any dtype; `ids` is i32 `[rows, 1]`.
    fn gather(&self, table: View, ids: View, out: View, accumulate: bool) -> Result<()>;
    /// `out[ids[r]] += weights[r] * src[r]`, in order of `r`. Ids are distinct.
    fn scatter_add(&self, src: View, ids: View, weights: View, out: View) -> Result<()>;
    /// Root-mean-square or layer norm of each row of `x`. `out` may be `x`.
    fn norm(
        &self,
        kind: NormKind,
        eps: f32,
        x: View,
        weight: View,
        bias: Option<View>,
        out: View,
    ) -> Result<()>;
    /// `out = x · Wᵀ (+ bias)`. `x` is `[rows, in]`, `out` `[rows, out]`.
    fn linear(
        &self,
        x: View,
        weight: Weight,
        bias: Option<View>,
        out: View,
        phase: Phase,
    ) -> Result<()>;
    /// Says of a weight that it will come, so that nothing about it is left to decide when
    /// it does. Only its order and its shape count. Before the first operation.
    fn expect(&self, _weight: Weight) -> Result<()> {
        Ok(())
    }
    /// `out[r] = [cos(p·f) · scale, sin(p·f) · scale]` for `p = positions[r]` and
    /// each of the `n` frequencies `f`; `out` is `[rows, 2n]`, cosines first.
    fn rope_table(&self, positions: View, frequencies: View, scale: f32, out: View) -> Result<()>;
    /// Rotates the first `2n` elements of every head of `x` (`[rows, heads · d_head]`)
    /// in place by the table's row.
    fn rope(&self, x: View, table: View, d_head: usize, style: RopeStyle) -> Result<()>;
    /// Writes each row's key and value into its session's page.
    fn append(&self, k: View, v: View, rows: Rows, kv: KvLayer) -> Result<()>;
    /// Causal attention of each row over its session's pages: `pattern`, then `mix`,
    /// without the pattern in memory. To the bit on the processor; a card rounds
    /// probabilities elsewhere.
    fn attend(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()>;
    /// The attention pattern: `out` is `[rows · heads, keys]`, row `r · heads + h`;
    /// keys a row does not see are zero.
    fn pattern(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()>;
    /// The values mixed by a pattern laid out as [`Device::pattern`] lays it out.
    fn mix(&self, pattern: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()>;
    /// `out = f(x)`. `out` may be `x`.
    fn activate(&self, f: Activation, x: View, out: View) -> Result<()>;
    /// `out = f(gate) · up`. `out` may be `gate`.
    fn gate(&self, f: Activation, gate: View, up: View, out: View) -> Result<()>;
    /// `out += x`.
    fn add(&self, x: View, out: View) -> Result<()>;
    /// Takes one column group out of an interleaved projection:
    /// `out[r, g·width + c] = x[r, first + g·stride + c]` for every `g`, with
    /// `c < width` and `out.cols / width` groups.
    fn split(&self, x: View, first: usize, stride: usize, width: usize, out: View) -> Result<()>;
    /// The `k` largest of each row's router logits after softmax, renormalised when
    /// asked: ids ascending by expert, i32 `[rows, k]`, and weights f32 `[rows, k]`.
    /// Of equal logits the lower id wins.
    fn route(&self, logits: View, renormalise: bool, ids: View, weights: View) -> Result<()>;
    /// The place of one element of each row, chosen as its [`Draw`] says: i32 `[rows, 1]`;
    /// −1 where a row holds something that is not a number. `draws` is i32, of
    /// [`Draw::WORDS`] columns.
    fn sample(&self, x: View, draws: View, ids: View) -> Result<()>;
    /// Changes `x` in place.
    fn edit(&self, x: View, edit: Edit) -> Result<()>;
    /// Makes less of the rows of `x`, in the shape that the [`Reduction`] says.
    fn reduce(&self, x: View, how: Reduction, out: View) -> Result<()>;
}
