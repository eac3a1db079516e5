//! Text to token ids and back, from the vocabulary stored in a GGUF file.
//!
//! Two schemes exist: `tokenizer.ggml.model = llama` (SentencePiece unigram merges with byte fallback) and `gpt2`
//! (byte-level BPE). Encoding cuts the special tokens out first and hands the text between them to the scheme. Where
//! llama.cpp and Hugging Face differ, the code follows Hugging Face unless a comment says otherwise.

mod bpe;
mod pretokenize;
mod special;
mod spm;
mod stream;
mod vocab;

pub use stream::Utf8Stream;

use crate::Error;
use crate::gguf::GgufFile;
use bpe::Bpe;
use special::Specials;
use spm::Spm;
use vocab::{Defaults, Kind, Vocab};

/// The tokenizer of one model. Immutable; share it freely between threads.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    specials: Specials,
    scheme: Scheme,
}

impl Tokenizer {
    /// Reads the vocabulary of a language-model file.
    ///
    /// **Errors**: a missing key, arrays of different lengths, a token id out of range where there is no default, and
    /// any tokenizer model or pre-tokenizer that is not supported; each names the key and the value.
    pub fn from_gguf(file: &GgufFile) -> Result<Tokenizer, Error> {
        let meta = file.metadata();
        let (vocab, scheme) = match meta.str(MODEL)? {
            "llama" => {
                let defaults = Defaults { bos: Some(1), eos: Some(2), unk: Some(0), add_bos: true };
                let mut vocab = Vocab::from_metadata(meta, defaults)?;
                let spm = Spm::from_metadata(meta, &vocab)?;
                vocab.mark_ends_as_control(|_| false);
                (vocab, Scheme::Spm(Box::new(spm)))
            }
            "gpt2" => {
                let name = meta.opt_str(PRE)?.unwrap_or("default");
                let Some(family) = pretokenize::family(name) else {
                    return Err(meta.error(PRE, format!("pre-tokenizer {name:?} is not supported")));
                };
                let defaults = Defaults { bos: None, eos: None, unk: None, add_bos: family.add_bos };
                let mut vocab = Vocab::from_metadata(meta, defaults)?;
                if name == "default" {
                    vocab.warnings.push(format!("{PRE} is missing or 'default': text is cut by generic rules"));
                }
                let bpe = Bpe::from_metadata(meta, &vocab, family)?;
                // A vocabulary learnt from web text can hold "</s>" as an ordinary word.
                vocab.mark_ends_as_control(|id| bpe.is_merge_result(id));
                (vocab, Scheme::Bpe(Box::new(bpe)))
            }
            other => {
                return Err(
                    meta.error(MODEL, format!("tokenizer model {other:?} is not supported (llama and gpt2 are)"))
                );
            }
        };
        let specials = Specials::new(&vocab).map_err(|what| meta.error(vocab::TOKENS, what))?;
        Ok(Tokenizer { vocab, specials, scheme })
    }

    /// Token ids of `text`.
    ///
    /// `add_special` puts the begin and end tokens around it that the file asks for. With `parse_special` the texts of
    /// control tokens (`<|im_end|>`, `</s>`) become those tokens; without it they are plain text, which is the right
    /// choice for untrusted input. User-defined tokens are always recognised.
    ///
    /// **Cost**: O(n log n) in the bytes of `text`.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if add_special && self.vocab.add_bos {
            out.extend(self.vocab.bos);
        }
        let fragments = self.specials.split(text, parse_special);
        match &self.scheme {
            Scheme::Spm(spm) => spm.encode(&self.vocab, &fragments, &mut out),
            Scheme::Bpe(bpe) => bpe.encode(&self.vocab, &fragments, &mut out),
        }
        if add_special && self.vocab.add_eos {
            out.extend(self.vocab.eos);
        }
        out
    }

    /// Appends the bytes of one token to `out`. Control, unknown and unused tokens give nothing, nor does an id that is
    /// out of range. A character may be spread over several tokens: see [`Utf8Stream`].
    pub fn decode_bytes(&self, id: u32, out: &mut Vec<u8>) {
        let Some(text) = self.vocab.text(id) else { return };
        match (self.vocab.kind(id), &self.scheme) {
            (Kind::Control | Kind::Unknown | Kind::Unused, _) => {}
            (Kind::UserDefined, _) => out.extend_from_slice(text.as_bytes()),
            (Kind::Byte, _) => out.extend(vocab::byte_token_value(text)),
            (Kind::Normal, Scheme::Spm(_)) => spm::decode(text, out),
            (Kind::Normal, Scheme::Bpe(_)) => bpe::decode(text, out),
        }
    }

    /// The token that begins a sequence.
    pub fn bos(&self) -> Option<u32> {
        self.vocab.bos
    }

    /// The token that ends a sequence.
    pub fn eos(&self) -> Option<u32> {
        self.vocab.eos
    }

    /// Whether the file asks for the begin token in front of a prompt.
    pub fn add_bos(&self) -> bool {
        self.vocab.add_bos
    }

    /// Whether the begin token must still be put in front of `prompt`: the file asks for it and the text, often the
    /// output of a chat template, does not start with it already.
    pub fn needs_bos(&self, prompt: &str) -> bool {
        self.vocab.add_bos
            && self.vocab.bos.and_then(|id| self.vocab.text(id)).is_some_and(|bos| !prompt.starts_with(bos))
    }

    /// Whether generation stops at this token: end of sequence, of turn, of message, and the tokens that are known by
    /// their text to mean the same.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.vocab.end_of_generation.binary_search(&id).is_ok()
    }

    /// Number of tokens in the list. The model's matrices may have more rows than that.
    pub fn n_tokens(&self) -> usize {
        self.vocab.len()
    }

    /// A token as the file writes it (with `Ġ` or `▁` for a space), or nothing if the id is out of range.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocab.text(id)
    }

    /// The control or user-defined token with exactly this text, such as `<|vision_start|>`.
    pub fn find_special(&self, text: &str) -> Option<u32> {
        self.vocab.id(text).filter(|&id| matches!(self.vocab.kind(id), Kind::Control | Kind::UserDefined))
    }

    /// Whether the vocabulary is SentencePiece's (as against byte-level BPE).
    pub fn is_sentence_piece(&self) -> bool {
        matches!(self.scheme, Scheme::Spm(_))
    }

    /// What was odd about the file without making it unusable, one line each.
    pub fn warnings(&self) -> &[String] {
        &self.vocab.warnings
    }
}

#[derive(Debug)]
enum Scheme {
    Spm(Box<Spm>),
    Bpe(Box<Bpe>),
}

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
