//! Chooses which key-value cache entries each attention head keeps.
//!
//! `no_std`, no allocation, no panics. The caller owns all memory: ask [`Policy::workspace_len`], hand in slices, call
//! [`evict_layer`]. Outputs are written only on success.
//!
//! ```
//! use ecokv_core::{Dispatch, Keep, LayerShape, LayerView, Observation, Rows, Workspace, evict_layer, methods};
//!
//! let method = methods::by_name("keydiff").unwrap();
//! let shape = LayerShape { n_kv_heads: 1, group: 1, head_dim: 2 };
//! let keys = [1.0, 0.0, 1.0, 0.1, -1.0, 0.0, 1.0, 0.2]; // [rows][head_dim]: the third points back
//! let view = LayerView {
//!     shape,
//!     starts: &[0],
//!     lens: &[4],
//!     keys: Rows::F32(&keys),
//!     values: None,
//!     observation: Observation::default(),
//!     scale: 1.0,
//!     layer: 0,
//!     n_layers: 1,
//! };
//! let (mut f32s, mut u32s) = ([0.0; 256], [0; 4]);
//! let len = method.policy.workspace_len(shape, 4).unwrap();
//! assert!(len.f32s <= f32s.len() && len.u32s <= u32s.len());
//! let workspace = Workspace { f32s: &mut f32s, u32s: &mut u32s };
//! let (mut indices, mut counts) = ([0; 4], [0]);
//! let keep = Keep { indices: &mut indices, counts: &mut counts };
//! evict_layer(Dispatch::detect(), &method.policy, 2, &view, workspace, keep)?;
//! assert_eq!(counts, [2]);
//! assert_eq!(indices[..2], [0, 2]);
//! # Ok::<(), ecokv_core::Error>(())
//! ```
//!
//! A method is six small values ([`Policy`]), applied in this order to each head: importance, diversity, their mix,
//! protection, the head's budget, and the fate of the rest. [`LayerBudget`] shares the budget over the layers before.
//! Every level of [`Dispatch`] returns the same bits.

#![no_std]
#![deny(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation
)]

#[cfg(feature = "std")]
extern crate std;

mod absorb;
mod attention;
mod axes;
mod budget;
pub mod decode;
mod error;
mod evict;
pub mod expected;
mod farthest;
mod geometry;
mod heads;
mod importance;
mod kernels;
mod lag;
mod math;
mod merge;
pub mod methods;
mod mmr;
mod modality;
mod moments;
#[cfg(feature = "heapless")]
pub mod owned;
mod policy;
mod profile;
mod read;
mod recall;
mod redundancy;
mod repetition;
mod retain;
mod route;
mod score;
mod select;
mod shape;
mod workspace;

pub use absorb::{Evictee, absorb};
pub use axes::{
    Attention, Combine, Depth, Diversity, Edge, Evicted, Geometry, Importance, Mass, Merge, MergeRule, Mix, Mmr, Norm,
    Pool, Queries, Readout, Redundancy, Reference, Retain, Scaling, Search, Similarity, ValueNorm, sinh_weight,
};
pub use budget::LayerBudget;
pub use decode::{accumulate, accumulate_workspace_len, compact};
pub use error::Error;
pub use evict::{Keep, Kept, Report, evict_layer, score_layer};
pub use heads::HeadBudget;
pub use kernels::Dispatch;
pub use merge::{LayerMut, merge_layer, merge_workspace_len};
pub use methods::Method;
pub use moments::{Moments, Slot, tilt};
pub use policy::{Needs, Policy, Protect, Recent};
pub use profile::{from_profile, from_rates, per_kv_head};
pub use read::{Reading, read_slots};
pub use recall::{Recall, recall};
pub use redundancy::{redundancy_layer, redundancy_policy};
pub use retain::{Slots, entropy_layer, retain_layer};
pub use route::{RouteError, RouteErrorKind, RouteLayer, parse_route};
pub use shape::{LayerShape, LayerView, Observation, Rows, tag};
pub use workspace::{Workspace, WorkspaceLen};
