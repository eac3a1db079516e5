//! Templates for files that bring none.

use crate::tokenizer::Tokenizer;
use std::fmt;

/// Where a chat template comes from. The built-in ones are tried in the order given here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The file's own `tokenizer.chat_template`.
    File,
    /// ChatML, for vocabularies with `<|im_start|>` and `<|im_end|>` (LLaVA-NeXT on Yi, among others).
    ChatMl,
    /// `[INST] ... [/INST]`, for vocabularies with `[INST]` and files whose `general.name` contains `mistral` or
    /// `mixtral` (LLaVA-NeXT on Mistral).
    Inst,
    /// Vicuna with LLaVA's system sentence, for any other SentencePiece vocabulary with `<s>` and `</s>` (LLaVA-1.5 and
    /// LLaVA-NeXT on Vicuna).
    Vicuna,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::File => "from the file",
            Source::ChatMl => "built in: chatml",
            Source::Inst => "built in: [INST]",
            Source::Vicuna => "built in: vicuna",
        })
    }
}

/// The built-in template for a vocabulary, by the rules of [`Source`].
pub(super) fn choose(model_name: &str, tokenizer: &Tokenizer) -> Option<(Source, String)> {
    let has = |texts: &[&str]| texts.iter().all(|text| tokenizer.find_special(text).is_some());
    let name = model_name.to_lowercase();
    let (source, text) = if has(&["<|im_start|>", "<|im_end|>"]) {
        (Source::ChatMl, CHATML)
    } else if has(&["[INST]"]) || name.contains("mistral") || name.contains("mixtral") {
        (Source::Inst, INST)
    } else if tokenizer.is_sentence_piece() && has(&["<s>", "</s>"]) {
        (Source::Vicuna, VICUNA)
    } else {
        return None;
    };
    Some((source, text.into()))
}

const CHATML: &str = "\
{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// The begin token is left to the tokenizer. A system message joins the first user message.
const INST: &str = "\
{% set ns = namespace(system='') %}{% for m in messages %}\
{% if m.role == 'system' %}{% set ns.system = m.content + '\n\n' %}\
{% elif m.role == 'user' %}{{ '[INST] ' + ns.system + m.content + ' [/INST]' }}{% set ns.system = '' %}\
{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}";

const VICUNA: &str = "\
{% if messages[0].role != 'system' %}{{ \"A chat between a curious human and an artificial intelligence assistant. \
The assistant gives helpful, detailed, and polite answers to the human's questions. \" }}{% endif %}\
{% for m in messages %}{% if m.role == 'system' %}{{ m.content + ' ' }}\
{% elif m.role == 'user' %}{{ 'USER: ' + m.content + ' ' }}\
{% else %}{{ 'ASSISTANT: ' + m.content + eos_token }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}";
