//! Consecutive rows of a cache, in a form that the kernels of the level read.

use half::{bf16, f16};

use super::{self as kernels, Ahead, Dispatch, Native};

/// Rows `[n][head_dim]`. 16-bit ones reach a level that reads them directly, and are widened first for the others.
#[derive(Clone, Copy)]
pub(crate) enum Tile<'a> {
    F32(Dispatch, &'a [f32]),
    F16(Native, &'a [f16]),
    BF16(Native, &'a [bf16]),
}

/// Calls the kernel on the rows, which stand between the other arguments.
macro_rules! on {
    ($tile:ident, $name:ident, [$($before:expr),*], [$($after:expr),*]) => {
        match $tile {
            Tile::F32(d, rows) => kernels::$name(d, $($before,)* rows, $($after),*),
            Tile::F16(n, rows) => n.$name($($before,)* rows, $($after),*),
            Tile::BF16(n, rows) => n.$name($($before,)* rows, $($after),*),
        }
    };
}

/// The kernels of the same names.
impl Tile<'_> {
    #[cfg(test)]
    pub fn level(self) -> Dispatch {
        match self {
            Self::F32(d, _) => d,
            Self::F16(n, _) | Self::BF16(n, _) => Dispatch(super::Level::Native(n)),
        }
    }

    pub fn dots(self, q: &[f32], head_dim: usize, out: &mut [f32], stride: usize) {
        on!(self, dots, [q, head_dim], [out, stride]);
    }

    pub fn sq_dists(self, c: &[f32], out: &mut [f32]) {
        on!(self, sq_dists, [c], [out]);
    }

    pub fn sq_norms(self, head_dim: usize, out: &mut [f32]) {
        on!(self, sq_norms, [], [head_dim, out]);
    }

    pub fn gather(self, norms: &mut [f32], mean: &mut [f32], direction: &mut [f32], ahead: Ahead) {
        on!(self, gather, [], [norms, mean, direction, ahead]);
    }

    pub fn compare(
        self,
        direction: &[f32],
        length: f32,
        mean: &[f32],
        cosines: &mut [f32],
        distances: &mut [f32],
        ahead: Ahead,
    ) {
        on!(self, compare, [direction, length, mean], [cosines, distances, ahead]);
    }
}
