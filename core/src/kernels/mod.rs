//! The inner loops, and the choice of instruction set.
//!
//! Every level returns the same bits. `scalar` is the definition: it fixes the order of every addition. `lanes` says
//! the same in 16-lane vectors, once for all instruction sets; `avx512`, `avx2`, `neon` and `portable` supply the
//! vector operations.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod fused;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod scalar;
#[cfg(test)]
mod tests;
mod tile;

use half::{bf16, f16};

use self::lanes::Lanes;
pub(crate) use self::scalar::LANES;
pub(crate) use self::tile::Tile;

/// Rows handled together: a tile stays in the first-level cache, and [`add_rows`] sums over one before adding it on.
pub(crate) const TILE_ROWS: usize = 16;

/// Rows that are turned around together for the dot products of many queries.
pub(crate) const COLUMN_ROWS: usize = 32;

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
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
    Native(Native),
}

/// Instruction sets that convert 16-bit numbers as they load them, so that their kernels take rows of any [`Element`].
/// The others take f32 rows only: they convert slowly enough to do it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Native {
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
            avx2::Avx2::detect().map(Native::Avx2).map(Level::Native),
            #[cfg(target_arch = "x86_64")]
            avx512::Avx512::detect().map(Native::Avx512).map(Level::Native),
            #[cfg(target_arch = "aarch64")]
            neon::Neon::detect().map(Native::Neon).map(Level::Native),
        ];
        levels.into_iter().flatten().map(Self)
    }

    /// Lower-case name, for logs and benches.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            Level::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Native(Native::Avx2(_)) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Native(Native::Avx512(_)) => "avx512",
            #[cfg(target_arch = "aarch64")]
            Level::Native(Native::Neon(_)) => "neon",
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            Level::Native(none) => match none {},
        }
    }

    /// The level, if its kernels take rows of any [`Element`].
    pub(crate) const fn native(self) -> Option<Native> {
        match self.0 {
            Level::Native(native) => Some(native),
            _ => None,
        }
    }
}

/// What rows consist of: numbers that widen to f32 without rounding.
pub(crate) trait Element: Copy {
    const ZERO: Self;
    fn wide(self) -> f32;
    fn load<L: Lanes>(l: L, x: &[Self; scalar::LANES]) -> L::V;
}

macro_rules! elements {
    ($($t:ty, $zero:expr, $wide:expr, $load:path;)*) => {$(
        impl Element for $t {
            const ZERO: Self = $zero;

            #[inline(always)]
            fn wide(self) -> f32 {
                $wide(self)
            }

            #[inline(always)]
            fn load<L: Lanes>(l: L, x: &[Self; scalar::LANES]) -> L::V {
                $load(l, x)
            }
        }
    )*};
}
elements! {
    f32, 0.0, f32::from, Lanes::load;
    f16, f16::ZERO, f16::to_f32, Lanes::widen_f16;
    bf16, bf16::ZERO, scalar::wide_bf16, Lanes::widen_bf16;
}

/// Memory that is read next.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    at: *const u8,
    bytes: usize,
}

impl Ahead {
    pub(crate) const LINE: usize = 64;

    pub(crate) fn of<T>(x: &[T]) -> Self {
        Self { at: x.as_ptr().cast(), bytes: size_of_val(x) }
    }

    /// Takes a part of so many bytes, in whole lines.
    pub(crate) fn take(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes).next_multiple_of(Self::LINE).min(self.bytes);
        let part = Self { at: self.at, bytes };
        // Nothing is read through it.
        *self = Self { at: self.at.wrapping_add(bytes), bytes: self.bytes.saturating_sub(bytes) };
        part
    }

    /// A `parts`-th of it.
    pub(crate) fn share(self, parts: usize) -> usize {
        self.bytes.checked_div(parts).unwrap_or(0).saturating_add(1)
    }

    fn lines(self) -> impl Iterator<Item = *const u8> {
        (0..self.bytes).step_by(Self::LINE).map(move |i| self.at.wrapping_add(i))
    }
}

/// The list of kernels, for whoever needs one item per kernel; other arguments are passed on in front. `[E]` marks those
/// that a [`Native`] level has for rows of any element.
macro_rules! for_each_kernel {
    ($apply:ident $(, $arg:tt)*) => {
        $apply! {
            [$($arg),*]
            /// `out[b * stride + i] = q[b] . rows[i]`; q `[queries][head_dim]`, rows `[n][head_dim]`, `out` reaching the last of them.
            fn dots[E](q: &[f32], head_dim: usize, rows: &[E], out: &mut [f32], stride: usize);
            /// Rearranges up to [`COLUMN_ROWS`] rows for `dots_turned` of the same level; `columns` is
            /// `[head_dim][COLUMN_ROWS]`, `head_dim` rounded up to a multiple of 16.
            fn turn(rows: &[f32], head_dim: usize, columns: &mut [f32]);
            /// `out[b * stride + i] = a (q[b] . rows[i])` for the `n` rows that `turn` rearranged; q `[queries][head_dim]`.
            /// `ahead` is fetched meanwhile.
            fn dots_turned(q: &[f32], head_dim: usize, a: f32, columns: &[f32], out: &mut [f32], stride: usize, n: usize, ahead: Ahead);
            /// `out[i] = ||rows[i]||^2`; rows `[out.len()][head_dim]`.
            fn sq_norms[E](rows: &[E], head_dim: usize, out: &mut [f32]);
            /// `out[i] = ||rows[i] - c||^2`; rows `[out.len()][c.len()]`.
            fn sq_dists[E](c: &[f32], rows: &[E], out: &mut [f32]);
            /// `norms[i] = ||rows[i]||`, and their sums `mean += sum_i rows[i]`, `direction += sum_i rows[i] / norms[i]`, a
            /// zero row having no direction; rows `[norms.len()][mean.len()]`, 1 to [`TILE_ROWS`] of them. `ahead` is
            /// fetched meanwhile.
            fn gather[E](rows: &[E], norms: &mut [f32], mean: &mut [f32], direction: &mut [f32], ahead: Ahead);
            /// `cosines[i] = -direction . rows[i] / (length distances[i])`, 0 where that divides by 0, `distances` holding
            /// the norms of the rows; then `distances[i] = ||rows[i] - mean||`. `ahead` is fetched meanwhile.
            fn compare[E](direction: &[f32], length: f32, mean: &[f32], rows: &[E], cosines: &mut [f32], distances: &mut [f32], ahead: Ahead);
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
            /// `x = exp(x - max)`, returning the sum; for `x <= max`.
            fn exp_sum(max: f32, x: &mut [f32]) -> f32;
            /// Asks for memory that is read soon. The kernels read several rows at once, an order no CPU foresees.
            fn prefetch(ahead: Ahead);
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

/// The element of rows in a call that any level may answer.
type E = f32;

macro_rules! dispatch {
    ([] $($(#[$doc:meta])* fn $name:ident$([$e:ident])?($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            $(#[$doc])*
            #[allow(clippy::too_many_arguments)]
            pub(crate) fn $name(d: Dispatch, $($arg: $ty),*) $(-> $ret)? {
                match d.0 {
                    Level::Scalar => scalar::$name($($arg),*),
                    Level::Portable(p) => lanes::$name(p, $($arg),*),
                    Level::Native(n) => n.$name($($arg),*),
                }
            }
        )*

        #[allow(unused_variables)] // on processors without such a level
        impl Native {$(
            #[allow(clippy::too_many_arguments)]
            pub(crate) fn $name$(<$e: Element>)?(self, $($arg: $ty),*) $(-> $ret)? {
                match self {
                    #[cfg(target_arch = "x86_64")]
                    Self::Avx2(t) => t.$name($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Self::Avx512(t) => t.$name($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    Self::Neon(t) => t.$name($($arg),*),
                }
            }
        )*}
    };
}
for_each_kernel!(dispatch);
