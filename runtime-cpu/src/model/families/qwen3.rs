//! Qwen3: normalised query and key heads instead of Qwen2's biases.

use super::Family;
use crate::ops::rope::RopeKind;

pub(super) const FAMILY: Family = Family { qk_norm: true, ..Family::plain("qwen3", RopeKind::Half) };
