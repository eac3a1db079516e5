//! Cuts text into the words inside which BPE merges.
//!
//! Every vocabulary was trained behind one particular set of regular expressions, and the file names that set only. The
//! expressions are written here as the models' own `tokenizer.json` has them, except for one alternative that this
//! regex engine cannot express: `\s+(?!\S)`, "a run of white space, but leave the last one to the word that follows".
//! It always comes last, followed by `\s+`; [`Pass::Words`] adds both.

use regex_automata::meta::Regex;
use regex_automata::{Input, PatternID};

/// How vocabularies of one family are used.
#[derive(Debug)]
pub(super) struct Family {
    names: &'static [&'static str],
    passes: &'static [Pass],
    pub ignore_merges: bool,
    /// Whether a begin token is put in front unless the file says otherwise.
    pub add_bos: bool,
}

/// One pass over the pieces that the passes before left. Matches become pieces of their own, and so does what lies
/// between them.
#[derive(Debug)]
enum Pass {
    /// The expression, then `\s+(?!\S)|\s+`.
    Words(&'static str),
    /// The expression alone.
    Isolate(&'static str),
}

/// The family that `tokenizer.ggml.pre` names.
pub(super) fn family(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.names.contains(&name))
}

static FAMILIES: [Family; 6] = [
    Family {
        names: &["gpt-2", "mpt", "olmo", "jais"],
        passes: &[Pass::Words(GPT2)],
        ignore_merges: false,
        add_bos: false,
    },
    Family {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"],
        passes: &[Pass::Isolate(r"\p{N}"), Pass::Words(GPT2)],
        ignore_merges: false,
        add_bos: false,
    },
    Family {
        names: &["qwen2", "stablelm2", "deepseek-r1-qwen"],
        passes: &[Pass::Words(QWEN2)],
        ignore_merges: false,
        add_bos: false,
    },
    Family {
        names: &["llama-bpe", "llama3", "llama-v3", "pixtral", "falcon3"],
        passes: &[Pass::Words(LLAMA3)],
        ignore_merges: true,
        add_bos: true,
    },
    Family { names: &["tekken"], passes: &[Pass::Words(TEKKEN)], ignore_merges: true, add_bos: true },
    // llama.cpp's rules for files that do not name a family.
    Family {
        names: &["default"],
        passes: &[
            Pass::Isolate(r"[\p{P}\$\+<=>\^~\|]+"),
            Pass::Words(GPT2),
            Pass::Isolate(r"\p{N}+"),
            Pass::Isolate(r"[0-9][0-9][0-9]"),
        ],
        ignore_merges: false,
        add_bos: false,
    },
];

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
const LLAMA3: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
);

#[derive(Debug)]
pub(super) struct PreTokenizer {
    passes: Vec<Regex>,
}

impl PreTokenizer {
    pub fn new(family: &Family) -> PreTokenizer {
        let compile = |pass: &Pass| {
            let regex = match pass {
                Pass::Words(words) => Regex::new_many(&[words, r"\s+"]),
                Pass::Isolate(pattern) => Regex::new(pattern),
            };
            regex.expect("the table's expressions are valid")
        };
        let passes = family.passes.iter().map(compile).collect();
        PreTokenizer { passes }
    }

    /// The words of `text`, in order and without gaps.
    pub fn split<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut pieces = vec![text];
        for regex in &self.passes {
            let mut finer = Vec::with_capacity(pieces.len() + text.len() / 4);
            for piece in pieces {
                cut(regex, piece, &mut finer);
            }
            pieces = finer;
        }
        pieces
    }
}

fn cut<'t>(regex: &Regex, piece: &'t str, out: &mut Vec<&'t str>) {
    let mut at = 0;
    while let Some(found) = regex.search(&Input::new(piece).range(at..)) {
        if found.start() > at {
            out.push(&piece[at..found.start()]);
        }
        let mut end = found.end();
        if found.pattern() == SPACES && end < piece.len() {
            let last = piece[found.range()].chars().next_back().map_or(0, char::len_utf8);
            if found.len() > last {
                end -= last;
            }
        }
        out.push(&piece[found.start()..end]);
        at = end;
    }
    if at < piece.len() {
        out.push(&piece[at..]);
    }
}

/// The second expression of [`Pass::Words`].
const SPACES: PatternID = PatternID::new_unchecked(1);

#[cfg(test)]
mod tests {
    use super::{FAMILIES, PreTokenizer, family};
    use std::collections::HashMap;

    #[derive(serde::Deserialize)]
    struct Words {
        texts: Vec<String>,
        words: HashMap<String, Vec<Vec<String>>>,
    }

    /// Python's `regex` module with the models' own expressions, look-ahead included.
    #[test]
    fn words_equal_those_of_the_original_expressions() {
        let golden = include_str!("../../../testdata/tokenizers/words.json");
        let golden: Words = serde_json::from_str(golden).expect("golden file");
        assert_eq!(golden.words.len(), FAMILIES.len());
        for (name, words) in &golden.words {
            let pre = PreTokenizer::new(family(name).expect(name));
            for (text, words) in golden.texts.iter().zip(words).filter(|(text, _)| !text.is_empty()) {
                assert_eq!(&pre.split(text), words, "{name}: {text:?}");
            }
        }
    }
}
