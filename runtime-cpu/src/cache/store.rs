//! What stays in memory after eviction.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffer::Buffer;
use super::{KvType, Staging};
use crate::kernels::{Dispatch, KvRows};
use crate::memory::Arena;
use crate::ops::Compute;

/// The cache of all layers.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerCache>,
}

/// Where all layers take their rows from, so that layers smaller than a huge page share one. A chunk is freed once the
/// layers in it have been filled again, so chunks are small.
const CHUNK_BYTES: usize = 8 << 20;

/// One layer: head h owns rows `start..start + len` of the buffers, with room up to `start + capacity`.
#[derive(Debug)]
pub struct LayerCache {
    head_dim: usize,
    memory: Arc<Mutex<Arena>>,
    /// `[n_kv_heads]`
    heads: Vec<Head>,
    /// `[rows][head_dim]`
    keys: Buffer,
    /// `[rows][head_dim]`
    values: Buffer,
    /// `[rows]` The position that each key was rotated to.
    positions: Vec<u32>,
    /// Rows at the start of each head that stand for many entries.
    n_slots: usize,
    /// `[n_kv_heads][n_slots]` Added to the logits of these rows.
    slot_bias: Vec<f32>,
}

/// Rows that stand for many evicted entries each. Attention adds the logarithm of their mass to their logits.
#[derive(Clone, Debug, Default)]
pub struct SlotRows {
    /// Slots per head.
    pub n_slots: usize,
    /// `[n_kv_heads][n_slots][head_dim]`
    pub keys: Vec<f32>,
    /// `[n_kv_heads][n_slots][head_dim]`
    pub values: Vec<f32>,
    /// `[n_kv_heads][n_slots]` Entries that a slot stands for; 0 is an empty slot.
    pub mass: Vec<f32>,
}

impl SlotRows {
    /// Empty slots.
    pub fn new(n_kv_heads: usize, n_slots: usize, head_dim: usize) -> SlotRows {
        let n = n_kv_heads * n_slots;
        SlotRows { n_slots, keys: vec![0.0; n * head_dim], values: vec![0.0; n * head_dim], mass: vec![0.0; n] }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Head {
    start: usize,
    len: usize,
    capacity: usize,
}

impl KvCache {
    /// An empty cache. [`KvType::check`] says whether the type can hold `head_dim`.
    pub fn new(n_layers: usize, n_kv_heads: usize, head_dim: usize, kv_type: KvType) -> KvCache {
        let memory = Arc::new(Mutex::new(Arena::new(CHUNK_BYTES)));
        KvCache { layers: (0..n_layers).map(|_| LayerCache::new(n_kv_heads, head_dim, kv_type, &memory)).collect() }
    }

    /// Layer `l`.
    pub fn layer(&self, l: usize) -> &LayerCache {
        &self.layers[l]
    }

    /// Layer `l`.
    pub fn layer_mut(&mut self, l: usize) -> &mut LayerCache {
        &mut self.layers[l]
    }

    /// All layers.
    pub fn layers(&self) -> &[LayerCache] {
        &self.layers
    }

    /// Drops the rows of positions from `position` on.
    pub fn truncate(&mut self, position: u32) {
        self.layers.iter_mut().for_each(|l| l.truncate(position));
    }

    /// Bytes of the rows in use: keys, values and positions.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(LayerCache::bytes).sum()
    }
}

impl LayerCache {
    fn new(n_kv_heads: usize, head_dim: usize, kv_type: KvType, memory: &Arc<Mutex<Arena>>) -> LayerCache {
        let empty = || Buffer::new(kv_type, head_dim, 0, &mut lock(memory));
        LayerCache {
            head_dim,
            memory: memory.clone(),
            heads: vec![Head::default(); n_kv_heads],
            keys: empty(),
            values: empty(),
            positions: Vec::new(),
            n_slots: 0,
            slot_bias: Vec::new(),
        }
    }

    /// Biases of the first rows of head `h`, to be added to their logits; empty without slots.
    pub fn slot_bias(&self, h: usize) -> &[f32] {
        &self.slot_bias[h * self.n_slots..(h + 1) * self.n_slots]
    }

    /// Whether some rows stand for many entries.
    pub fn has_slots(&self) -> bool {
        self.n_slots > 0
    }

    /// KV heads.
    pub fn n_kv_heads(&self) -> usize {
        self.heads.len()
    }

    /// Values per row.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Rows of head `h`.
    pub fn len(&self, h: usize) -> usize {
        self.heads[h].len
    }

    /// Rows of head `h`, `from..to`: keys and values `[to - from][head_dim]`.
    pub fn rows(&self, h: usize, from: usize, to: usize) -> (KvRows<'_>, KvRows<'_>) {
        let start = self.heads[h].start;
        let d = self.head_dim;
        (self.keys.rows().slice(start + from, start + to, d), self.values.rows().slice(start + from, start + to, d))
    }

    /// Positions of the rows of head `h`.
    pub fn positions(&self, h: usize) -> &[u32] {
        let head = self.heads[h];
        &self.positions[head.start..head.start + head.len]
    }

    /// Bytes of the rows in use: keys, values and positions.
    pub fn bytes(&self) -> usize {
        let rows: usize = self.heads.iter().map(|h| h.len).sum();
        rows * self.keys.kv_type().entry_bytes(self.head_dim) + size_of_val(&self.slot_bias[..])
    }

    /// Replaces all rows by the slots, then those of `from` that `keep` names for each head, ascending; leaves room for
    /// `headroom` more rows per head.
    pub fn fill<'a>(
        &mut self,
        cx: &Compute,
        from: &'a Staging,
        keep: impl Fn(usize) -> Kept,
        headroom: usize,
        slots: &'a SlotRows,
    ) {
        let n_slots = slots.n_slots;
        let kept: Vec<Kept> = (0..self.heads.len()).map(keep).collect();
        let mut start = 0;
        for (head, kept) in self.heads.iter_mut().zip(&kept) {
            let len = n_slots + kept.len();
            *head = Head { start, len, capacity: len + headroom };
            start += head.capacity;
        }
        self.n_slots = n_slots;
        self.slot_bias = slots.mass.iter().map(|m| m.ln()).collect();
        let kv_type = self.keys.kv_type();
        let mut memory = lock(&self.memory);
        self.keys = Buffer::new(kv_type, self.head_dim, start, &mut memory);
        self.values = Buffer::new(kv_type, self.head_dim, start, &mut memory);
        drop(memory);
        self.positions = vec![0; start];
        for (h, (head, kept)) in self.heads.iter().zip(&kept).enumerate() {
            let positions = &mut self.positions[head.start + n_slots..head.start + head.len];
            let rows = (0..).map_while(|i| kept.get(i));
            positions.iter_mut().zip(rows).for_each(|(p, i)| *p = from.position(h, i));
        }
        // Row `i` is a slot, a row that stays, or headroom.
        let (heads, d) = (&self.heads, self.head_dim);
        let row = |i: usize, slots: &'a [f32], staged: fn(&'a Staging, usize, usize) -> &'a [f32]| {
            let h = heads.partition_point(|head| head.start <= i) - 1;
            let at = i - heads[h].start;
            if at < n_slots {
                return Some(&slots[(h * n_slots + at) * d..][..d]);
            }
            kept[h].get(at - n_slots).map(|i| staged(from, h, i))
        };
        self.keys.fill(cx, |i| row(i, &slots.keys, Staging::key));
        self.values.fill(cx, |i| row(i, &slots.values, |from, h, i| from.values(h, i, i + 1)));
    }

    /// Appends one row to every head: `k` and `v` are `[n_kv_heads][head_dim]`. Allocates only when the headroom is
    /// used up.
    pub fn push(&mut self, dispatch: Dispatch, k: &[f32], v: &[f32], position: u32) {
        if self.heads.iter().any(|h| h.len == h.capacity) {
            self.grow();
        }
        let d = self.head_dim;
        for (h, head) in self.heads.iter_mut().enumerate() {
            let row = head.start + head.len;
            self.keys.write(dispatch, row, &k[h * d..(h + 1) * d]);
            self.values.write(dispatch, row, &v[h * d..(h + 1) * d]);
            self.positions[row] = position;
            head.len += 1;
        }
    }

    /// Drops the rows of positions from `position` on, the last of every head.
    fn truncate(&mut self, position: u32) {
        for head in &mut self.heads {
            let positions = &self.positions[head.start..head.start + head.len];
            head.len = positions.partition_point(|&p| p < position);
        }
    }

    /// Drops the rows that a query at `position` no longer sees through a window of so many positions. Their memory is
    /// used again when the layer grows.
    pub fn forget(&mut self, position: u32, window: usize) {
        for head in &mut self.heads {
            let positions = &self.positions[head.start..head.start + head.len];
            let gone = positions.partition_point(|&p| p as usize + window <= position as usize);
            *head = Head { start: head.start + gone, len: head.len - gone, capacity: head.capacity - gone };
        }
    }

    /// Copies all rows, as f32, into a staged layer.
    pub fn unload(&self, to: &mut Staging) {
        let d = self.head_dim;
        let (mut k, mut v) = (vec![0.0; d], vec![0.0; d]);
        for (h, head) in self.heads.iter().enumerate() {
            for row in head.start..head.start + head.len {
                self.keys.read(row, &mut k);
                self.values.read(row, &mut v);
                to.push_head(h, &k, &v, self.positions[row]);
            }
        }
    }

    fn grow(&mut self) {
        let old = self.heads.clone();
        let extra = old.iter().map(|h| h.len).max().unwrap_or(0).clamp(16, 1024);
        let mut start = 0;
        for head in &mut self.heads {
            *head = Head { start, capacity: head.len + extra, ..*head };
            start += head.capacity;
        }
        let moves: Vec<_> = old.iter().zip(&self.heads).map(|(a, b)| (a.start, b.start, a.len)).collect();
        let mut memory = lock(&self.memory);
        self.keys.relocate(&moves, start, &mut memory);
        self.values.relocate(&moves, start, &mut memory);
        drop(memory);
        let mut positions = vec![0; start];
        for (from, to, len) in moves {
            positions[to..to + len].copy_from_slice(&self.positions[from..from + len]);
        }
        self.positions = positions;
    }
}

/// Taking memory leaves nothing half done that a panic could show.
fn lock(memory: &Mutex<Arena>) -> MutexGuard<'_, Arena> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rows of a head that stay.
#[derive(Clone, Debug)]
pub enum Kept {
    /// All of a range.
    Range(Range<u32>),
    /// These, ascending.
    Rows(Vec<u32>),
}

impl Kept {
    fn len(&self) -> usize {
        match self {
            Kept::Range(range) => range.len(),
            Kept::Rows(rows) => rows.len(),
        }
    }

    /// The `i`-th row that stays.
    fn get(&self, i: usize) -> Option<usize> {
        match self {
            Kept::Range(range) => Some(range.start as usize + i).filter(|i| *i < range.end as usize),
            Kept::Rows(rows) => rows.get(i).map(|&i| i as usize),
        }
    }
}
