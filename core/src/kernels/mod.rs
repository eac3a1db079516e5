//! The inner loops, and the choice of instruction set.
//!
//! Every level returns the same bits: `scalar` defines the order of every addition.

mod scalar;

use half::f16;

/// The instruction set the kernels run on. A value exists only if this CPU supports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Scalar,
}

impl Dispatch {
    /// The reference kernels, present everywhere.
    pub const fn scalar() -> Self {
        Self(Level::Scalar)
    }

    /// The fastest level of this CPU.
    pub fn detect() -> Self {
        Self::scalar()
    }

    /// Every level of this CPU, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        [Self::scalar()].into_iter()
    }

    /// Lower-case name, for logs and benches.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
        }
    }
}

macro_rules! kernels {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(d: Dispatch, $($arg: $ty),*) $(-> $ret)? {
            match d.0 {
                Level::Scalar => scalar::$name($($arg),*),
            }
        }
    )*};
}

kernels! {
    /// `out[i] = q . rows[i]`; rows `[out.len()][q.len()]`.
    fn dot_rows(q: &[f32], rows: &[f32], out: &mut [f32]);
    /// `out[i] = ||rows[i]||^2`; rows `[out.len()][head_dim]`.
    fn sq_norms(rows: &[f32], head_dim: usize, out: &mut [f32]);
    /// `out[i] = ||rows[i] - c||^2`; rows `[out.len()][c.len()]`.
    fn sq_dists(c: &[f32], rows: &[f32], out: &mut [f32]);
    /// `y += a * x`.
    fn axpy(a: f32, x: &[f32], y: &mut [f32]);
    /// `x *= a`.
    fn scale(a: f32, x: &mut [f32]);
    /// Sum of the elements.
    fn sum(x: &[f32]) -> f32;
    /// Sum of the squares of the elements.
    fn sum_squares(x: &[f32]) -> f32;
    /// Least and greatest element; NaN never wins. `(inf, -inf)` for an empty slice.
    fn min_max(x: &[f32]) -> (f32, f32);
    /// `x = exp(x - max)`, returning the sum; for `x <= max`.
    fn exp_sum(max: f32, x: &mut [f32]) -> f32;
    /// `dst = src` as f32.
    fn widen_f16(src: &[f16], dst: &mut [f32]);
}
