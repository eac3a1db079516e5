//! Hyper-parameters of a language model.

use super::families;
use crate::Error;
use crate::gguf::GgufFile;
use crate::ops::rope::RopeKind;

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
    /// Pairing of the rotary channels.
    pub rope_kind: RopeKind,
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
}

fn read(file: &GgufFile, a: &str, family: &families::Family) -> Result<ModelConfig, Error> {
    let meta = file.metadata();
    let key = |name: &str| format!("{a}.{name}");
    let count = |name: &str| -> Result<usize, Error> {
        match meta.u32(&key(name))? {
            0 => Err(meta.error(&key(name), "must be at least 1".into())),
            n => Ok(n as usize),
        }
    };
    let n_layers = count("block_count")?;
    let same_everywhere = |name: &str, values: Vec<u32>| -> Result<usize, Error> {
        match values[..] {
            [first, ref rest @ ..] if first > 0 && rest.iter().all(|&v| v == first) => Ok(first as usize),
            _ => {
                Err(meta.error(&key(name), format!("{values:?}: layers with different head counts are not supported")))
            }
        }
    };
    let n_embd = count("embedding_length")?;
    let heads = "attention.head_count";
    let n_heads = same_everywhere(heads, meta.u32_or_array(&key(heads), n_layers)?)?;
    let kv_heads = "attention.head_count_kv";
    let n_kv_heads = match meta.opt_u32_or_array(&key(kv_heads), n_layers)? {
        Some(values) => same_everywhere(kv_heads, values)?,
        None => n_heads,
    };
    if !n_heads.is_multiple_of(n_kv_heads) {
        return Err(meta.error(&key(kv_heads), format!("{n_kv_heads} KV heads do not divide {n_heads} query heads")));
    }
    let head_dim = match meta.opt_u32(&key("attention.key_length"))? {
        Some(n) => n as usize,
        None => n_embd / n_heads,
    };
    if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > 1024 {
        return Err(meta.error(&key("attention.key_length"), format!("a head size of {head_dim} is not supported")));
    }
    for name in ["attention.value_length", "rope.dimension_count"] {
        if let Some(n) = meta.opt_u32(&key(name))?
            && n as usize != head_dim
        {
            return Err(meta.error(&key(name), format!("{n} differs from the head size {head_dim}: not supported")));
        }
    }
    if let Some(kind) = meta.opt_str(&key("rope.scaling.type"))?
        && kind != "none"
    {
        return Err(meta.error(&key("rope.scaling.type"), format!("scaling {kind:?} is not supported")));
    }
    for (name, what) in [("attention.sliding_window", "a sliding window"), ("expert_count", "a mixture of experts")] {
        if let Some(n) = meta.opt_u32(&key(name))?.filter(|&n| n > 0) {
            return Err(meta.error(&key(name), format!("{n}: {what} is not supported")));
        }
    }
    let scale = meta.opt_f32(&key("attention.scale"))?.filter(|s| *s != 0.0 && s.is_finite());
    let n_vocab = file.require("token_embd.weight")?.n_rows();
    let positive = |name: &str, v: f32| match v {
        v if v.is_finite() && v > 0.0 => Ok(v),
        v => Err(meta.error(&key(name), format!("{v} is not a positive number"))),
    };
    let (eps, theta) = ("attention.layer_norm_rms_epsilon", "rope.freq_base");
    Ok(ModelConfig {
        architecture: a.into(),
        n_layers,
        n_embd,
        n_heads,
        n_kv_heads,
        head_dim,
        n_ff: count("feed_forward_length")?,
        n_vocab,
        n_ctx_train: count("context_length")?,
        rms_eps: positive(eps, meta.f32(&key(eps))?)?,
        rope_theta: positive(theta, meta.opt_f32(&key(theta))?.unwrap_or(10_000.0))?,
        rope_kind: family.rope,
        attention_scale: scale.unwrap_or(1.0 / (head_dim as f32).sqrt()),
    })
}
