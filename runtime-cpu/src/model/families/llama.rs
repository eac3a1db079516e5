//! Llama, Mistral, SmolLM2 and the language models of LLaVA and SmolVLM. The converter interleaves the rotary channels
//! of the query and key rows.

use super::Family;
use crate::ops::rope::RopeKind;

pub(super) const FAMILY: Family = Family::plain("llama", RopeKind::Interleaved);
