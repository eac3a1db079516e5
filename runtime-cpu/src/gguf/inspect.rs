//! What a GGUF file holds, as plain fields to print.

use std::collections::BTreeMap;

use super::GgufFile;
use crate::Error;
use crate::quant::GgmlType;

/// Overview of one file. Made from the header alone: the architecture need not be one that the runtime can run, and
/// what the file does not say is `None`.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Path or name of the file.
    pub file: String,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`.
    pub name: Option<String>,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Elements of all tensors.
    pub n_parameters: u64,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Tensors by type, the type with the most bytes first.
    pub types: Vec<TypeUse>,
    /// Hyper-parameters.
    pub model: ModelSummary,
}

/// All tensors of one type.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TypeUse {
    /// The type.
    pub ty: GgmlType,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Their elements.
    pub n_parameters: u64,
    /// Their bytes.
    pub n_bytes: u64,
}

/// Hyper-parameters, by kind of file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ModelSummary {
    /// A language model.
    Language(LanguageSummary),
    /// A vision tower with projector (`general.architecture = clip`).
    Projector(ProjectorSummary),
}

/// Hyper-parameters of a language model.
#[derive(Clone, Debug)]
pub struct LanguageSummary {
    /// Number of layers.
    pub n_layers: Option<u32>,
    /// Width of the hidden state.
    pub n_embd: Option<u32>,
    /// Width of the feed-forward network, per layer `[n_layers]`.
    pub n_ff: Option<Vec<u32>>,
    /// Query heads, per layer `[n_layers]`.
    pub n_heads: Option<Vec<u32>>,
    /// Key-value heads, per layer `[n_layers]`.
    pub n_kv_heads: Option<Vec<u32>>,
    /// Elements of one key.
    pub key_length: Option<u32>,
    /// Elements of one value.
    pub value_length: Option<u32>,
    /// Tokens the model was trained for.
    pub context_length: Option<u32>,
    /// Tokens in the vocabulary, padding included.
    pub vocab_size: Option<u64>,
    /// Base of the rotary embedding.
    pub rope_freq_base: Option<f32>,
    /// Whether the output head shares the token embedding.
    pub tied_head: bool,
    /// Bytes that one token adds to a full key-value cache of f32 elements, over all layers. `None` if
    /// the file does not state the head counts and sizes.
    pub kv_bytes_per_token_f32: Option<u64>,
    /// The same for f16 elements.
    pub kv_bytes_per_token_f16: Option<u64>,
}

/// Hyper-parameters of a vision tower and its projector.
#[derive(Clone, Debug)]
pub struct ProjectorSummary {
    /// How image features become embeddings: `mlp`, `qwen2vl_merger`, `idefics3`...
    pub projector_type: Option<String>,
    /// Side of the square input in pixels.
    pub image_size: Option<u32>,
    /// Side of a patch in pixels.
    pub patch_size: Option<u32>,
    /// Layers present in the file.
    pub n_layers: Option<u32>,
    /// Width of the tower's hidden state.
    pub n_embd: Option<u32>,
    /// Width of the tower's feed-forward network, from the tensors: the metadata is wrong in many files.
    pub n_ff: Option<usize>,
    /// Attention heads.
    pub n_heads: Option<u32>,
    /// Width of the embeddings handed to the language model, from the projector's last matrix.
    pub projection_width: Option<usize>,
}

impl Summary {
    /// Collects the overview.
    ///
    /// # Errors
    /// [`Error::Metadata`] if the architecture is missing, or a key has a type or size that makes no sense.
    pub fn new(file: &GgufFile) -> Result<Self, Error> {
        let m = file.metadata();
        let architecture = m.str("general.architecture")?.to_owned();
        let model = match architecture.as_str() {
            "clip" => ModelSummary::Projector(projector(file)?),
            _ => ModelSummary::Language(language(file, &architecture)?),
        };
        let types = type_uses(file);
        Ok(Self {
            file: file.name().to_owned(),
            file_bytes: file.n_bytes() as u64,
            architecture,
            name: m.opt_str("general.name")?.map(str::to_owned),
            n_tensors: types.iter().map(|u| u.n_tensors).sum(),
            n_parameters: types.iter().map(|u| u.n_parameters).sum(),
            tensor_bytes: types.iter().map(|u| u.n_bytes).sum(),
            types,
            model,
        })
    }
}

fn type_uses(file: &GgufFile) -> Vec<TypeUse> {
    let mut uses = BTreeMap::new();
    for tensor in file.tensors() {
        let zero = TypeUse { ty: tensor.ty, n_tensors: 0, n_parameters: 0, n_bytes: 0 };
        let u = uses.entry(tensor.ty).or_insert(zero);
        u.n_tensors += 1;
        u.n_parameters += tensor.n_elements() as u64;
        u.n_bytes += tensor.n_bytes() as u64;
    }
    let mut uses: Vec<TypeUse> = uses.into_values().collect();
    uses.sort_by_key(|u| std::cmp::Reverse(u.n_bytes));
    uses
}

fn language(file: &GgufFile, architecture: &str) -> Result<LanguageSummary, Error> {
    let m = file.metadata();
    let key = |name: &str| format!("{architecture}.{name}");
    let n_layers = m.opt_u32(&key("block_count"))?;
    let per_layer = |name: &str| match n_layers {
        Some(n) => m.opt_u32_or_array(&key(name), n as usize),
        None => Ok(None),
    };
    let n_embd = m.opt_u32(&key("embedding_length"))?;
    let n_heads = per_layer("attention.head_count")?;
    let n_kv_heads = per_layer("attention.head_count_kv")?.or_else(|| n_heads.clone());
    let first_heads = n_heads.as_ref().and_then(|h| h.first().copied());
    let head_dim = n_embd.zip(first_heads).and_then(|(width, heads)| width.checked_div(heads));
    let key_length = m.opt_u32(&key("attention.key_length"))?.or(head_dim);
    let value_length = m.opt_u32(&key("attention.value_length"))?.or(head_dim);
    let embedding_rows = file.tensor("token_embd.weight").map(|t| t.n_rows() as u64);
    let n_tokens = m.opt_str_array("tokenizer.ggml.tokens")?.map(|t| t.len() as u64);
    let kv_elements = match (&n_kv_heads, key_length, value_length) {
        // 4096 layers of u32 heads, two u32 sizes: the product fits a u128 with room to spare.
        (Some(heads), Some(k), Some(v)) => {
            Some(heads.iter().map(|&h| u128::from(h)).sum::<u128>() * (u128::from(k) + u128::from(v)))
        }
        _ => None,
    };
    let kv_bytes = |element: u128| {
        let too_large = || m.error(&key("attention.head_count_kv"), "the cache's size overflows".to_owned());
        kv_elements.map(|n| u64::try_from(n * element).map_err(|_| too_large())).transpose()
    };
    Ok(LanguageSummary {
        n_layers,
        n_embd,
        n_ff: per_layer("feed_forward_length")?,
        n_heads,
        n_kv_heads,
        key_length,
        value_length,
        context_length: m.opt_u32(&key("context_length"))?,
        vocab_size: embedding_rows.or(m.opt_u32(&key("vocab_size"))?.map(u64::from)).or(n_tokens),
        rope_freq_base: m.opt_f32(&key("rope.freq_base"))?,
        tied_head: embedding_rows.is_some() && file.tensor("output.weight").is_none(),
        kv_bytes_per_token_f32: kv_bytes(4)?,
        kv_bytes_per_token_f16: kv_bytes(2)?,
    })
}

fn projector(file: &GgufFile) -> Result<ProjectorSummary, Error> {
    let m = file.metadata();
    let n_embd = m.opt_u32("clip.vision.embedding_length")?;
    let projector_type = match m.opt_str("clip.projector_type")? {
        None => m.opt_str("clip.vision.projector_type")?,
        some => some,
    };
    // Old converters swapped the names of the two matrices, so the width is the side that is not the hidden state.
    let n_ff = file.tensor("v.blk.0.ffn_up.weight").map(|t| match n_embd {
        Some(n) if t.n_cols() != n as usize => t.n_cols(),
        _ => t.n_rows(),
    });
    let last_matrix = ["mm.3.weight", "mm.2.weight", "mm.model.fc.weight"].into_iter().find_map(|n| file.tensor(n));
    Ok(ProjectorSummary {
        projector_type: projector_type.map(str::to_owned),
        image_size: m.opt_u32("clip.vision.image_size")?,
        patch_size: m.opt_u32("clip.vision.patch_size")?,
        n_layers: m.opt_u32("clip.vision.block_count")?,
        n_embd,
        n_ff,
        n_heads: m.opt_u32("clip.vision.attention.head_count")?,
        projection_width: last_matrix.map(|t| t.n_rows()),
    })
}
