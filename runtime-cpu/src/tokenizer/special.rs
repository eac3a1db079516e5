//! Cuts the special tokens out of a text.

use super::vocab::{Kind, Vocab};
use aho_corasick::{AhoCorasick, MatchKind};

/// A piece of the text to encode.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    /// Never empty.
    Text(&'t str),
    Token(u32),
}

/// Finds special tokens. At each place the longest one wins, and the leftmost place comes first, as in Hugging Face's
/// `AddedVocabulary`; llama.cpp searches for the longest token anywhere first, which differs only where two of them
/// overlap.
#[derive(Debug)]
pub(super) struct Specials {
    /// Control, unknown and user-defined tokens.
    all: Matcher,
    /// User-defined tokens only: these are recognised even when special tokens are not wanted.
    user_defined: Matcher,
}

impl Specials {
    /// **Errors**: more text in special tokens than an automaton can hold (gigabytes).
    pub fn new(vocab: &Vocab) -> Result<Specials, String> {
        Ok(Specials {
            all: Matcher::new(vocab, |kind| matches!(kind, Kind::Control | Kind::Unknown | Kind::UserDefined))?,
            user_defined: Matcher::new(vocab, |kind| kind == Kind::UserDefined)?,
        })
    }

    /// The fragments of `text`, in order. **Cost**: one pass over the text, however many special tokens there are.
    pub fn split<'t>(&self, text: &'t str, parse_special: bool) -> Vec<Fragment<'t>> {
        let matcher = if parse_special { &self.all } else { &self.user_defined };
        let mut out = Vec::new();
        let mut end = 0;
        for found in matcher.automaton.iter().flat_map(|automaton| automaton.find_iter(text)) {
            push_text(&mut out, &text[end..found.start()]);
            out.push(Fragment::Token(matcher.ids[found.pattern()]));
            end = found.end();
        }
        push_text(&mut out, &text[end..]);
        out
    }
}

fn push_text<'t>(out: &mut Vec<Fragment<'t>>, text: &'t str) {
    if !text.is_empty() {
        out.push(Fragment::Text(text));
    }
}

#[derive(Debug)]
struct Matcher {
    /// `None` if there are no such tokens.
    automaton: Option<AhoCorasick>,
    /// Token of each pattern.
    ids: Vec<u32>,
}

impl Matcher {
    fn new(vocab: &Vocab, wanted: impl Fn(Kind) -> bool) -> Result<Matcher, String> {
        let is_first = |id: u32| vocab.text(id).is_some_and(|text| vocab.id(text) == Some(id));
        let ids: Vec<u32> = (0..vocab.len() as u32).filter(|&id| wanted(vocab.kind(id)) && is_first(id)).collect();
        if ids.is_empty() {
            return Ok(Matcher { automaton: None, ids });
        }
        let texts = ids.iter().filter_map(|&id| vocab.text(id));
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
        let automaton = automaton.map_err(|e| format!("{} special tokens: {e}", ids.len()))?;
        Ok(Matcher { automaton: Some(automaton), ids })
    }
}
