//! Gemma 3: five layers with a sliding window to one without, norms on both sides of attention and feed-forward
//! (Gemma Team 2025). The converter adds 1 to every norm's weight, so that they multiply as elsewhere.

use super::{Family, GatedActivation, Windows};
use crate::ops::rope::RopeKind;

pub(super) const FAMILY: Family = Family {
    qk_norm: true,
    post_norms: true,
    scaled_embeddings: true,
    activation: GatedActivation::Gelu,
    windows: Some(Windows { period: 6, rope_theta: 10_000.0 }),
    scale_by_width_at: Some(62), // the model of 27 billion weights
    ..Family::plain("gemma3", RopeKind::Half)
};
