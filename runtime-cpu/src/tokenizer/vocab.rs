//! The token list and what the file says about single tokens.

use crate::Error;
use crate::gguf::Metadata;
use foldhash::{HashMap, HashMapExt};
use std::sync::Arc;

/// `tokenizer.ggml.token_type`. Numbers that llama.cpp does not know decode to nothing, as unused tokens do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// What holds when the file does not say.
pub(super) struct Defaults {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub add_bos: bool,
}

#[derive(Debug)]
pub(super) struct Vocab {
    texts: Vec<Arc<str>>,
    kinds: Vec<Kind>,
    ids: HashMap<Arc<str>, u32>,
    /// Bytes of the longest token.
    pub longest: usize,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
    /// Ascending.
    pub end_of_generation: Vec<u32>,
    pub warnings: Vec<String>,
}

impl Vocab {
    pub fn from_metadata(meta: &Metadata, defaults: Defaults) -> Result<Vocab, Error> {
        let tokens = meta.str_array(TOKENS)?;
        if tokens.is_empty() || u32::try_from(tokens.len()).is_err() {
            return Err(meta.error(TOKENS, format!("{} tokens", tokens.len())));
        }
        let kinds = match meta.opt_i32_array(TOKEN_TYPE)? {
            Some(types) if types.len() != tokens.len() => {
                return Err(meta.error(TOKEN_TYPE, format!("{} entries for {} tokens", types.len(), tokens.len())));
            }
            Some(types) => types.iter().map(|&t| kind_of(t)).collect(),
            None => vec![Kind::Normal; tokens.len()],
        };
        let texts: Vec<Arc<str>> = tokens.iter().map(|t| Arc::from(&**t)).collect();
        let mut ids = HashMap::with_capacity(texts.len());
        for (id, text) in (0u32..).zip(&texts).filter(|(_, text)| !text.is_empty()) {
            ids.entry(Arc::clone(text)).or_insert(id); // of equal texts the first counts
        }

        let mut warnings = Vec::new();
        let mut special = |key: &str, default: Option<u32>| -> Result<Option<u32>, Error> {
            let default = default.filter(|&id| (id as usize) < texts.len());
            match meta.opt_u32(key)? {
                Some(id) if (id as usize) < texts.len() => Ok(Some(id)),
                Some(id) => {
                    warnings.push(format!("{key} = {id}, but there are only {} tokens: ignored", texts.len()));
                    Ok(default)
                }
                None => Ok(default),
            }
        };
        let bos = special("tokenizer.ggml.bos_token_id", defaults.bos)?;
        let eos = special("tokenizer.ggml.eos_token_id", defaults.eos)?;
        let unk = special("tokenizer.ggml.unknown_token_id", defaults.unk)?;
        let mut end_of_generation: Vec<u32> = eos.into_iter().collect();
        for key in ENDING_KEYS {
            end_of_generation.extend(special(key, None)?);
        }
        end_of_generation.extend(ENDING_TEXTS.iter().filter_map(|&text| ids.get(text).copied()));
        end_of_generation.sort_unstable();
        end_of_generation.dedup();

        let add_bos = meta.opt_bool(ADD_BOS)?.unwrap_or(defaults.add_bos);
        let add_eos = meta.opt_bool(ADD_EOS)?.unwrap_or(false);
        for (key, asked, id) in [(ADD_BOS, add_bos, bos), (ADD_EOS, add_eos, eos)] {
            if asked && id.is_none() {
                return Err(meta.error(key, "true, but the file does not name that token".into()));
            }
        }
        let longest = texts.iter().map(|t| t.len()).max().unwrap_or(0);
        Ok(Vocab { texts, kinds, ids, longest, bos, eos, unk, add_bos, add_eos, end_of_generation, warnings })
    }

    /// Makes control tokens of those that end generation, except the `ordinary` ones. Careless converters mark
    /// `<|im_end|>` as normal text, which would then never be recognised in a prompt.
    pub fn mark_ends_as_control(&mut self, ordinary: impl Fn(u32) -> bool) {
        for &id in &self.end_of_generation {
            if !ordinary(id) {
                self.kinds[id as usize] = Kind::Control;
            }
        }
    }

    pub fn len(&self) -> usize {
        self.texts.len()
    }

    pub fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize).map(|t| &**t)
    }

    /// `Unused` for ids out of range.
    pub fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Unused)
    }

    pub fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }
}

/// The value of a byte token, `<0x0A>`.
pub(super) fn byte_token_value(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

fn kind_of(number: i32) -> Kind {
    match number {
        1 => Kind::Normal,
        2 => Kind::Unknown,
        3 => Kind::Control,
        4 => Kind::UserDefined,
        6 => Kind::Byte,
        _ => Kind::Unused,
    }
}

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// Further keys whose token ends generation. The last three separate files in code models.
const ENDING_KEYS: [&str; 5] = [
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

/// Texts that end generation in whatever vocabulary they occur (llama.cpp's list for the families supported here).
const ENDING_TEXTS: [&str; 26] = [
    "</s>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<end_of_turn>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];
