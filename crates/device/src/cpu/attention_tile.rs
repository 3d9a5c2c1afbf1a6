//! One task of attention: a tile of rows, one key-value head.

use std::ops::Range;

use super::chain::Chains;
use super::dot::{Products, Sink, StridedRows};
use super::element::{Convert, Element, with_element};
use super::lanes::{Kernel, LANES, Simd};
use super::softmax::softmax;
use crate::check::Mat;
use crate::{Attention, KvLayer};

/// Operands that all tasks of an attention share.
#[derive(Clone, Copy)]
pub(super) struct AttentionJob {
    pub(super) kv: KvLayer,
    /// Address of the layer's keys in page 0.
    pub(super) pages: *const u8,
    pub(super) tables: Mat<i32>,
    pub(super) positions: Mat<i32>,
    pub(super) how: Attention,
    pub(super) goal: AttentionOutput,
}

// SAFETY: the fields are addresses in the slab; see `Mat`.
unsafe impl Send for AttentionJob {}
// SAFETY: the argument for `Send` also holds for `Sync`.
unsafe impl Sync for AttentionJob {}

impl AttentionJob {
    /// Number of query heads for each key-value head.
    pub(super) fn group(&self) -> usize {
        self.how.heads / self.kv.kv_heads
    }

    /// Range of keys that a row sees.
    pub(super) fn keys(&self, row: usize) -> Range<usize> {
        // SAFETY: positions were checked when the runs were made.
        let position = unsafe { self.positions.row(row).read_unaligned() } as usize;
        seen(position, &self.how)
    }
}

/// Range of keys that a position sees.
pub(super) fn seen(position: usize, how: &Attention) -> Range<usize> {
    let end = position + 1;
    end - how.window.unwrap_or(end).min(end)..end
}

/// Input and output of an attention, in addition to the pages.
#[derive(Clone, Copy)]
pub(super) enum AttentionOutput {
    /// Mixes values by queries.
    Attend {
        /// Queries, `[rows, heads · d_head]`.
        q: Mat<f32>,
        /// Mixed values, `[rows, heads · d_head]`.
        out: Mat<f32>,
    },
    /// Computes a pattern from queries.
    Pattern {
        /// Queries, `[rows, heads · d_head]`.
        q: Mat<f32>,
        /// Pattern, `[rows · heads, keys]`.
        out: Mat<f32>,
    },
    /// Mixes values by a pattern.
    Mix {
        /// Pattern, `[rows · heads, keys]`.
        pattern: Mat<f32>,
        /// Mixed values, `[rows, heads · d_head]`.
        out: Mat<f32>,
    },
}

/// Rows and heads of a task. Query `i` is row `i / heads` and head `i % heads`.
pub(super) struct Tile {
    sequence: usize,
    rows: Range<usize>,
    kv_head: usize,
    heads: Range<usize>,
    /// Union of the keys that the rows see.
    keys: Range<usize>,
    /// Keys that all rows see; may be empty.
    common: Range<usize>,
    /// Layout of the task's scratch memory.
    layout: TileLayout,
}

/// Offsets of the parts of the scratch memory, in floats.
struct TileLayout {
    /// Queries, `[query, d_head padded]`.
    queries: usize,
    /// Mixed values, `[query, d_head padded]`.
    mixed: usize,
    /// One page of one head as f32.
    page: usize,
    /// Scores, `[query, keys padded]`.
    scores: usize,
    end: usize,
    width: usize,
    stride: usize,
}

impl Tile {
    pub(super) fn new(
        job: &AttentionJob,
        sequence: usize,
        rows: Range<usize>,
        kv_head: usize,
        heads: Range<usize>,
    ) -> Self {
        let mut keys = job.keys(rows.start);
        let mut common = keys.clone();
        for row in rows.clone() {
            let seen = job.keys(row);
            keys = keys.start.min(seen.start)..keys.end.max(seen.end);
            common = common.start.max(seen.start)..common.end.min(seen.end);
        }
        let queries = rows.len() * heads.len();
        let width = job.kv.d_head.next_multiple_of(LANES);
        // The stride is an odd number of cache lines, so that rows do not compete for cache sets.
        let stride = keys.len().next_multiple_of(LANES) + LANES;
        let mixed = queries * width;
        let page = mixed + queries * width;
        let scores = page + job.kv.page_tokens * width;
        let end = scores + queries * stride;
        let layout = TileLayout {
            queries: 0,
            mixed,
            page,
            scores,
            end,
            width,
            stride,
        };
        Tile {
            sequence,
            rows,
            kv_head,
            heads,
            keys,
            common,
            layout,
        }
    }

    /// Number of floats of scratch memory that the task needs.
    pub(super) fn floats(&self) -> usize {
        self.layout.end
    }

    fn queries(&self) -> usize {
        self.rows.len() * self.heads.len()
    }

    /// Row and head of a query.
    fn query(&self, i: usize) -> (usize, usize) {
        let heads = self.heads.len();
        (self.rows.start + i / heads, self.heads.start + i % heads)
    }
}

/// Kernel of a task.
pub(super) struct TileKernel<'a> {
    job: &'a AttentionJob,
    tile: Tile,
    scratch: *mut f32,
}

impl<'a> TileKernel<'a> {
    /// Creates the kernel; `scratch` must have [`Tile::floats`] floats.
    pub(super) fn new(job: &'a AttentionJob, tile: Tile, scratch: *mut f32) -> Self {
        TileKernel { job, tile, scratch }
    }
}

impl Kernel for TileKernel<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: pages, rows and heads were checked by the operation; the scratch is
        // this thread's and large enough; tasks share no output element.
        unsafe {
            match self.job.goal {
                AttentionOutput::Attend { q, out } => {
                    self.scores(s, q);
                    self.mix(s);
                    self.write_mixed(out);
                }
                AttentionOutput::Pattern { q, out } => {
                    self.scores(s, q);
                    self.write_pattern(out);
                }
                AttentionOutput::Mix { pattern, out } => {
                    self.read_pattern(pattern);
                    self.mix(s);
                    self.write_mixed(out);
                }
            }
        }
    }
}

impl TileKernel<'_> {
    /// Computes the attention pattern of every query into the scratch memory.
    #[inline(always)]
    unsafe fn scores<S: Simd>(&self, s: S, q: Mat<f32>) {
        let (d, layout) = (self.job.kv.d_head, &self.tile.layout);
        let queries = self.scratch.wrapping_add(layout.queries);
        // SAFETY: guaranteed by the caller.
        unsafe {
            for i in 0..self.tile.queries() {
                let (row, head) = self.tile.query(i);
                let from = q.row(row).cast_const().wrapping_add(head * d);
                s.call(Convert {
                    from,
                    n: d,
                    to: queries.add(i * layout.width),
                    ahead: 0,
                });
            }
            let x = StridedRows {
                ptr: queries.cast_const(),
                stride: layout.width,
            };
            for page in self.pages() {
                with_element!(self.job.kv.dtype, E => {
                    let keys = self.stored::<E>(&page, 0);
                    match self.converts::<S>() {
                        true => self.score_page(s, x, &page, self.converted(s, &page, keys)),
                        false => self.score_page(s, x, &page, keys),
                    }
                });
            }
            for i in 0..self.tile.queries() {
                let keys = self.job.keys(self.tile.query(i).0);
                softmax(s, self.score(i, keys.start), keys.len(), self.job.how.scale);
            }
        }
    }

    /// Computes the products of all queries with the keys of a page.
    #[inline(always)]
    unsafe fn score_page<S: Simd, E: Element>(
        &self,
        s: S,
        x: StridedRows<f32>,
        page: &TilePage,
        keys: StridedRows<E>,
    ) {
        let products = Products {
            x,
            rows: self.tile.queries(),
            w: keys,
            cols: page.keys.len(),
            k: self.job.kv.d_head,
            out: Sink {
                ptr: self.score(0, page.keys.start),
                stride: self.tile.layout.stride,
                bias: None,
            },
        };
        // SAFETY: guaranteed by the caller.
        unsafe { products.run(s) };
    }

    /// Mixes the values by the scores in the scratch memory.
    #[inline(always)]
    unsafe fn mix<S: Simd>(&self, s: S) {
        let (queries, layout) = (self.tile.queries(), &self.tile.layout);
        // SAFETY: guaranteed by the caller; a query's chain is only extended by keys it sees.
        unsafe {
            std::ptr::write_bytes(self.scratch.add(layout.mixed), 0, queries * layout.width);
            for page in self.pages() {
                with_element!(self.job.kv.dtype, E => {
                    let values = self.stored::<E>(&page, 1);
                    match self.converts::<S>() {
                        true => self.mix_page(s, &page, self.converted(s, &page, values)),
                        false => self.mix_page(s, &page, values),
                    }
                });
            }
        }
    }

    /// Mixes the values of a page.
    #[inline(always)]
    unsafe fn mix_page<S: Simd, E: Element>(&self, s: S, page: &TilePage, values: StridedRows<E>) {
        let common = &self.tile.common;
        // SAFETY: guaranteed by the caller.
        unsafe {
            if common.start <= page.keys.start && page.keys.end <= common.end {
                self.extend(s, page, values, 0..self.tile.queries(), page.keys.clone());
            } else {
                self.mix_ragged(s, page, values);
            }
        }
    }

    /// Mixes a page that some queries see only in part.
    #[inline(always)]
    unsafe fn mix_ragged<S: Simd, E: Element>(
        &self,
        s: S,
        page: &TilePage,
        values: StridedRows<E>,
    ) {
        for i in 0..self.tile.queries() {
            let seen = self.job.keys(self.tile.query(i).0);
            let start = seen.start.clamp(page.keys.start, page.keys.end);
            let seen = start..seen.end.clamp(start, page.keys.end);
            // SAFETY: guaranteed by the caller.
            unsafe { self.extend(s, page, values, i..i + 1, seen) };
        }
    }

    /// Adds the values at some keys to the mixtures of some queries.
    #[inline(always)]
    unsafe fn extend<S: Simd, E: Element>(
        &self,
        s: S,
        page: &TilePage,
        values: StridedRows<E>,
        queries: Range<usize>,
        keys: Range<usize>,
    ) {
        if keys.is_empty() {
            return;
        }
        let layout = &self.tile.layout;
        let mixed = layout.mixed + queries.start * layout.width;
        let chains = Chains {
            out: self.scratch.wrapping_add(mixed),
            stride: layout.width,
            x: StridedRows {
                ptr: self.score(queries.start, keys.start).cast_const(),
                stride: layout.stride,
            },
            rows: queries.len(),
            w: values.from(keys.start - page.keys.start, 0),
            ahead: 0,
            cols: self.job.kv.d_head,
            k: keys.len(),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { chains.extend(s) };
    }

    /// Pointer to the score of a query for a key.
    #[inline(always)]
    fn score(&self, query: usize, key: usize) -> *mut f32 {
        let layout = &self.tile.layout;
        let offset = layout.scores + query * layout.stride + key - self.tile.keys.start;
        self.scratch.wrapping_add(offset)
    }

    /// Pages that hold the tile's keys, in order.
    #[inline(always)]
    fn pages(&self) -> impl Iterator<Item = TilePage> + '_ {
        let (tokens, keys) = (self.job.kv.page_tokens, self.tile.keys.clone());
        (keys.start / tokens..keys.end.div_ceil(tokens)).map(move |index| {
            let table = self.job.tables.row(self.tile.sequence).wrapping_add(index);
            TilePage {
                // SAFETY: the operation checked that the table has this page and
                // that it exists.
                id: unsafe { table.read_unaligned() } as usize,
                first: index * tokens,
                keys: keys.start.max(index * tokens)..keys.end.min((index + 1) * tokens),
            }
        })
    }

    /// Whether a page is converted to f32 before its keys or values are used. Kernels convert
    /// every element once if the tile has no more queries than a kernel takes at once.
    #[inline(always)]
    fn converts<S: Simd>(&self) -> bool {
        self.job.kv.dtype.bytes() < 4 && self.tile.queries() > S::TILE_ROWS
    }

    /// Keys (half 0) or values (half 1) of a page's tokens that the tile sees.
    #[inline(always)]
    fn stored<E: Element>(&self, page: &TilePage, half: usize) -> StridedRows<E> {
        let (kv, d) = (&self.job.kv, self.job.kv.d_head);
        let offset = page.id * kv.page_bytes as usize + half * kv.half_bytes() as usize;
        let token = self.tile.kv_head * kv.page_tokens + page.keys.start - page.first;
        let bytes = offset + token * d * kv.dtype.bytes();
        StridedRows {
            ptr: self.job.pages.wrapping_add(bytes).cast(),
            stride: d,
        }
    }

    /// Copy of keys or values as f32 in the scratch memory, which holds one page of a head.
    #[inline(always)]
    fn converted<S: Simd, E: Element>(
        &self,
        s: S,
        page: &TilePage,
        vectors: StridedRows<E>,
    ) -> StridedRows<f32> {
        let stride = self.job.kv.d_head;
        let to = self.scratch.wrapping_add(self.tile.layout.page);
        // The tokens are contiguous.
        s.call(Convert {
            from: vectors.ptr,
            n: page.keys.len() * stride,
            to,
            ahead: 0,
        });
        StridedRows { ptr: to, stride }
    }

    unsafe fn write_mixed(&self, out: Mat<f32>) {
        let (d, layout) = (self.job.kv.d_head, &self.tile.layout);
        for i in 0..self.tile.queries() {
            let (row, head) = self.tile.query(i);
            let from = self.scratch.wrapping_add(layout.mixed + i * layout.width);
            // SAFETY: guaranteed by the caller.
            unsafe { copy(from, out.row(row).wrapping_add(head * d), d) };
        }
    }

    unsafe fn write_pattern(&self, out: Mat<f32>) {
        for i in 0..self.tile.queries() {
            let (row, head) = self.tile.query(i);
            let to = out.row(row * self.job.how.heads + head);
            let keys = self.job.keys(row);
            // SAFETY: guaranteed by the caller; the keys end inside the row.
            unsafe {
                std::ptr::write_bytes(to.cast::<u8>(), 0, 4 * keys.start);
                copy(self.score(i, keys.start), to.add(keys.start), keys.len());
                let rest = to.add(keys.end).cast::<u8>();
                std::ptr::write_bytes(rest, 0, 4 * (out.cols - keys.end));
            }
        }
    }

    unsafe fn read_pattern(&self, pattern: Mat<f32>) {
        for i in 0..self.tile.queries() {
            let (row, head) = self.tile.query(i);
            let from = pattern.row(row * self.job.how.heads + head);
            let keys = self.job.keys(row);
            // SAFETY: guaranteed by the caller; the keys end inside the row.
            unsafe { copy(from.add(keys.start), self.score(i, keys.start), keys.len()) };
        }
    }
}

/// A page of the tile's session.
struct TilePage {
    id: usize,
    /// Number of the key that is the page's first token.
    first: usize,
    /// Keys of the page that the tile sees.
    keys: Range<usize>,
}

/// Copies floats at any alignment.
///
/// # Safety
/// `from` must be readable and `to` writable over `n`, and they must lie apart.
unsafe fn copy(from: *const f32, to: *mut f32, n: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), 4 * n) };
}
