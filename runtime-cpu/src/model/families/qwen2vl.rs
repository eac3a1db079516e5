//! The language models of Qwen2-VL and Qwen2.5-VL: Qwen2 with M-RoPE (Wang et al. 2024).

use super::Family;
use crate::ops::rope::RopeKind;

pub(super) const FAMILY: Family = Family { m_rope: true, ..Family::plain("qwen2vl", RopeKind::Half) };
