//! The values a policy is made of, axis by axis.

mod diversity;
mod fate;
mod importance;
mod mix;

pub use diversity::{Combine, Diversity, Geometry, Mmr, Redundancy, Reference, Scaling, Search, Similarity};
pub use fate::{Evicted, Mass, Merge, MergeRule, Readout, Retain};
pub use importance::{Attention, Edge, Importance, Norm, Pool, Queries, ValueNorm};
pub use mix::{Depth, Mix, sinh_weight};
