//! Hyper-parameters of a language model.

use super::families::{self, Family, GatedActivation};
use crate::Error;
use crate::gguf::{GgufFile, Metadata};
use crate::ops::attention::Mask;
use crate::ops::rope::{RopeKind, RopeScaling};

/// Hyper-parameters of a language model, read from a file and checked against each other.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// `general.architecture`
    pub architecture: String,
    /// Decoder layers.
    pub n_layers: usize,
    /// Width of a hidden state.
    pub n_embd: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key-value heads; query head j reads KV head `j / (n_heads / n_kv_heads)`.
    pub n_kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub n_ff: usize,
    /// Rows of the embedding table: at least the tokens of the vocabulary.
    pub n_vocab: usize,
    /// Positions the model was trained for.
    pub n_ctx_train: usize,
    /// Epsilon of RMS normalisation.
    pub rms_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// How the rotary frequencies were stretched.
    pub rope_scaling: RopeScaling,
    /// Pairing of the rotary channels.
    pub rope_kind: RopeKind,
    /// M-RoPE: channel pairs that turn with time, row and column; they add up to `head_dim / 2`.
    pub rope_sections: Option<[usize; 3]>,
    /// `[n_layers]` Rows that a layer's queries see, their own included; all if `None`.
    pub windows: Vec<Option<usize>>,
    /// Base of the rotary frequencies in the layers with a window, where they are not scaled.
    pub window_rope_theta: f32,
    /// Query and key heads are normalised before their rotation.
    pub qk_norm: bool,
    /// The outputs of attention and feed-forward are normalised before they are added.
    pub post_norms: bool,
    /// Factor on the embedding rows of tokens.
    pub embedding_scale: f32,
    /// Between the two matrices of the feed-forward layer.
    pub activation: GatedActivation,
    /// Factor on the attention logits, `1 / sqrt(head_dim)` unless the file says otherwise.
    pub attention_scale: f32,
}

impl ModelConfig {
    /// Reads the configuration of a supported architecture.
    ///
    /// # Errors
    /// [`Error::Model`] for an architecture or a feature that is not supported, [`Error::Metadata`] for missing or
    /// impossible values.
    pub fn from_gguf(file: &GgufFile) -> Result<ModelConfig, Error> {
        let architecture = file.metadata().str("general.architecture")?;
        let Some(family) = families::by_architecture(architecture) else {
            let known = families::ALL.map(|f| f.architecture).join(", ");
            let what = format!("architecture {architecture:?} is not supported (supported: {known})");
            return Err(Error::Model { file: file.name().into(), what });
        };
        read(file, architecture, family)
    }

    /// Query heads per KV head.
    pub fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// What the queries of a layer see.
    pub fn mask(&self, layer: usize) -> Mask<'static> {
        self.windows[layer].map_or(Mask::Causal, Mask::Window)
    }
}

fn read(file: &GgufFile, a: &str, family: &Family) -> Result<ModelConfig, Error> {
    let keys = Keys { meta: file.metadata(), architecture: a };
    let n_layers = keys.count("block_count")?;
    let n_embd = keys.count("embedding_length")?;
    let (n_heads, n_kv_heads) = keys.heads(n_layers)?;
    let head_dim = keys.head_dim(n_embd / n_heads)?;
    keys.refuse_unsupported(family)?;
    let scale = keys.meta.opt_f32(&keys.name("attention.scale"))?.filter(|s| *s != 0.0 && s.is_finite());
    let by_width = family.scale_by_width_at == Some(n_layers);
    let query_width = if by_width { n_embd as f32 / n_heads as f32 } else { head_dim as f32 };
    let windows = match &family.windows {
        Some(windows) => keys.windows(windows, n_layers)?,
        None => vec![None; n_layers],
    };
    Ok(ModelConfig {
        architecture: a.into(),
        n_layers,
        n_embd,
        n_heads,
        n_kv_heads,
        head_dim,
        n_ff: keys.count("feed_forward_length")?,
        n_vocab: file.require("token_embd.weight")?.n_rows(),
        n_ctx_train: keys.count("context_length")?,
        rms_eps: keys.positive("attention.layer_norm_rms_epsilon", None)?,
        rope_theta: keys.positive("rope.freq_base", Some(10_000.0))?,
        rope_scaling: keys.rope_scaling()?,
        rope_kind: family.rope,
        rope_sections: if family.m_rope { Some(keys.rope_sections(head_dim)?) } else { None },
        windows,
        window_rope_theta: match &family.windows {
            Some(windows) => keys.positive("rope.freq_base_swa", Some(windows.rope_theta))?,
            None => 0.0,
        },
        qk_norm: family.qk_norm,
        post_norms: family.post_norms,
        embedding_scale: if family.scaled_embeddings { (n_embd as f32).sqrt() } else { 1.0 },
        activation: family.activation,
        attention_scale: scale.unwrap_or(1.0 / query_width.sqrt()),
    })
}

/// The entries `<architecture>.<name>`.
struct Keys<'a> {
    meta: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn error(&self, name: &str, what: String) -> Error {
        self.meta.error(&self.name(name), what)
    }

    fn count(&self, name: &str) -> Result<usize, Error> {
        match self.meta.u32(&self.name(name))? {
            0 => Err(self.error(name, "must be at least 1".into())),
            n => Ok(n as usize),
        }
    }

    fn positive(&self, name: &str, default: Option<f32>) -> Result<f32, Error> {
        let value = match (self.meta.opt_f32(&self.name(name))?, default) {
            (Some(v), _) | (None, Some(v)) => v,
            (None, None) => self.meta.f32(&self.name(name))?,
        };
        match value {
            v if v.is_finite() && v > 0.0 => Ok(v),
            v => Err(self.error(name, format!("{v} is not a positive number"))),
        }
    }

    /// Query heads and KV heads.
    fn heads(&self, n_layers: usize) -> Result<(usize, usize), Error> {
        let same_everywhere = |name: &str, values: Vec<u32>| -> Result<usize, Error> {
            match values[..] {
                [first, ref rest @ ..] if first > 0 && rest.iter().all(|&v| v == first) => Ok(first as usize),
                _ => Err(self.error(name, format!("{values:?}: layers with different head counts are not supported"))),
            }
        };
        let heads = "attention.head_count";
        let n_heads = same_everywhere(heads, self.meta.u32_or_array(&self.name(heads), n_layers)?)?;
        let kv_heads = "attention.head_count_kv";
        let n_kv_heads = match self.meta.opt_u32_or_array(&self.name(kv_heads), n_layers)? {
            Some(values) => same_everywhere(kv_heads, values)?,
            None => n_heads,
        };
        if !n_heads.is_multiple_of(n_kv_heads) {
            return Err(self.error(kv_heads, format!("{n_kv_heads} KV heads do not divide {n_heads} query heads")));
        }
        Ok((n_heads, n_kv_heads))
    }

    fn head_dim(&self, default: usize) -> Result<usize, Error> {
        let length = "attention.key_length";
        let head_dim = self.meta.opt_u32(&self.name(length))?.map_or(default, |n| n as usize);
        if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
            return Err(self.error(length, format!("a head size of {head_dim} is not supported")));
        }
        for name in ["attention.value_length", "rope.dimension_count"] {
            if let Some(n) = self.meta.opt_u32(&self.name(name))?
                && n as usize != head_dim
            {
                return Err(self.error(name, format!("{n} differs from the head size {head_dim}: not supported")));
            }
        }
        Ok(head_dim)
    }

    fn refuse_unsupported(&self, family: &Family) -> Result<(), Error> {
        let window = ("attention.sliding_window", "a sliding window");
        let experts = ("expert_count", "a mixture of experts");
        for (name, what) in [window, experts].into_iter().filter(|&f| family.windows.is_none() || f != window) {
            if let Some(n) = self.meta.opt_u32(&self.name(name))?.filter(|&n| n > 0) {
                return Err(self.error(name, format!("{n}: {what} is not supported")));
            }
        }
        for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if let Some(cap) = self.meta.opt_f32(&self.name(name))?.filter(|&cap| cap != 0.0) {
                return Err(self.error(name, format!("{cap}: capped logits are not supported")));
            }
        }
        Ok(())
    }

    fn rope_scaling(&self) -> Result<RopeScaling, Error> {
        let (kind, factor) = ("rope.scaling.type", "rope.scaling.factor");
        let old_factor = self.meta.opt_f32(&self.name("rope.scale_linear"))?.filter(|&f| f != 0.0);
        let given = self.meta.opt_f32(&self.name(factor))?.or(old_factor);
        match (self.meta.opt_str(&self.name(kind))?, given) {
            (Some("none"), _) | (None, None) => Ok(RopeScaling::None),
            (None | Some("linear"), _) => Ok(RopeScaling::Linear { factor: self.positive(factor, given)? }),
            (Some("yarn"), _) => self.yarn(self.positive(factor, given)?),
            (Some(other), _) => Err(self.error(kind, format!("scaling {other:?} is not supported"))),
        }
    }

    fn yarn(&self, factor: f32) -> Result<RopeScaling, Error> {
        // Other mixes than the published one; DeepSeek's.
        for (name, usual) in [("yarn_ext_factor", 1.0), ("yarn_attn_factor", 1.0), ("yarn_log_multiplier", 0.0)] {
            let name = format!("rope.scaling.{name}");
            if let Some(value) = self.meta.opt_f32(&self.name(&name))?.filter(|&v| v != usual) {
                return Err(self.error(&name, format!("{value}: only {usual} is supported")));
            }
        }
        let original = "rope.scaling.original_context_length";
        let original_context = match self.meta.opt_u32(&self.name(original))? {
            Some(0) => return Err(self.error(original, "must be at least 1".into())),
            Some(n) => n,
            None => self.count("context_length")? as u32,
        };
        if self.positive("rope.freq_base", Some(10_000.0))? <= 1.0 {
            return Err(self.error("rope.freq_base", "must be more than 1 for YaRN".into()));
        }
        let attention = self.positive("rope.scaling.attn_factor", Some(1.0))?;
        Ok(RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast: self.positive("rope.scaling.yarn_beta_fast", Some(32.0))?,
            beta_slow: self.positive("rope.scaling.yarn_beta_slow", Some(1.0))?,
            magnitude: attention * (1.0 + 0.1 * factor.max(1.0).ln()),
        })
    }

    fn rope_sections(&self, head_dim: usize) -> Result<[usize; 3], Error> {
        let name = "rope.dimension_sections";
        let values = self.meta.i32_array(&self.name(name))?;
        let sections = match values[..] {
            [t, h, w] | [t, h, w, 0] => [t, h, w].map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
            _ => return Err(self.error(name, format!("{values:?}: expected three sections and a 0"))),
        };
        if sections.iter().try_fold(0_usize, |sum, &n| sum.checked_add(n)) != Some(head_dim / 2) {
            return Err(self.error(name, format!("{values:?} do not add up to half of the head size {head_dim}")));
        }
        Ok(sections)
    }

    /// `[n_layers]`
    fn windows(&self, usual: &families::Windows, n_layers: usize) -> Result<Vec<Option<usize>>, Error> {
        let size = match self.meta.opt_u32(&self.name("attention.sliding_window"))? {
            None | Some(0) => return Ok(vec![None; n_layers]),
            Some(1) => return Err(self.error("attention.sliding_window", "1: tokens would see only themselves".into())),
            Some(n) => n as usize,
        };
        let name = "attention.sliding_window_pattern";
        let has_window = match self.meta.opt_bool_array(&self.name(name)) {
            Ok(Some(layers)) if layers.len() == n_layers => layers.to_vec(),
            Ok(Some(layers)) => {
                return Err(self.error(name, format!("an array of {} values for {n_layers} layers", layers.len())));
            }
            _ => {
                let period = self.meta.opt_u32(&self.name(name))?.map_or(usual.period, |n| n as usize);
                (1..=n_layers).map(|l: usize| !l.is_multiple_of(period)).collect()
            }
        };
        Ok(has_window.into_iter().map(|has| has.then_some(size)).collect())
    }
}

/// Largest supported head size.
pub(super) const MAX_HEAD_DIM: usize = 1024;
