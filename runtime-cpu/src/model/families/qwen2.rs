//! Qwen2 and Qwen2.5: biases on queries, keys and values, which the decoder takes wherever a file has them.

use super::Family;
use crate::ops::rope::RopeKind;

pub(super) const FAMILY: Family = Family::plain("qwen2", RopeKind::Half);
