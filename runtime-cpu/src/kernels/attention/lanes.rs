//! What the attention kernels need of a vector register. They are written once over it; each instruction-set file
//! implements it and calls them from `#[target_feature]` functions, into which everything here is inlined.

/// A register of `N` floats.
///
/// # Safety
/// Every method requires a CPU with the instruction set of the implementation, and pointers to as many elements as the
/// method reads or writes, of any alignment.
pub(in crate::kernels) trait Lanes: Copy {
    /// Floats of a register: 4, 8 or 16.
    const N: usize;

    unsafe fn zero() -> Self;
    unsafe fn splat(v: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// `N` half-precision floats.
    unsafe fn load_f16(p: *const u8) -> Self;
    /// `N` signed bytes.
    unsafe fn load_i8(p: *const u8) -> Self;
    /// One half-precision float.
    unsafe fn half(p: *const u8) -> f32;
    /// One half-precision float in every lane.
    unsafe fn splat_half(p: *const u8) -> Self;

    /// Asks for the cache line at `p`, which need not be valid.
    unsafe fn prefetch(p: *const u8);

    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// `self * b + c`
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// The larger; `other` where `self` is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// `e^x` for x <= 0 to about 1e-7 relative, 0 below -87.3; NaN stays.
    unsafe fn exp(self) -> Self;
    /// Whether some lane is above that of `other`.
    unsafe fn any_above(self, other: Self) -> bool;
    /// Minus infinity in lanes where not `first <= i < end`; `[N]` each.
    unsafe fn only_within(self, first: *const i32, end: *const i32, i: i32) -> Self;

    /// Sum of all lanes.
    unsafe fn total(self) -> f32;
    /// Largest lane.
    unsafe fn highest(self) -> f32;
    /// Sums every four lanes that stand together: lane `4 j + r` is the sum of lanes `4 j..4 j + 4` of `rows[r]`.
    unsafe fn quad(rows: [Self; 4]) -> Self;
    /// From `N / 4` results of [`quad`](Self::quad): lane `4 j + r` is the sum of all lanes of row `r` of `quads[j]`.
    unsafe fn fold(quads: *const Self) -> Self;
}

/// Largest [`Lanes::N`].
pub(super) const MAX_LANES: usize = 16;

/// Element type of cached rows.
///
/// # Safety
/// As of [`Lanes`]; `row` points to a row that has the values asked for.
pub(super) trait Elem {
    /// Bytes of a row of `d` values.
    fn row_bytes(d: usize) -> usize;
    /// Values `c..c + N`; `c` is a multiple of `N`.
    unsafe fn load<L: Lanes>(row: *const u8, c: usize) -> L;
    /// Value `c`.
    unsafe fn one<L: Lanes>(row: *const u8, c: usize) -> f32;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Q8_0;

impl Elem for F32 {
    fn row_bytes(d: usize) -> usize {
        4 * d
    }
    #[inline(always)]
    unsafe fn load<L: Lanes>(row: *const u8, c: usize) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::load(row.cast::<f32>().add(c)) }
    }
    #[inline(always)]
    unsafe fn one<L: Lanes>(row: *const u8, c: usize) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { row.cast::<f32>().add(c).read_unaligned() }
    }
}

impl Elem for F16 {
    fn row_bytes(d: usize) -> usize {
        2 * d
    }
    #[inline(always)]
    unsafe fn load<L: Lanes>(row: *const u8, c: usize) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::load_f16(row.add(2 * c)) }
    }
    #[inline(always)]
    unsafe fn one<L: Lanes>(row: *const u8, c: usize) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { L::half(row.add(2 * c)) }
    }
}

/// Blocks of 32: a half-precision scale and 32 signed bytes.
impl Elem for Q8_0 {
    fn row_bytes(d: usize) -> usize {
        d / 32 * 34
    }
    #[inline(always)]
    unsafe fn load<L: Lanes>(row: *const u8, c: usize) -> L {
        // SAFETY: the caller's contract; N divides 32, so the values lie in one block.
        unsafe {
            let block = row.add(c / 32 * 34);
            L::load_i8(block.add(2 + c % 32)).mul(L::splat_half(block))
        }
    }
    #[inline(always)]
    unsafe fn one<L: Lanes>(row: *const u8, c: usize) -> f32 {
        // SAFETY: the caller's contract.
        unsafe {
            let block = row.add(c / 32 * 34);
            L::half(block) * f32::from(block.add(2 + c % 32).cast::<i8>().read())
        }
    }
}

/// Below this `exp` returns 0.
pub(super) const EXP_LOW: f32 = -87.3;
/// ln 2 in two parts: `x - n LN2_HIGH - n LN2_LOW` is exact enough (Cephes).
pub(super) const LN2_HIGH: f32 = 0.693_359_4;
/// See [`LN2_HIGH`].
pub(super) const LN2_LOW: f32 = -2.121_944_4e-4;
/// `(e^r - 1 - r) / r^2` for |r| <= ln 2 / 2, highest power first (Cephes).
pub(super) const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
