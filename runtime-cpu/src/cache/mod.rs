//! The key-value cache: one arena per layer, in which every KV head owns a range of rows of its own length.

mod staging;
mod store;

pub use staging::Staging;
pub use store::{Kept, KvCache, KvType, LayerCache, SlotRows};
