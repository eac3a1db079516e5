//! SIMD kernels of the runtime, one file per instruction set, chosen at run time by [`Dispatch`].
//!
//! `scalar.rs` is the reference for every kernel. The vector files keep its integer arithmetic exactly (quantised
//! dot products are sums of exact 32-bit integers per block) and may differ from it in float rounding only, because
//! they use FMA and sum in another order.
//!
//! The quantised path follows one scheme for all formats: a group of 32 weights is `scale * q + min` with 8-bit `q`
//! (two scales and mins where the format has sub-blocks of 16); activations have one float scale per 32 and either 8
//! bits per value or 15, the latter as two planes of 8-bit numbers (`128 q + low`) that take the same instructions.
//! Weights are repacked into *panels* of 16 rows, a vector lane for each row (`packed/`): all at once when they are
//! loaded, or a panel at a time for matrix products with weights that stay in the file. Products of many tokens on AMX
//! leave this scheme: their weights and activations are fixed-point numbers of 16 bits (`tiles/`).

// Lanes, rows and blocks of several buffers are indexed side by side.
#![allow(clippy::needless_range_loop)]

/// Calls the function of the level's file: the modules are those beside the caller. The vector functions are
/// `#[target_feature]`, hence the unsafe block. Stands in front of the modules that use it.
macro_rules! dispatch {
    ($self:expr, $name:ident ( $($arg:expr),* $(,)? )) => {
        match $self.0 {
            Level::Scalar => scalar::$name($($arg),*),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Dispatch` holds these levels only if detection found avx2, fma and f16c.
            Level::Avx2 | Level::AvxVnni => unsafe { avx2::$name($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Dispatch` holds these levels only if detection found the AVX-512 set with VNNI.
            Level::Avx512 | Level::Amx => unsafe { avx512::$name($($arg),*) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: every AArch64 CPU has NEON.
            Level::Neon | Level::NeonDot | Level::NeonI8mm => unsafe { neon::$name($($arg),*) },
        }
    };
}

mod attention;
mod floats;
mod generic;
mod packed;
mod scalar;
// Levels of x86 alone have tiles.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports, unused_variables))]
mod tiles;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod formats_x86;
#[cfg(target_arch = "aarch64")]
mod neon;

use half::f16;

pub use attention::{KvRows, Partial, Q8Block, TILE_ROWS, Tile};
pub use floats::{FloatRows, Floats};
pub use packed::{Packed, PackedRows};
pub use tiles::{KvTiles, TileRows, TileWeights};

use crate::Error;
use crate::quant::GgmlType;

/// Rows of a panel: one vector lane each at the widest level.
pub(crate) const PANEL_ROWS: usize = 16;

/// Tokens that lie side by side for the kernels that take several at once.
const TILE: usize = 8;

/// Tokens that lie side by side for the float kernels.
pub(crate) const FLOAT_TOKENS: usize = 12;

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
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512, and AMX for quantised products and attention of many tokens.
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
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
    total: Vec<f32>,
    /// `[n / TILE][n_cols / 32]` The same once more, whole tiles only.
    tiles: Vec<TileGroup>,
    /// Tokens in `tiles`.
    tiled: usize,
}

/// 32 columns of a tile of tokens, side by side.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct TileGroup {
    /// Four columns each.
    q: [[[i8; 4]; TILE]; GROUP / 4],
    low: [[[i8; 4]; TILE]; GROUP / 4],
    d: [f32; TILE],
    total: [f32; TILE],
    s: [[f32; TILE]; 2],
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
    /// `[n][n_cols / 32]` Sums of two neighbours of `s`.
    pub total: &'a mut [f32],
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
        self.total.resize(n * n_cols / GROUP, 0.0);
        self.tiled = 0;
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
        let floats = self.d.chunks_mut(n / GROUP).zip(self.total.chunks_mut(n / GROUP));
        let parts = self.q.chunks_mut(n).zip(floats).zip(self.s.chunks_mut(n / (GROUP / 2)));
        parts.map(|((q, (d, total)), s)| Q8Mut { q, low: low.next().unwrap_or_default(), d, s, total }).collect()
    }

    /// Lays whole tiles of the filled rows side by side, which makes products of many tokens faster.
    pub fn tile(&mut self, pool: &crate::threads::Pool) {
        let (n, groups) = (self.n_cols, self.n_cols / GROUP);
        let n_tiles = self.q.len() / n.max(1) / TILE;
        const EMPTY: TileGroup = TileGroup {
            q: [[[0; 4]; TILE]; GROUP / 4],
            low: [[[0; 4]; TILE]; GROUP / 4],
            d: [0.0; TILE],
            total: [0.0; TILE],
            s: [[0.0; TILE]; 2],
        };
        self.tiles.resize(n_tiles * groups, EMPTY);
        self.tiled = n_tiles * TILE;
        let Q8Rows { q, low, d, s, total, tiles, .. } = self;
        pool.chunks(tiles, groups, |tile, records| {
            for i in 0..TILE {
                let t = tile * TILE + i;
                for (g, to) in records.iter_mut().enumerate() {
                    let at = t * n + g * GROUP;
                    for (to, from) in to.q.iter_mut().zip(q[at..at + GROUP].as_chunks().0) {
                        to[i] = *from;
                    }
                    if !low.is_empty() {
                        for (to, from) in to.low.iter_mut().zip(low[at..at + GROUP].as_chunks().0) {
                            to[i] = *from;
                        }
                    }
                    let at = t * groups + g;
                    to.d[i] = d[at];
                    to.total[i] = total[at];
                    to.s[0][i] = s[2 * at];
                    to.s[1][i] = s[2 * at + 1];
                }
            }
        });
    }

    /// All rows, for filling.
    pub fn as_mut(&mut self) -> Q8Mut<'_> {
        Q8Mut { q: &mut self.q, low: &mut self.low, d: &mut self.d, s: &mut self.s, total: &mut self.total }
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
                if is_x86_feature_detected!("avxvnni") {
                    levels.push(Dispatch(Level::AvxVnni));
                }
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
                {
                    levels.push(Dispatch(Level::Avx512));
                    if tiles::amx::available() {
                        levels.push(Dispatch(Level::Amx));
                    }
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            levels.push(Dispatch(Level::Neon));
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                levels.push(Dispatch(Level::NeonDot));
                if std::arch::is_aarch64_feature_detected!("i8mm") {
                    levels.push(Dispatch(Level::NeonI8mm));
                }
            }
        }
        levels
    }

    /// The level called `name`.
    ///
    /// # Errors
    /// [`Error::Dispatch`] if this CPU has no such level.
    pub fn by_name(name: &str) -> Result<Dispatch, Error> {
        let levels = Self::available();
        let missing = || Error::Dispatch { name: name.into(), available: levels.iter().map(|d| d.name()).collect() };
        levels.iter().copied().find(|d| d.name() == name).ok_or_else(missing)
    }

    /// `scalar`, `avx2`, `avxvnni`, `avx512`, `amx`, `neon`, `dotprod` or `i8mm`.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => "dotprod",
            #[cfg(target_arch = "aarch64")]
            Level::NeonI8mm => "i8mm",
        }
    }

    /// Quantises `x` `[n]`, one scale per 32 values. With one plane `d = max|x| / 127`, with two `max|x| / 16319`; the
    /// integers are the nearest, ties to even; `s` is `d` times the sum of each 16 of them.
    pub fn quantize_q8(self, x: &[f32], to: Q8Mut<'_>) {
        let n = x.len();
        assert!(n.is_multiple_of(GROUP) && to.q.len() == n && (to.low.is_empty() || to.low.len() == n), "quantize_q8");
        assert!(to.d.len() * GROUP == n && to.s.len() * GROUP == 2 * n, "quantize_q8");
        assert!(to.total.len() * GROUP == n, "quantize_q8");
        let Q8Mut { q, low, d, s, total } = to;
        dispatch!(self, quantize_q8(x, Q8Mut { q, low, d, s: &mut *s, total: &mut [] }));
        for (total, s) in total.iter_mut().zip(s.as_chunks::<2>().0) {
            *total = s[0] + s[1];
        }
    }

    /// Whether weights are repacked for this level.
    pub fn packs(self) -> bool {
        self.0 != Level::Scalar
    }

    /// `out[t][r] = w[r] . x[t]` for the vectors `tokens` of `x` and repacked rows; `out` is `[tokens][n_rows]`.
    pub fn gemm_packed(self, w: PackedRows<'_>, x: &Q8Rows, tokens: std::ops::Range<usize>, out: &mut [f32]) {
        assert!(out.len() == tokens.len() * w.n_rows && x.n_cols == w.n_cols, "gemm_packed shapes");
        assert!(tokens.end * x.n_cols <= x.q.len(), "gemm_packed tokens");
        // SAFETY: tokens and columns are those of `x` and `w`, and `out` has their size.
        unsafe { self.gemm_panels(w, x, tokens, out.as_mut_ptr(), w.n_rows) }
    }

    /// # Safety
    /// The tokens exist and have the columns of `w`; `out` reaches `[tokens][out_stride]`.
    unsafe fn gemm_panels(
        self,
        w: PackedRows<'_>,
        x: &Q8Rows,
        tokens: std::ops::Range<usize>,
        out: *mut f32,
        out_stride: usize,
    ) {
        match self.0 {
            Level::Scalar => unreachable!("weights are not repacked for the scalar level"),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Dispatch` holds this level only if the CPU has it; the rest is the caller's contract.
            Level::Avx2 => unsafe { packed::avx2::gemm_avx2(w, x, tokens, out, out_stride) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::AvxVnni => unsafe { packed::avx2::gemm_vnni(w, x, tokens, out, out_stride) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx512 | Level::Amx => unsafe { packed::avx512::gemm_avx512(w, x, tokens, out, out_stride) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Level::Neon => unsafe { packed::neon::gemm_neon(w, x, tokens, out, out_stride) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Level::NeonDot => unsafe { packed::neon::gemm_dotprod(w, x, tokens, out, out_stride) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Level::NeonI8mm => unsafe { packed::neon::gemm_i8mm(w, x, tokens, out, out_stride) },
        }
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
        if !self.packs() {
            return scalar::gemm_q8(w, x, tokens, out);
        }
        let n_rows = w.n_rows();
        packed::unpacked(w, |panel, from| {
            let out = &mut out[from..];
            // SAFETY: tokens and columns are those of `x` and `w`; `out` begins at the panel's first row.
            unsafe { self.gemm_panels(panel, x, tokens.clone(), out.as_mut_ptr(), n_rows) }
        });
    }

    /// `out[t][r] = w[r] . x[t]` in float arithmetic; weights of any type are converted to f32 first.
    /// `x` is `[n][n_cols]`, `out` `[n][n_rows]`.
    pub fn gemm_f32(self, w: WeightRows<'_>, x: &[f32], out: &mut [f32]) {
        w.check();
        assert!(x.len() * w.n_rows() == out.len() * w.n_cols, "gemm_f32 shapes");
        dispatch!(self, gemm_f32(w, x, out))
    }

    /// `out[t][r] = w[r] . x[t]` with repacked float weights; `x` is `[n][n_cols]`, `out` `[n][n_rows]`.
    pub fn gemm_floats(self, w: FloatRows<'_>, x: &[f32], out: &mut [f32]) {
        assert!(x.len() * w.n_rows == out.len() * w.n_cols, "gemm_floats shapes");
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Dispatch` holds these levels only if the CPU has them; shapes are checked.
            Level::Avx2 | Level::AvxVnni => unsafe { floats::avx2::gemm_floats(w, x, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx512 | Level::Amx => unsafe { floats::avx512::gemm_floats(w, x, out) },
            _ => unreachable!("float weights are repacked for the vector levels of x86"),
        }
    }

    /// `out = x / sqrt(mean(x^2) + eps) * weight`
    pub fn rms_norm(self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        dispatch!(self, rms_norm(x, weight, eps, out))
    }

    /// `out = (x - mean) / sqrt(variance + eps) * weight + bias`; moments in f64.
    pub fn layer_norm(self, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
        dispatch!(self, layer_norm(x, weight, bias, eps, out))
    }

    /// `gate = silu(gate) * up`
    pub fn silu_mul(self, gate: &mut [f32], up: &[f32]) {
        dispatch!(self, silu_mul(gate, up))
    }

    /// `x = x * sigmoid(a * x)`: quick-GELU for a = 1.702, SiLU for a = 1.
    pub fn sigmoid_gate(self, x: &mut [f32], a: f32) {
        dispatch!(self, sigmoid_gate(x, a))
    }

    /// `x = x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`
    pub fn gelu_tanh(self, x: &mut [f32]) {
        dispatch!(self, gelu_tanh(x))
    }

    /// `gate = gelu(gate) * up`, as [`gelu_tanh`](Self::gelu_tanh).
    pub fn gelu_mul(self, gate: &mut [f32], up: &[f32]) {
        dispatch!(self, gelu_mul(gate, up))
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
