//! SIMD kernels of the runtime, one file per instruction set, chosen at run time by [`Dispatch`].
//!
//! `scalar.rs` is the reference for every kernel. The vector files keep its integer arithmetic exactly (quantised
//! dot products are sums of exact 32-bit integers per block) and may differ from it in float rounding only, because
//! they use FMA and sum in another order.
//!
//! The quantised path follows one scheme for all formats: a group of 32 weights is `scale * q + min` with 8-bit `q`
//! (two scales and mins where the format has sub-blocks of 16); activations have one float scale per 32 and either 8
//! bits per value or 15, the latter as two planes of 8-bit numbers (`128 q + low`) that take the same instructions.
//! Matrix-vector products read the weights where they lie in the file; matrix products first unpack a *panel*
//! of 16 rows, interleaved so that a vector lane holds one row, and use it for many tokens.

// Lanes, rows and blocks of several buffers are indexed side by side.
#![allow(clippy::needless_range_loop)]

mod attention;
mod generic;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod formats_x86;

use half::f16;

pub use attention::{KvRows, Partial, Q8Block, TILE_ROWS, Tile};

use crate::quant::GgmlType;

/// Rows of a panel: one vector lane each at the widest level.
pub(crate) const PANEL_ROWS: usize = 16;

/// Values that share one activation scale.
pub(crate) const GROUP: usize = 32;

/// The instruction set that the kernels use. A value exists only if this CPU has the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// One activation vector, quantised: `x[i] = d[i / 32] * q[i]` with one plane, `d[i / 32] * (128 q[i] + low[i])` with
/// two.
#[derive(Clone, Copy)]
pub struct Q8Row<'a> {
    /// `[n_cols]`
    pub q: &'a [i8],
    /// `[n_cols]` The second plane, or empty.
    pub low: &'a [i8],
    /// `[n_cols / 32]`
    pub d: &'a [f32],
    /// `[n_cols / 16]` `d` times the sum of 16 integers.
    pub s: &'a [f32],
}

/// Activation vectors, quantised, stored one after the other: `[n][n_cols]`.
#[derive(Clone, Debug, Default)]
pub struct Q8Rows {
    n_cols: usize,
    q: Vec<i8>,
    low: Vec<i8>,
    d: Vec<f32>,
    s: Vec<f32>,
}

/// Mutable parts of one or more rows of [`Q8Rows`].
pub struct Q8Mut<'a> {
    /// `[n][n_cols]`
    pub q: &'a mut [i8],
    /// `[n][n_cols]`, or empty for a single plane.
    pub low: &'a mut [i8],
    /// `[n][n_cols / 32]`
    pub d: &'a mut [f32],
    /// `[n][n_cols / 16]`
    pub s: &'a mut [f32],
}

/// Borrowed weight rows of one type, as they lie in the file.
#[derive(Clone, Copy)]
pub struct WeightRows<'a> {
    /// Format of the blocks.
    pub ty: GgmlType,
    /// `[n_rows][row_bytes]`
    pub data: &'a [u8],
    /// Bytes of one row.
    pub row_bytes: usize,
    /// Values of one row.
    pub n_cols: usize,
}

impl Q8Rows {
    /// Room for `n` rows of `n_cols` values, a multiple of 32, in one or two planes. Reuses its memory.
    pub fn resize(&mut self, n: usize, n_cols: usize, two_planes: bool) {
        self.n_cols = n_cols;
        self.q.resize(n * n_cols, 0);
        self.low.resize(if two_planes { n * n_cols } else { 0 }, 0);
        self.d.resize(n * n_cols / GROUP, 0.0);
        self.s.resize(n * n_cols / (GROUP / 2), 0.0);
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> Q8Row<'_> {
        let n = self.n_cols;
        let (g, h) = (n / GROUP, n / (GROUP / 2));
        let low = if self.low.is_empty() { &[][..] } else { &self.low[i * n..(i + 1) * n] };
        Q8Row { q: &self.q[i * n..(i + 1) * n], low, d: &self.d[i * g..(i + 1) * g], s: &self.s[i * h..(i + 1) * h] }
    }

    /// Parts of `rows` rows each (the last may have fewer), for filling in parallel.
    pub fn chunks_mut(&mut self, rows: usize) -> Vec<Q8Mut<'_>> {
        let n = rows * self.n_cols;
        let mut low = self.low.chunks_mut(n);
        let parts = self.q.chunks_mut(n).zip(self.d.chunks_mut(n / GROUP)).zip(self.s.chunks_mut(n / (GROUP / 2)));
        parts.map(|((q, d), s)| Q8Mut { q, low: low.next().unwrap_or_default(), d, s }).collect()
    }
}

impl<'a> WeightRows<'a> {
    fn n_rows(&self) -> usize {
        self.data.len().checked_div(self.row_bytes).unwrap_or(0)
    }

    /// The kernels read rows through pointers: their size must be what the type makes of the columns.
    fn check(&self) {
        assert_eq!(
            self.ty.row_bytes(self.n_cols),
            Some(self.row_bytes),
            "bytes of a row of {} {}",
            self.n_cols,
            self.ty
        );
    }

    /// Rows `from..to`.
    pub fn slice(&self, from: usize, to: usize) -> WeightRows<'a> {
        WeightRows { data: &self.data[from * self.row_bytes..to * self.row_bytes], ..*self }
    }
}

/// Calls the function of the level's file. The vector functions are `#[target_feature]`, hence the unsafe block.
macro_rules! dispatch {
    ($self:expr, $name:ident ( $($arg:expr),* $(,)? )) => {
        match $self.0 {
            Level::Scalar => scalar::$name($($arg),*),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Dispatch` holds this level only if detection found avx2, fma and f16c.
            Level::Avx2 => unsafe { avx2::$name($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Dispatch` holds this level only if detection found the AVX-512 set with VNNI.
            Level::Avx512 => unsafe { avx512::$name($($arg),*) },
        }
    };
}

impl Dispatch {
    /// The best level of this CPU.
    pub fn detect() -> Dispatch {
        *Self::available().last().unwrap_or(&Dispatch(Level::Scalar))
    }

    /// The reference level: plain Rust.
    pub const fn scalar() -> Dispatch {
        Dispatch(Level::Scalar)
    }

    /// All levels of this CPU, slowest first.
    pub fn available() -> Vec<Dispatch> {
        let mut levels = vec![Dispatch(Level::Scalar)];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                levels.push(Dispatch(Level::Avx2));
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
                {
                    levels.push(Dispatch(Level::Avx512));
                }
            }
        }
        levels
    }

    /// The level called `name`, if this CPU has it.
    pub fn by_name(name: &str) -> Option<Dispatch> {
        Self::available().into_iter().find(|d| d.name() == name)
    }

    /// `scalar`, `avx2` or `avx512`.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        }
    }

    /// Quantises `x` `[n]`, one scale per 32 values. With one plane `d = max|x| / 127`, with two `max|x| / 16319`; the
    /// integers are the nearest, ties to even; `s` is `d` times the sum of each 16 of them.
    pub fn quantize_q8(self, x: &[f32], to: Q8Mut<'_>) {
        let n = x.len();
        assert!(n.is_multiple_of(GROUP) && to.q.len() == n && (to.low.is_empty() || to.low.len() == n), "quantize_q8");
        assert!(to.d.len() * GROUP == n && to.s.len() * GROUP == 2 * n, "quantize_q8");
        dispatch!(self, quantize_q8(x, to))
    }

    /// `out[r] = w[r] . x` for quantised rows; `out.len()` rows.
    pub fn gemv_q8(self, w: WeightRows<'_>, x: Q8Row<'_>, out: &mut [f32]) {
        w.check();
        assert!(w.data.len() >= out.len() * w.row_bytes && x.q.len() == w.n_cols, "gemv_q8 shapes");
        assert!(x.d.len() * GROUP == x.q.len() && x.s.len() * GROUP == 2 * x.q.len(), "gemv_q8 shapes");
        assert!(x.low.is_empty() || x.low.len() == x.q.len(), "gemv_q8 shapes");
        dispatch!(self, gemv_q8(w, x, out))
    }

    /// `out[t][r] = w[r] . x[t]` for the vectors `tokens` of `x`; `out` is `[tokens][n_rows]`.
    pub fn gemm_q8(self, w: WeightRows<'_>, x: &Q8Rows, tokens: std::ops::Range<usize>, out: &mut [f32]) {
        w.check();
        assert!(out.len() == tokens.len() * w.n_rows() && x.n_cols == w.n_cols, "gemm_q8 shapes");
        assert!(tokens.end * x.n_cols <= x.q.len(), "gemm_q8 tokens");
        dispatch!(self, gemm_q8(w, x, tokens, out))
    }

    /// `out[t][r] = w[r] . x[t]` in float arithmetic; weights of any type are converted to f32 first.
    /// `x` is `[n][n_cols]`, `out` `[n][n_rows]`.
    pub fn gemm_f32(self, w: WeightRows<'_>, x: &[f32], out: &mut [f32]) {
        w.check();
        assert!(x.len() * w.n_rows() == out.len() * w.n_cols, "gemm_f32 shapes");
        dispatch!(self, gemm_f32(w, x, out))
    }

    /// `out = x / sqrt(mean(x^2) + eps) * weight`
    pub fn rms_norm(self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        dispatch!(self, rms_norm(x, weight, eps, out))
    }

    /// `gate = silu(gate) * up`
    pub fn silu_mul(self, gate: &mut [f32], up: &[f32]) {
        dispatch!(self, silu_mul(gate, up))
    }

    /// `x = x * sigmoid(a * x)`: quick-GELU for a = 1.702, SiLU for a = 1.
    pub fn sigmoid_gate(self, x: &mut [f32], a: f32) {
        dispatch!(self, sigmoid_gate(x, a))
    }

    /// `y += x`
    pub fn add(self, y: &mut [f32], x: &[f32]) {
        dispatch!(self, add(y, x))
    }

    /// f32 to f16, nearest even.
    pub fn to_f16(self, x: &[f32], out: &mut [f16]) {
        dispatch!(self, to_f16(x, out))
    }
}
