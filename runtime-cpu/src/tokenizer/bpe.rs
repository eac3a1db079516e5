//! Byte-level BPE (GPT-2): every byte is written as a printable character, words are built up from single bytes by the
//! merge that comes first in the file's list.

use super::pretokenize::{Family, PreTokenizer};
use super::special::Fragment;
use super::vocab::{Kind, Vocab};
use crate::Error;
use crate::gguf::Metadata;
use foldhash::{HashMap, HashMapExt};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Debug)]
pub(super) struct Bpe {
    pre: PreTokenizer,
    /// A word that is a token needs no merging, even if the merges would not lead to that token.
    ignore_merges: bool,
    /// Token of each single byte. Vocabularies may lack bytes that never occur in UTF-8.
    bytes: [Option<u32>; 256],
    /// (left token, right token) -> (rank, token of both)
    merges: HashMap<(u32, u32), (u32, u32)>,
}

impl Bpe {
    pub fn from_metadata(meta: &Metadata, vocab: &Vocab, family: &Family) -> Result<Bpe, Error> {
        let lines = meta.str_array(MERGES)?;
        let mut merges = HashMap::with_capacity(lines.len());
        let mut both = String::new();
        for (rank, line) in (0u32..).zip(lines) {
            let bad = |what: &str| meta.error(MERGES, format!("entry {rank}, {line:?}: {what}"));
            // The left part may itself begin with a space in vocabularies that do not encode it.
            let space = line.bytes().skip(1).position(|b| b == b' ').ok_or_else(|| bad("no space in it"))? + 1;
            let (left, right) = (&line[..space], &line[space + 1..]);
            both.clear();
            both.push_str(left);
            both.push_str(right);
            let token = |text: &str| vocab.id(text).ok_or_else(|| bad("not made of tokens of the vocabulary"));
            let (pair, result) = ((token(left)?, token(right)?), token(&both)?);
            merges.entry(pair).or_insert((rank, result));
        }
        let mut buffer = [0; 4];
        let bytes = std::array::from_fn(|b| vocab.id(ALPHABET[b].encode_utf8(&mut buffer)));
        Ok(Bpe { pre: PreTokenizer::new(family), ignore_merges: family.ignore_merges, bytes, merges })
    }

    /// Whether ordinary text can lead to this token.
    pub fn is_merge_result(&self, id: u32) -> bool {
        self.merges.values().any(|&(_, result)| result == id)
    }

    pub fn encode(&self, vocab: &Vocab, fragments: &[Fragment<'_>], out: &mut Vec<u32>) {
        let mut merger = Merger::default();
        let mut written = String::new();
        for fragment in fragments {
            let text = match *fragment {
                Fragment::Token(id) => {
                    out.push(id);
                    continue;
                }
                Fragment::Text(text) => text,
            };
            for word in self.pre.split(text) {
                if self.ignore_merges {
                    written.clear();
                    written.extend(word.bytes().map(|b| ALPHABET[usize::from(b)]));
                    if let Some(id) = vocab.id(&written).filter(|&id| vocab.kind(id) == Kind::Normal) {
                        out.push(id);
                        continue;
                    }
                }
                // Bytes without a token are dropped, as there is no unknown token in this scheme.
                merger.run(word.bytes().filter_map(|b| self.bytes[usize::from(b)]), &self.merges, out);
            }
        }
    }
}

/// The bytes of a normal token. Characters outside the alphabet stand for themselves.
pub(super) fn decode(text: &str, out: &mut Vec<u8>) {
    let mut buffer = [0; 4];
    for c in text.chars() {
        match REVERSE.get(c as usize).copied().flatten() {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut buffer).as_bytes()),
        }
    }
}

/// A chain of tokens that merge; its buffers are used again from word to word.
#[derive(Default)]
struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

#[derive(Clone, Copy)]
struct Symbol {
    /// `NONE` once it was merged into its left neighbour.
    token: u32,
    prev: u32,
    next: u32,
}

/// Ordered by rank, then from left to right.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    tokens: (u32, u32),
    result: u32,
}

impl Merger {
    fn run(&mut self, tokens: impl Iterator<Item = u32>, merges: &HashMap<(u32, u32), (u32, u32)>, out: &mut Vec<u32>) {
        self.symbols.clear();
        self.symbols.extend((0u32..).zip(tokens).map(|(i, token)| Symbol {
            token,
            prev: i.wrapping_sub(1),
            next: i + 1,
        }));
        let Some(last) = self.symbols.last_mut() else { return };
        last.next = NONE;
        for left in 0..self.symbols.len() as u32 {
            self.offer(merges, left);
        }
        while let Some(Reverse(Candidate { left, tokens, result, .. })) = self.queue.pop() {
            let Symbol { token, prev, next } = self.symbols[left as usize];
            let Some(&right) = self.symbols.get(next as usize) else { continue };
            if (token, right.token) != tokens {
                continue; // one of the two has changed since
            }
            self.symbols[next as usize].token = NONE;
            self.symbols[left as usize] = Symbol { token: result, prev, next: right.next };
            if let Some(after) = self.symbols.get_mut(right.next as usize) {
                after.prev = left;
            }
            self.offer(merges, left);
            if prev != NONE {
                self.offer(merges, prev);
            }
        }
        out.extend(self.symbols.iter().map(|s| s.token).filter(|&token| token != NONE));
    }

    /// Queues the merge of a symbol with its right neighbour, if there is one.
    fn offer(&mut self, merges: &HashMap<(u32, u32), (u32, u32)>, left: u32) {
        let Symbol { token, next, .. } = self.symbols[left as usize];
        let Some(right) = self.symbols.get(next as usize) else { return };
        let tokens = (token, right.token);
        if let Some(&(rank, result)) = merges.get(&tokens) {
            self.queue.push(Reverse(Candidate { rank, left, tokens, result }));
        }
    }
}

const NONE: u32 = u32::MAX;
const MERGES: &str = "tokenizer.ggml.merges";

/// The character GPT-2 writes for each byte: the byte itself where Latin-1 has a visible character, and the characters
/// from U+0100 on for the 68 others, in order.
static ALPHABET: [char; 256] = {
    let mut alphabet = ['\0'; 256];
    let mut invisible = 0;
    let mut byte = 0;
    while byte < 256 {
        let visible = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let code = if visible { byte } else { 256 + invisible };
        if !visible {
            invisible += 1;
        }
        if let Some(c) = char::from_u32(code) {
            alphabet[byte as usize] = c;
        }
        byte += 1;
    }
    alphabet
};

/// Byte of each character below U+0144.
static REVERSE: [Option<u8>; 324] = {
    let mut reverse = [None; 324];
    let mut byte = 0;
    while byte < 256 {
        reverse[ALPHABET[byte] as usize] = Some(byte as u8);
        byte += 1;
    }
    reverse
};
