//! The key-value cache: one run of rows per layer, in which every KV head owns a range of rows of its own length.

mod buffer;
mod staging;
mod store;

pub use buffer::KvType;
pub use staging::Staging;
pub use store::{Kept, KvCache, LayerCache, SlotRows};
