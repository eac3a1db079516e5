//! The inner loops, and the choice of instruction set.
//!
//! Every level returns the same bits. `scalar` is the definition: it fixes the order of every addition. `lanes` says
//! the same in 16-lane vectors, once for all instruction sets; `avx512`, `avx2`, `neon` and `portable` supply the
//! vector operations.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod scalar;
#[cfg(test)]
mod tests;

use half::{bf16, f16};

/// Rows handled together: a tile stays in the first-level cache, and [`add_rows`] sums over one before adding it on.
pub(crate) const TILE_ROWS: usize = 16;

/// Elements of a Q8_0 block, which is a half-precision scale and as many signed bytes.
pub(crate) const Q8_0: usize = 32;
/// Bytes of a Q8_0 block.
pub(crate) const Q8_0_BYTES: usize = 34;

/// The instruction set the kernels run on. A value exists only if this CPU supports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Scalar,
    Portable(portable::Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
}

impl Dispatch {
    /// The reference kernels, present everywhere.
    pub const fn scalar() -> Self {
        Self(Level::Scalar)
    }

    /// The fastest level of this CPU: asked at run time with the `std` feature, from the target's compile-time features
    /// without.
    pub fn detect() -> Self {
        Self::available().last().unwrap_or(Self::scalar())
    }

    /// Every level of this CPU, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        let levels = [
            Some(Level::Scalar),
            portable::Portable::detect().map(Level::Portable),
            #[cfg(target_arch = "x86_64")]
            avx2::Avx2::detect().map(Level::Avx2),
            #[cfg(target_arch = "x86_64")]
            avx512::Avx512::detect().map(Level::Avx512),
            #[cfg(target_arch = "aarch64")]
            neon::Neon::detect().map(Level::Neon),
        ];
        levels.into_iter().flatten().map(Self)
    }

    /// Lower-case name, for logs and benches.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            Level::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_) => "avx512",
            #[cfg(target_arch = "aarch64")]
            Level::Neon(_) => "neon",
        }
    }
}

/// The list of kernels, for whoever needs one item per kernel; other arguments are passed on in front.
macro_rules! for_each_kernel {
    ($apply:ident $(, $arg:tt)*) => {
        $apply! {
            [$($arg),*]
            /// `out[b * stride + i] = q[b] . rows[i]`; q `[queries][head_dim]`, rows `[n][head_dim]`, `out` reaching the last of them.
            fn dots(q: &[f32], head_dim: usize, rows: &[f32], out: &mut [f32], stride: usize);
            /// As `dots`, and faster for several queries; `columns` is scratch, `[head_dim][TILE_ROWS]`.
            fn dots_many(q: &[f32], head_dim: usize, rows: &[f32], columns: &mut [f32], out: &mut [f32], stride: usize);
            /// `out[i] = ||rows[i]||^2`; rows `[out.len()][head_dim]`.
            fn sq_norms(rows: &[f32], head_dim: usize, out: &mut [f32]);
            /// `out[i] = ||rows[i] - c||^2`; rows `[out.len()][c.len()]`.
            fn sq_dists(c: &[f32], rows: &[f32], out: &mut [f32]);
            /// `norms[i] = ||rows[i]||`, and their sums `mean += sum_i rows[i]`, `direction += sum_i rows[i] / norms[i]`, a
            /// zero row having no direction; rows `[norms.len()][mean.len()]`, at most [`TILE_ROWS`] of them.
            fn gather(rows: &[f32], norms: &mut [f32], mean: &mut [f32], direction: &mut [f32]);
            /// `cosines[i] = -direction . rows[i] / (length distances[i])`, 0 where that divides by 0, `distances` holding
            /// the norms of the rows; then `distances[i] = ||rows[i] - mean||`.
            fn compare(direction: &[f32], length: f32, mean: &[f32], rows: &[f32], cosines: &mut [f32], distances: &mut [f32]);
            /// `y += sum_i w[i] rows[i]`, the sum taken first; rows `[w.len()][y.len()]`.
            fn add_rows(w: &[f32], rows: &[f32], y: &mut [f32]);
            /// `y += a x`.
            fn axpy(a: f32, x: &[f32], y: &mut [f32]);
            /// `y += w[b] x[b]` for one `b` after the other; `x[b]` begins at `b * stride`.
            fn add_scaled(w: &[f32], x: &[f32], stride: usize, y: &mut [f32]);
            /// `x *= a`.
            fn scale(a: f32, x: &mut [f32]);
            /// Sum of the elements.
            fn sum(x: &[f32]) -> f32;
            /// Least and greatest element; NaN never wins. `(inf, -inf)` for an empty slice.
            fn min_max(x: &[f32]) -> (f32, f32);
            /// `x *= a`, returning the greatest element as `min_max` does.
            fn scale_max(a: f32, x: &mut [f32]) -> f32;
            /// `x = exp(x - max)`, returning the sum; for `x <= max`.
            fn exp_sum(max: f32, x: &mut [f32]) -> f32;
            /// Asks for memory that is read soon. The kernels read several rows at once, an order no CPU foresees.
            fn prefetch(x: &[f32]);
            /// `dst = src` as f32.
            fn widen_f16(src: &[f16], dst: &mut [f32]);
            /// `dst = src` as f32.
            fn widen_bf16(src: &[bf16], dst: &mut [f32]);
            /// `dst = src` as f32, from whole blocks.
            fn widen_q8_0(src: &[u8], dst: &mut [f32]);
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use for_each_kernel;

macro_rules! dispatch {
    ([] $($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(d: Dispatch, $($arg: $ty),*) $(-> $ret)? {
            match d.0 {
                Level::Scalar => scalar::$name($($arg),*),
                Level::Portable(p) => lanes::$name(p, $($arg),*),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2(t) => t.$name($($arg),*),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512(t) => t.$name($($arg),*),
                #[cfg(target_arch = "aarch64")]
                Level::Neon(t) => t.$name($($arg),*),
            }
        }
    )*};
}
for_each_kernel!(dispatch);
