//! What distinguishes the language-model families, one small file each.

mod llama;

use crate::ops::rope::RopeKind;

/// A family of language models that share a graph.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `general.architecture` of its files.
    pub architecture: &'static str,
    /// Pairing of the rotary channels.
    pub rope: RopeKind,
}

/// Every supported family.
pub const ALL: [Family; 1] = [llama::FAMILY];

/// The family whose files say `architecture`.
pub fn by_architecture(architecture: &str) -> Option<&'static Family> {
    const FAMILIES: &[Family] = &ALL;
    FAMILIES.iter().find(|f| f.architecture == architecture)
}
