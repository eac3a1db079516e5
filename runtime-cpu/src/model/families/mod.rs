//! What distinguishes the language-model families, one small file each.

mod gemma3;
mod llama;
mod qwen2;
mod qwen2vl;
mod qwen3;

use crate::ops::rope::RopeKind;

/// A family of language models that share a graph.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `general.architecture` of its files.
    pub architecture: &'static str,
    /// Pairing of the rotary channels.
    pub rope: RopeKind,
    /// Positions are three numbers, and the file says which channels turn with which (`rope.dimension_sections`).
    pub m_rope: bool,
    /// Every query and key head is normalised before its rotation.
    pub qk_norm: bool,
    /// The outputs of attention and feed-forward are normalised before they are added.
    pub post_norms: bool,
    /// Embedding rows of tokens are multiplied by `sqrt(n_embd)`.
    pub scaled_embeddings: bool,
    /// Between the two matrices of the feed-forward layer.
    pub activation: GatedActivation,
    /// Layers that see only the last tokens, if the file has a window.
    pub windows: Option<Windows>,
    /// With this many layers logits are divided by `sqrt(n_embd / n_heads)` instead of `sqrt(head_dim)`.
    pub scale_by_width_at: Option<usize>,
}

/// `activation(gate x) * up x`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatedActivation {
    /// `x * sigmoid(x)`
    Silu,
    /// GELU by tanh.
    Gelu,
}

/// Which layers see only a window, unless the file says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Windows {
    /// The last layer of every so many sees everything.
    pub period: usize,
    /// Base of the rotary frequencies of the layers with a window, which are never scaled.
    pub rope_theta: f32,
}

impl Family {
    /// Pre-norm, gated SiLU, no peculiarities.
    const fn plain(architecture: &'static str, rope: RopeKind) -> Family {
        Family {
            architecture,
            rope,
            m_rope: false,
            qk_norm: false,
            post_norms: false,
            scaled_embeddings: false,
            activation: GatedActivation::Silu,
            windows: None,
            scale_by_width_at: None,
        }
    }
}

/// Every supported family.
pub const ALL: [Family; 5] = [llama::FAMILY, qwen2::FAMILY, qwen2vl::FAMILY, qwen3::FAMILY, gemma3::FAMILY];

/// The family whose files say `architecture`.
pub fn by_architecture(architecture: &str) -> Option<&'static Family> {
    const FAMILIES: &[Family] = &ALL;
    FAMILIES.iter().find(|f| f.architecture == architecture)
}
