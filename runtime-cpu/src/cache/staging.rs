//! The one uncompressed layer of a prefill.

/// All rows of one layer in f32, before the policy decides which of them enter the cache.
#[derive(Debug, Default)]
pub struct Staging {
    n_kv_heads: usize,
    head_dim: usize,
    capacity: usize,
    /// `[n_kv_heads]`
    lens: Vec<usize>,
    /// `[n_kv_heads][capacity][head_dim]`
    keys: Vec<f32>,
    /// `[n_kv_heads][capacity][head_dim]`
    values: Vec<f32>,
    /// `[n_kv_heads][capacity]`
    positions: Vec<u32>,
}

impl Staging {
    /// An empty layer with room for `rows` rows per head.
    pub fn new(n_kv_heads: usize, head_dim: usize, rows: usize) -> Staging {
        let capacity = rows;
        Staging {
            n_kv_heads,
            head_dim,
            capacity,
            lens: vec![0; n_kv_heads],
            keys: vec![0.0; n_kv_heads * capacity * head_dim],
            values: vec![0.0; n_kv_heads * capacity * head_dim],
            positions: vec![0; n_kv_heads * capacity],
        }
    }

    /// Forgets all rows; the memory stays.
    pub fn clear(&mut self) {
        self.lens.fill(0);
    }

    /// KV heads.
    pub fn n_kv_heads(&self) -> usize {
        self.n_kv_heads
    }

    /// Values per row.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Rows that each head has room for; head h owns rows `h * capacity..` of [`all_keys`](Self::all_keys).
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Rows of head `h`.
    pub fn len(&self, h: usize) -> usize {
        self.lens[h]
    }

    /// Appends rows of `n` tokens: `k` and `v` are `[n][n_kv_heads][head_dim]`, token t has `positions[t]`.
    pub fn push(&mut self, cx: &crate::ops::Compute, k: &[f32], v: &[f32], positions: &[u32]) {
        let (d, heads, capacity) = (self.head_dim, self.n_kv_heads, self.capacity);
        let parts: Vec<_> = self
            .keys
            .chunks_mut(capacity * d)
            .zip(self.values.chunks_mut(capacity * d))
            .zip(self.positions.chunks_mut(capacity))
            .zip(&mut self.lens)
            .enumerate()
            .collect();
        cx.pool.each(parts, |(h, (((keys, values), pos), len))| {
            for (t, &position) in positions.iter().enumerate() {
                let from = (t * heads + h) * d;
                push_row(keys, values, *len, &k[from..from + d], &v[from..from + d]);
                pos[*len] = position;
                *len += 1;
            }
        });
    }

    /// Appends one row to head `h`.
    pub fn push_head(&mut self, h: usize, k: &[f32], v: &[f32], position: u32) {
        let (d, c) = (self.head_dim, self.capacity);
        let range = h * c * d..(h + 1) * c * d;
        push_row(&mut self.keys[range.clone()], &mut self.values[range], self.lens[h], k, v);
        self.positions[h * c + self.lens[h]] = position;
        self.lens[h] += 1;
    }

    /// Key rows of head `h`: `[len][head_dim]`.
    pub fn keys(&self, h: usize) -> &[f32] {
        &self.keys[h * self.capacity * self.head_dim..][..self.lens[h] * self.head_dim]
    }

    /// Value rows of head `h`: `[to - from][head_dim]`.
    pub fn values(&self, h: usize, from: usize, to: usize) -> &[f32] {
        let base = h * self.capacity;
        &self.values[(base + from) * self.head_dim..(base + to) * self.head_dim]
    }

    /// Key row `i` of head `h`: `[head_dim]`.
    pub fn key(&self, h: usize, i: usize) -> &[f32] {
        &self.keys[(h * self.capacity + i) * self.head_dim..][..self.head_dim]
    }

    /// Position of row `i` of head `h`.
    pub fn position(&self, h: usize, i: usize) -> u32 {
        self.positions[h * self.capacity + i]
    }

    /// Positions of the rows of head `h`, ascending.
    pub fn positions(&self, h: usize) -> &[u32] {
        &self.positions[h * self.capacity..][..self.lens[h]]
    }

    /// All keys and values, `[n_kv_heads][capacity][head_dim]`, to be changed after attention.
    pub fn rows_mut(&mut self) -> (&mut [f32], &mut [f32]) {
        (&mut self.keys, &mut self.values)
    }

    /// `[n_kv_heads][capacity][head_dim]`
    pub fn all_keys(&self) -> &[f32] {
        &self.keys
    }

    /// `[n_kv_heads][capacity][head_dim]`
    pub fn all_values(&self) -> &[f32] {
        &self.values
    }
}

fn push_row(keys: &mut [f32], values: &mut [f32], at: usize, k: &[f32], v: &[f32]) {
    let d = k.len();
    keys[at * d..(at + 1) * d].copy_from_slice(k);
    values[at * d..(at + 1) * d].copy_from_slice(v);
}
