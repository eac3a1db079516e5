//! Rotary position embedding.

/// Rotation angles per pair of channels: `position * theta^(-2i/d) / factor[i]`.
#[derive(Clone, Debug)]
pub struct Rope {
    kind: RopeKind,
    /// `[head_dim / 2]`
    inverse_frequency: Vec<f64>,
}

/// Which channels form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// `(2i, 2i + 1)`: the `llama` architecture's files.
    Interleaved,
    /// `(i, i + d/2)`: rotate-half, as in `qwen2`.
    Half,
}

impl Rope {
    /// Base frequency `theta` and optional divisors of the frequencies, `[head_dim / 2]` (Llama 3.1's `rope_freqs`).
    pub fn new(kind: RopeKind, head_dim: usize, theta: f32, factors: Option<&[f32]>) -> Rope {
        let half = head_dim / 2;
        let frequency = |i: usize| {
            let f = f64::from(theta).powf(-2.0 * i as f64 / head_dim as f64);
            f / factors.map_or(1.0, |v| f64::from(v[i]))
        };
        Rope { kind, inverse_frequency: (0..half).map(frequency).collect() }
    }

    /// Radians per position of each pair, `[head_dim / 2]`.
    pub fn frequencies(&self) -> &[f64] {
        &self.inverse_frequency
    }

    /// Cosines and sines of one position, `[head_dim / 2]` each. Angles are f64, so far positions stay exact.
    pub fn angles(&self, position: u32, cos: &mut [f32], sin: &mut [f32]) {
        for ((c, s), f) in cos.iter_mut().zip(sin).zip(&self.inverse_frequency) {
            let angle = f64::from(position) * f;
            *c = angle.cos() as f32;
            *s = angle.sin() as f32;
        }
    }

    /// Rotates the heads of one token, `[n_heads][head_dim]`.
    pub fn rotate(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        let half = cos.len();
        for head in x.chunks_exact_mut(2 * half) {
            match self.kind {
                RopeKind::Interleaved => {
                    for ((pair, &c), &s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                        let [a, b] = *pair;
                        *pair = [a * c - b * s, a * s + b * c];
                    }
                }
                RopeKind::Half => {
                    let (low, high) = head.split_at_mut(half);
                    for (((a, b), &c), &s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                        (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                    }
                }
            }
        }
    }
}
