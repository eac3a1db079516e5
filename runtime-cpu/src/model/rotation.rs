//! Queries and keys on their way into attention: normalised where the family does that, then rotated.

use super::Decoder;
use super::config::MAX_HEAD_DIM;
use crate::kernels::Dispatch;
use crate::ops::Compute;
use crate::ops::rope::{Position, Rope};

/// Root-mean-square norm of every head.
pub(super) struct HeadNorm {
    /// `[head_dim]`
    pub weight: Vec<f32>,
    pub eps: f32,
}

/// Cosines and sines of some positions, for the layers with a window or for those without.
#[derive(Default)]
pub(super) struct Angles {
    has_window: Option<bool>,
    half: usize,
    /// `[n][head_dim / 2]`
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Angles {
    /// Forgets the positions; the memory stays.
    pub fn clear(&mut self) {
        self.has_window = None;
    }

    /// Those of a layer, if they are not at hand. The positions are the same in each call after [`clear`](Self::clear).
    pub fn prepare(&mut self, decoder: &Decoder, layer: usize, positions: &[Position]) {
        let c = decoder.config();
        let has_window = Some(c.windows[layer].is_some());
        if self.has_window == has_window {
            return;
        }
        self.has_window = has_window;
        self.half = c.head_dim / 2;
        self.cos.resize(positions.len() * self.half, 0.0);
        self.sin.resize(positions.len() * self.half, 0.0);
        let rows = self.cos.chunks_exact_mut(self.half).zip(self.sin.chunks_exact_mut(self.half));
        for ((cos, sin), p) in rows.zip(positions) {
            decoder.rope(layer).angles(p.axes, cos, sin);
        }
    }

    /// Cosines and sines from row `t` on.
    pub fn from(&self, t: usize) -> (&[f32], &[f32]) {
        (&self.cos[t * self.half..], &self.sin[t * self.half..])
    }
}

/// Turns the heads of `x` `[m][width]` by the first `m` rows of `by`.
pub(super) fn turn(
    cx: &Compute,
    rope: &Rope,
    norm: Option<&HeadNorm>,
    x: &mut [f32],
    width: usize,
    by: (&[f32], &[f32]),
) {
    let half = rope.frequencies().len();
    let rows = (x.len() / width).div_ceil(cx.pool.n_threads());
    cx.pool.chunks(x, rows * width, |i, x| {
        for (t, x) in x.chunks_exact_mut(width).enumerate() {
            let at = (i * rows + t) * half;
            turn_row(cx.dispatch, rope, norm, x, (&by.0[at..at + half], &by.1[at..at + half]));
        }
    });
}

/// Turns the heads of one token.
pub(super) fn turn_row(d: Dispatch, rope: &Rope, norm: Option<&HeadNorm>, x: &mut [f32], (cos, sin): (&[f32], &[f32])) {
    if let Some(HeadNorm { weight, eps }) = norm {
        let mut plain = [0.0; MAX_HEAD_DIM];
        let plain = &mut plain[..weight.len()];
        for head in x.chunks_exact_mut(weight.len()) {
            plain.copy_from_slice(head);
            d.rms_norm(plain, weight, *eps, head);
        }
    }
    rope.rotate(x, cos, sin);
}
