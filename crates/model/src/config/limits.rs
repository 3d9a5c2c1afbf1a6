//! Limits on the sizes in a configuration.
//!
//! Within these limits no product of sizes overflows, and a hostile configuration cannot
//! describe a program that does not fit in memory.

pub const BLOCKS: usize = 4096;
pub const D_MODEL: usize = 1 << 20;
pub const HEADS: usize = 1 << 16;
pub const D_HEAD: usize = 1 << 16;
/// Number of elements in all query heads together.
pub const ATTENTION: usize = 1 << 24;
pub const D_MLP: usize = 1 << 24;
pub const VOCAB: usize = 1 << 26;
pub const CONTEXT: usize = i32::MAX as usize;
/// Number of experts in one block.
pub const EXPERTS: usize = 1024;
/// Number of experts in all blocks together.
pub const EXPERTS_ALL: usize = 1 << 16;
