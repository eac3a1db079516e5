//! SentencePiece-style merging: the neighbouring pieces whose union has the highest score are joined first.

use super::special::Fragment;
use super::vocab::{Kind, Vocab};
use crate::Error;
use crate::gguf::Metadata;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

#[derive(Debug)]
pub(super) struct Spm {
    /// `[n_tokens]`
    scores: Vec<f32>,
    /// Token of each byte, for text that the vocabulary does not cover.
    bytes: [Option<u32>; 256],
    /// Put a space in front of the text and of what follows a special token.
    add_space_prefix: bool,
}

impl Spm {
    pub fn from_metadata(meta: &Metadata, vocab: &Vocab) -> Result<Spm, Error> {
        let scores = meta.f32_array(SCORES)?;
        if scores.len() != vocab.len() {
            return Err(meta.error(SCORES, format!("{} entries for {} tokens", scores.len(), vocab.len())));
        }
        let bytes = std::array::from_fn(|b| vocab.id(&format!("<0x{b:02X}>")));
        let add_space_prefix = meta.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        Ok(Spm { scores, bytes, add_space_prefix })
    }

    pub fn encode(&self, vocab: &Vocab, fragments: &[Fragment<'_>], out: &mut Vec<u32>) {
        let mut escaped = String::new();
        let mut merger = Merger::default();
        let mut after_special = true;
        for fragment in fragments {
            match *fragment {
                Fragment::Token(id) => out.push(id),
                Fragment::Text(text) => {
                    escaped.clear();
                    if self.add_space_prefix && after_special {
                        escaped.push(SPACE);
                    }
                    escaped.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
                    merger.run(self, vocab, &escaped);
                    for piece in merger.pieces(&escaped) {
                        self.push_piece(vocab, piece, out);
                    }
                }
            }
            after_special = matches!(fragment, Fragment::Token(_));
        }
    }

    /// A piece without a token is a single character: its bytes, or the unknown token if these have none.
    fn push_piece(&self, vocab: &Vocab, piece: &str, out: &mut Vec<u32>) {
        if let Some(id) = vocab.id(piece) {
            out.push(id);
        } else if piece.bytes().all(|b| self.bytes[usize::from(b)].is_some()) {
            out.extend(piece.bytes().filter_map(|b| self.bytes[usize::from(b)]));
        } else {
            out.extend(vocab.unk);
        }
    }
}

/// The bytes of a normal token.
pub(super) fn decode(text: &str, out: &mut Vec<u8>) {
    let mut buffer = [0; 4];
    for c in text.chars() {
        let c = if c == SPACE { ' ' } else { c };
        out.extend_from_slice(c.encode_utf8(&mut buffer).as_bytes());
    }
}

fn is_text(kind: Kind) -> bool {
    matches!(kind, Kind::Normal | Kind::UserDefined | Kind::Unused)
}

/// A chain of pieces that merge; its buffers are used again from text to text.
#[derive(Default)]
struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Candidate>,
}

/// Bytes `start..end` of the text; empty once it was merged into its left neighbour.
struct Symbol {
    start: usize,
    end: usize,
    prev: usize,
    next: usize,
}

impl Merger {
    fn run(&mut self, spm: &Spm, vocab: &Vocab, text: &str) {
        self.symbols.clear();
        self.symbols.extend(text.char_indices().enumerate().map(|(i, (start, c))| Symbol {
            start,
            end: start + c.len_utf8(),
            prev: i.wrapping_sub(1), // NONE for the first
            next: i + 1,
        }));
        let Some(last) = self.symbols.last_mut() else { return };
        last.next = NONE;
        for left in 0..self.symbols.len() {
            self.offer(spm, vocab, text, left);
        }
        while let Some(Candidate { left: Reverse(left), end, .. }) = self.queue.pop() {
            let Some(right) = self.symbols.get(self.symbols[left].next) else { continue };
            if self.symbols[left].start == self.symbols[left].end || right.end != end {
                continue; // one of the two has changed since
            }
            let next = right.next;
            let merged = std::mem::replace(&mut self.symbols[left].next, next);
            self.symbols[left].end = end;
            self.symbols[merged].start = end;
            if let Some(next) = self.symbols.get_mut(next) {
                next.prev = left;
            }
            self.offer(spm, vocab, text, left);
            let prev = self.symbols[left].prev;
            if prev != NONE {
                self.offer(spm, vocab, text, prev);
            }
        }
    }

    /// Queues the merge of a symbol with its right neighbour, if the vocabulary has their union.
    fn offer(&mut self, spm: &Spm, vocab: &Vocab, text: &str, left: usize) {
        let start = self.symbols[left].start;
        let Some(&Symbol { end, .. }) = self.symbols.get(self.symbols[left].next) else { return };
        if end - start > vocab.longest {
            return;
        }
        // Text that merely looks like a control or byte token must not become one.
        let Some(id) = vocab.id(&text[start..end]).filter(|&id| is_text(vocab.kind(id))) else { return };
        self.queue.push(Candidate { score: spm.scores[id as usize] + 0.0, left: Reverse(left), end });
    }

    fn pieces<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        self.symbols.iter().filter(|s| s.start < s.end).map(|s| &text[s.start..s.end])
    }
}

/// The highest score first; among equals the leftmost.
struct Candidate {
    /// Never -0, so that the total order is the numeric one.
    score: f32,
    left: Reverse<usize>,
    end: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(self.left.cmp(&other.left)).then(self.end.cmp(&other.end))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// U+2581 stands for a space in the tokens.
const SPACE: char = '\u{2581}';
const NONE: usize = usize::MAX;
const SCORES: &str = "tokenizer.ggml.scores";
