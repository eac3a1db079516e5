//! What stays in memory after eviction.

use half::f16;

use super::Staging;
use crate::kernels::{Dispatch, KvRows};

/// Element type of cached keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// 4 bytes a value, exact.
    F32,
    /// 2 bytes a value.
    #[default]
    F16,
}

/// The cache of all layers.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerCache>,
}

/// One layer: head h owns rows `start..start + len` of the arena, with room up to `start + capacity`.
#[derive(Debug)]
pub struct LayerCache {
    head_dim: usize,
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

#[derive(Debug)]
enum Buffer {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

impl KvType {
    /// Bytes of one value.
    pub const fn bytes(self) -> usize {
        match self {
            KvType::F32 => 4,
            KvType::F16 => 2,
        }
    }
}

impl KvCache {
    /// An empty cache.
    pub fn new(n_layers: usize, n_kv_heads: usize, head_dim: usize, kv_type: KvType) -> KvCache {
        KvCache { layers: (0..n_layers).map(|_| LayerCache::new(n_kv_heads, head_dim, kv_type)).collect() }
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
    fn new(n_kv_heads: usize, head_dim: usize, kv_type: KvType) -> LayerCache {
        LayerCache {
            head_dim,
            heads: vec![Head::default(); n_kv_heads],
            keys: Buffer::new(kv_type, 0),
            values: Buffer::new(kv_type, 0),
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
        rows * (2 * self.head_dim * self.keys.kv_type().bytes() + size_of::<u32>()) + size_of_val(&self.slot_bias[..])
    }

    /// Replaces all rows by the slots, then those of `from` that `keep` names for each head, ascending; leaves room for
    /// `headroom` more rows per head.
    pub fn fill(
        &mut self,
        dispatch: Dispatch,
        from: &Staging,
        keep: impl Fn(usize) -> Kept,
        headroom: usize,
        slots: &SlotRows,
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
        self.keys = Buffer::new(kv_type, start * self.head_dim);
        self.values = Buffer::new(kv_type, start * self.head_dim);
        self.positions = vec![0; start];
        let d = self.head_dim;
        for (h, kept) in kept.iter().enumerate() {
            let base = self.heads[h].start;
            for (i, (k, v)) in slots.keys.chunks_exact(d).zip(slots.values.chunks_exact(d)).enumerate() {
                if i / n_slots == h {
                    self.keys.write(dispatch, (base + i % n_slots) * d, k);
                    self.values.write(dispatch, (base + i % n_slots) * d, v);
                }
            }
            let base = base + n_slots;
            for (to, i) in kept.iter().enumerate() {
                let at = (base + to) * self.head_dim;
                self.keys.write(dispatch, at, from.key(h, i));
                self.values.write(dispatch, at, from.values(h, i, i + 1));
                self.positions[base + to] = from.position(h, i);
            }
        }
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
            self.keys.write(dispatch, row * d, &k[h * d..(h + 1) * d]);
            self.values.write(dispatch, row * d, &v[h * d..(h + 1) * d]);
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
                self.keys.read(row * d, &mut k);
                self.values.read(row * d, &mut v);
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
        self.keys.relocate(&moves, start, self.head_dim);
        self.values.relocate(&moves, start, self.head_dim);
        let mut positions = vec![0; start];
        for (from, to, len) in moves {
            positions[to..to + len].copy_from_slice(&self.positions[from..from + len]);
        }
        self.positions = positions;
    }
}

/// Rows of a head that stay.
#[derive(Clone, Debug)]
pub enum Kept {
    /// The first n.
    All(usize),
    /// These, ascending.
    Rows(Vec<u32>),
}

impl Kept {
    fn len(&self) -> usize {
        match self {
            Kept::All(n) => *n,
            Kept::Rows(rows) => rows.len(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let (all, rows) = match self {
            Kept::All(n) => (0..*n, &[][..]),
            Kept::Rows(rows) => (0..0, &rows[..]),
        };
        all.chain(rows.iter().map(|&i| i as usize))
    }
}

impl Buffer {
    fn new(kv_type: KvType, len: usize) -> Buffer {
        match kv_type {
            KvType::F32 => Buffer::F32(vec![0.0; len]),
            KvType::F16 => Buffer::F16(vec![f16::ZERO; len]),
        }
    }

    fn kv_type(&self) -> KvType {
        match self {
            Buffer::F32(_) => KvType::F32,
            Buffer::F16(_) => KvType::F16,
        }
    }

    fn rows(&self) -> KvRows<'_> {
        match self {
            Buffer::F32(v) => KvRows::F32(v),
            Buffer::F16(v) => KvRows::F16(v),
        }
    }

    fn write(&mut self, dispatch: Dispatch, at: usize, row: &[f32]) {
        match self {
            Buffer::F32(v) => v[at..at + row.len()].copy_from_slice(row),
            Buffer::F16(v) => dispatch.to_f16(row, &mut v[at..at + row.len()]),
        }
    }

    fn read(&self, at: usize, row: &mut [f32]) {
        match self {
            Buffer::F32(v) => row.copy_from_slice(&v[at..at + row.len()]),
            Buffer::F16(v) => row.iter_mut().zip(&v[at..]).for_each(|(r, h)| *r = h.to_f32()),
        }
    }

    fn relocate(&mut self, moves: &[(usize, usize, usize)], rows: usize, d: usize) {
        fn copy<T: Copy + Default>(old: &[T], moves: &[(usize, usize, usize)], rows: usize, d: usize) -> Vec<T> {
            let mut new = vec![T::default(); rows * d];
            for &(from, to, len) in moves {
                new[to * d..(to + len) * d].copy_from_slice(&old[from * d..(from + len) * d]);
            }
            new
        }
        match self {
            Buffer::F32(v) => *v = copy(v, moves, rows, d),
            Buffer::F16(v) => *v = copy(v, moves, rows, d),
        }
    }
}
