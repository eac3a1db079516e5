//! Unpacking of block formats with 256-bit vectors, shared by the x86 files, and the kernels that are generic over it.
//!
//! Everything here is `inline(always)`: it is compiled inside the `#[target_feature]` functions of `avx2.rs` and
//! `avx512.rs`, which is also what makes its intrinsics valid to call.

use std::arch::x86_64::*;

use super::scalar::{IQ4_VALUES, k4_scale_min, q3_scale};
use super::{GROUP, PANEL_ROWS, Q8Row, WeightRows};

/// 32 weights in a vector register, `scale * q + min` with one scale and min per half.
pub(super) trait Format {
    const BLOCK_BYTES: usize;
    /// Groups of 32 per block.
    const GROUPS: usize;
    /// `q` holds signed bytes; otherwise unsigned.
    const SIGNED: bool = false;
    /// The two halves of a group have scales of their own.
    const HALVES: bool = false;
    /// Scales and mins of a block.
    type Header: Copy;

    /// # Safety
    /// `block` has `BLOCK_BYTES` bytes; the CPU has avx2 and f16c.
    unsafe fn header(block: *const u8) -> Self::Header;
    /// # Safety
    /// As [`header`](Self::header); `g < GROUPS`.
    unsafe fn quants(block: *const u8, g: usize) -> __m256i;
    fn scale(h: &Self::Header, g: usize) -> [f32; 2];
    fn min(h: &Self::Header, g: usize) -> [f32; 2];
}

/// Calls `$call::<F>` with the format of a quantised type.
macro_rules! with_format {
    ($ty:expr, $f:ident => $body:expr) => {{
        use crate::kernels::formats_x86 as fx;
        use crate::quant::GgmlType as T;
        match $ty {
            T::Q4_0 => {
                type $f = fx::Q4_0;
                $body
            }
            T::Q4_1 => {
                type $f = fx::Q4_1;
                $body
            }
            T::Q5_0 => {
                type $f = fx::Q5_0;
                $body
            }
            T::Q5_1 => {
                type $f = fx::Q5_1;
                $body
            }
            T::Q8_0 => {
                type $f = fx::Q8_0;
                $body
            }
            T::Q2_K => {
                type $f = fx::Q2K;
                $body
            }
            T::Q3_K => {
                type $f = fx::Q3K;
                $body
            }
            T::Q4_K => {
                type $f = fx::Q4K;
                $body
            }
            T::Q5_K => {
                type $f = fx::Q5K;
                $body
            }
            T::Q6_K => {
                type $f = fx::Q6K;
                $body
            }
            T::IQ4_NL => {
                type $f = fx::Iq4Nl;
                $body
            }
            T::IQ4_XS => {
                type $f = fx::Iq4Xs;
                $body
            }
            T::F32 | T::F16 | T::BF16 => unreachable!("float weights take the float kernels"),
        }
    }};
}
pub(super) use with_format;

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Q8_0;
pub(super) struct Q2K;
pub(super) struct Q3K;
pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Q6K;
pub(super) struct Iq4Nl;
pub(super) struct Iq4Xs;

macro_rules! simple_format {
    ($name:ident, $bytes:expr, $signed:expr, |$b:ident| $header:expr, |$q:ident| $quants:expr) => {
        impl Format for $name {
            const BLOCK_BYTES: usize = $bytes;
            const GROUPS: usize = 1;
            const SIGNED: bool = $signed;
            type Header = (f32, f32);
            #[inline(always)]
            unsafe fn header($b: *const u8) -> (f32, f32) {
                // SAFETY: the block is in bounds (contract of `Format`).
                unsafe { $header }
            }
            #[inline(always)]
            unsafe fn quants($q: *const u8, _g: usize) -> __m256i {
                // SAFETY: the block is in bounds (contract of `Format`).
                unsafe { $quants }
            }
            #[inline(always)]
            fn scale(h: &(f32, f32), _g: usize) -> [f32; 2] {
                [h.0; 2]
            }
            #[inline(always)]
            fn min(h: &(f32, f32), _g: usize) -> [f32; 2] {
                [h.1; 2]
            }
        }
    };
}

simple_format!(Q4_0, 18, false, |b| offset(f16_at(b), -8.0), |b| nibbles(b.add(2)));
simple_format!(Q4_1, 20, false, |b| f16_pair_at(b), |b| nibbles(b.add(4)));
simple_format!(Q5_0, 22, false, |b| offset(f16_at(b), -16.0), |b| _mm256_or_si256(
    nibbles(b.add(6)),
    fifth_bits(b.add(2))
));
simple_format!(Q5_1, 24, false, |b| f16_pair_at(b), |b| _mm256_or_si256(nibbles(b.add(8)), fifth_bits(b.add(4))));
simple_format!(Q8_0, 34, true, |b| (f16_at(b), 0.0), |b| _mm256_loadu_si256(b.add(2).cast()));
simple_format!(Iq4Nl, 18, true, |b| (f16_at(b), 0.0), |b| iq4(nibbles(b.add(2))));

/// Scale and min of quants whose zero lies at `-by`.
#[inline(always)]
fn offset(scale: f32, by: f32) -> (f32, f32) {
    (scale, by * scale)
}

/// Scales and mins of the sub-blocks of a 256-value block; formats with one scale per 32 use the first eight.
#[derive(Clone, Copy)]
pub(super) struct KHeader<const N: usize> {
    scale: [f32; N],
    min: [f32; N],
}

macro_rules! k_format {
    ($name:ident, $bytes:expr, $signed:expr, $n:expr, |$b:ident| $header:expr, |$q:ident, $g:ident| $quants:expr) => {
        impl Format for $name {
            const BLOCK_BYTES: usize = $bytes;
            const GROUPS: usize = 8;
            const SIGNED: bool = $signed;
            const HALVES: bool = $n == 16;
            type Header = KHeader<$n>;
            #[inline(always)]
            unsafe fn header(block: *const u8) -> KHeader<$n> {
                // SAFETY: the block is in bounds (contract of `Format`).
                unsafe {
                    let $b = std::slice::from_raw_parts(block, $bytes);
                    $header
                }
            }
            #[inline(always)]
            unsafe fn quants($q: *const u8, $g: usize) -> __m256i {
                // SAFETY: the block is in bounds (contract of `Format`).
                unsafe { $quants }
            }
            #[inline(always)]
            fn scale(h: &KHeader<$n>, g: usize) -> [f32; 2] {
                if $n == 16 { [h.scale[2 * g], h.scale[2 * g + 1]] } else { [h.scale[g]; 2] }
            }
            #[inline(always)]
            fn min(h: &KHeader<$n>, g: usize) -> [f32; 2] {
                if $n == 16 { [h.min[2 * g], h.min[2 * g + 1]] } else { [h.min[g]; 2] }
            }
        }
    };
}

k_format!(
    Q2K,
    84,
    false,
    16,
    |b| {
        let (d, m) = (f16_at(b.as_ptr().add(80)), f16_at(b.as_ptr().add(82)));
        KHeader {
            scale: std::array::from_fn(|i| d * f32::from(b[i] & 15)),
            min: std::array::from_fn(|i| -m * f32::from(b[i] >> 4)),
        }
    },
    |b, g| two_bits(b.add(16), g)
);
k_format!(
    Q3K,
    110,
    false,
    16,
    |b| {
        let d = f16_at(b.as_ptr().add(108));
        let scale: [f32; 16] = std::array::from_fn(|i| d * f32::from(q3_scale(&b[96..108], i)));
        KHeader { scale, min: scale.map(|s| -4.0 * s) }
    },
    |b, g| {
        // A set mask bit adds 4; it moves from bit g to bit 2.
        let bits = _mm256_srl_epi16(_mm256_loadu_si256(b.cast()), _mm_cvtsi32_si128(g as i32));
        let high = _mm256_slli_epi16::<2>(_mm256_and_si256(bits, _mm256_set1_epi8(1)));
        _mm256_or_si256(two_bits(b.add(32), g), high)
    }
);
k_format!(Q4K, 144, false, 8, |b| k4_header(b), |b, g| nibble_plane(b.add(16 + 32 * (g / 2)), g % 2));
k_format!(Q5K, 176, false, 8, |b| k4_header(b), |b, g| {
    let bits = _mm256_srl_epi16(_mm256_loadu_si256(b.add(16).cast()), _mm_cvtsi32_si128(g as i32));
    let high = _mm256_slli_epi16::<4>(_mm256_and_si256(bits, _mm256_set1_epi8(1)));
    _mm256_or_si256(nibble_plane(b.add(48 + 32 * (g / 2)), g % 2), high)
});
k_format!(
    Q6K,
    210,
    false,
    16,
    |b| {
        let d = f16_at(b.as_ptr().add(208));
        let scale: [f32; 16] = std::array::from_fn(|i| d * f32::from(b[192 + i] as i8));
        KHeader { scale, min: scale.map(|s| -32.0 * s) }
    },
    |b, g| {
        let (h, s) = (g / 4, g % 4);
        let low = nibble_plane(b.add(64 * h + 32 * (s % 2)), s / 2);
        let bits = _mm256_loadu_si256(b.add(128 + 32 * h).cast());
        let bits = _mm256_srl_epi16(bits, _mm_cvtsi32_si128(2 * s as i32));
        let high = _mm256_slli_epi16::<4>(_mm256_and_si256(bits, _mm256_set1_epi8(3)));
        _mm256_or_si256(low, high)
    }
);
k_format!(
    Iq4Xs,
    136,
    true,
    8,
    |b| {
        let d = f16_at(b.as_ptr());
        let high = u16::from_le_bytes([b[2], b[3]]);
        let scale = |g: usize| {
            let low = (b[4 + g / 2] >> (4 * (g % 2))) & 15;
            d * f32::from(i16::from(low) + (((high >> (2 * g)) & 3) << 4) as i16 - 32)
        };
        KHeader { scale: std::array::from_fn(scale), min: [0.0; 8] }
    },
    |b, g| iq4(nibbles(b.add(8 + 16 * g)))
);

#[inline(always)]
unsafe fn k4_header(b: &[u8]) -> KHeader<8> {
    // SAFETY: the caller's block has at least 16 bytes.
    let (d, m) = unsafe { (f16_at(b.as_ptr()), f16_at(b.as_ptr().add(2))) };
    let parts: [(f32, f32); 8] = std::array::from_fn(|g| k4_scale_min(&b[4..16], g));
    KHeader { scale: parts.map(|p| d * p.0), min: parts.map(|p| -m * p.1) }
}

#[inline(always)]
unsafe fn f16_at(p: *const u8) -> f32 {
    // SAFETY: two bytes are in bounds and the CPU has f16c (contract of `Format`).
    unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(p.cast::<u16>().read_unaligned())))) }
}

/// Two neighbouring halves.
#[inline(always)]
unsafe fn f16_pair_at(p: *const u8) -> (f32, f32) {
    // SAFETY: four bytes are in bounds and the CPU has f16c (contract of `Format`).
    unsafe {
        let both = _mm_cvtph_ps(_mm_cvtsi32_si128(p.cast::<i32>().read_unaligned()));
        (_mm_cvtss_f32(both), _mm_cvtss_f32(_mm_movehdup_ps(both)))
    }
}

/// Low nibbles of 16 bytes, then their high nibbles.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: 16 bytes are in bounds (contract of `Format`).
    unsafe {
        let b = _mm_loadu_si128(p.cast());
        let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(b), _mm_srli_epi16::<4>(b));
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }
}

/// Low (0) or high (1) nibbles of 32 bytes.
#[inline(always)]
unsafe fn nibble_plane(p: *const u8, high: usize) -> __m256i {
    // SAFETY: 32 bytes are in bounds (contract of `Format`).
    unsafe {
        let b = _mm256_srl_epi16(_mm256_loadu_si256(p.cast()), _mm_cvtsi32_si128(4 * high as i32));
        _mm256_and_si256(b, _mm256_set1_epi8(15))
    }
}

/// Two-bit plane `g` of 64 bytes.
#[inline(always)]
unsafe fn two_bits(p: *const u8, g: usize) -> __m256i {
    // SAFETY: 64 bytes are in bounds (contract of `Format`).
    unsafe {
        let b = _mm256_loadu_si256(p.add(32 * (g / 4)).cast());
        let b = _mm256_srl_epi16(b, _mm_cvtsi32_si128(2 * (g % 4) as i32));
        _mm256_and_si256(b, _mm256_set1_epi8(3))
    }
}

/// Bit j of four bytes becomes 16 in byte j.
#[inline(always)]
unsafe fn fifth_bits(p: *const u8) -> __m256i {
    // SAFETY: four bytes are in bounds (contract of `Format`).
    unsafe {
        let all = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
        let spread = _mm256_shuffle_epi8(
            all,
            _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303),
        );
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
        _mm256_and_si256(set, _mm256_set1_epi8(16))
    }
}

#[inline(always)]
unsafe fn iq4(nibbles: __m256i) -> __m256i {
    // SAFETY: the table has 16 bytes.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(IQ4_VALUES.as_ptr().cast()));
        _mm256_shuffle_epi8(table, nibbles)
    }
}

/// Dot products of quantised rows with one vector of one or two planes. `VNNI` needs avx512vnni + avx512vl.
///
/// # Safety
/// The CPU has avx2, fma and f16c (and the VNNI set if `VNNI`); `w` and `x` have the shapes of `Dispatch::gemv_q8`.
#[inline(always)]
pub(super) unsafe fn gemv<F: Format, const VNNI: bool>(w: WeightRows<'_>, x: Q8Row<'_>, out: &mut [f32]) {
    // SAFETY: the caller's contract; the second plane is as long as the first where there is one.
    unsafe {
        if x.low.is_empty() {
            gemv_planes::<F, VNNI, false>(w, x, out);
        } else {
            gemv_planes::<F, VNNI, true>(w, x, out);
        }
    }
}

#[inline(always)]
unsafe fn gemv_planes<F: Format, const VNNI: bool, const TWO: bool>(w: WeightRows<'_>, x: Q8Row<'_>, out: &mut [f32]) {
    // Rows that share the loads of x. A 256-value block's header is long enough to fill the registers by itself.
    const SHARED: usize = 4;
    let n_shared = if F::GROUPS == 1 { out.len() / SHARED * SHARED } else { 0 };
    let row = |r: usize| w.data[r * w.row_bytes..].as_ptr();
    let (shared, single) = out.split_at_mut(n_shared);
    // SAFETY: the caller's contract; every row that is named is in bounds.
    unsafe {
        for (i, out) in shared.as_chunks_mut::<SHARED>().0.iter_mut().enumerate() {
            let rows = std::array::from_fn(|r| row(i * SHARED + r));
            *out = if VNNI {
                dot_pairs_q8::<F, TWO>(rows, w.row_bytes, x)
            } else {
                dot_rows_q8::<F, VNNI, TWO, SHARED>(rows, w.row_bytes, x)
            };
        }
        for (i, out) in single.iter_mut().enumerate() {
            [*out] = dot_rows_q8::<F, VNNI, TWO, 1>([row(n_shared + i)], w.row_bytes, x);
        }
    }
}

/// `R` rows against one vector. A row's result does not depend on its neighbours.
#[inline(always)]
unsafe fn dot_rows_q8<F: Format, const VNNI: bool, const TWO: bool, const R: usize>(
    rows: [*const u8; R],
    row_bytes: usize,
    x: Q8Row<'_>,
) -> [f32; R] {
    // SAFETY: a row is a whole number of blocks; `x` has as many values as the row (checked by `Dispatch`).
    unsafe {
        let mut acc = [_mm256_setzero_ps(); R];
        let mut mins = [0.0_f32; R];
        for b in 0..row_bytes / F::BLOCK_BYTES {
            let mut headers = [std::mem::MaybeUninit::<F::Header>::uninit(); R];
            for r in 0..R {
                let block = rows[r].add(b * F::BLOCK_BYTES);
                // The same place in the next group of rows: weights come from memory, in order.
                _mm_prefetch::<_MM_HINT_T0>(block.wrapping_add(R * row_bytes).cast());
                headers[r].write(F::header(block));
            }
            for g in 0..F::GROUPS {
                let i = b * F::GROUPS + g;
                let high = _mm256_loadu_si256(x.q.as_ptr().add(GROUP * i).cast());
                let low = if TWO { _mm256_loadu_si256(x.low.as_ptr().add(GROUP * i).cast()) } else { high };
                let d = *x.d.get_unchecked(i);
                let (s0, s1) = (*x.s.get_unchecked(2 * i), *x.s.get_unchecked(2 * i + 1));
                let s = s0 + s1;
                for r in 0..R {
                    let header = headers[r].assume_init_ref();
                    let mut q = F::quants(rows[r].add(b * F::BLOCK_BYTES), g);
                    if F::SIGNED && VNNI {
                        q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
                    }
                    let mut part = dot_bytes::<F, VNNI>(_mm256_setzero_si256(), q, high);
                    if TWO {
                        part = dot_bytes::<F, VNNI>(_mm256_slli_epi32::<7>(part), q, low);
                    }
                    let (scale, min) = (F::scale(header, g), F::min(header, g));
                    let factor = if F::HALVES {
                        _mm256_set_m128(_mm_set1_ps(scale[1] * d), _mm_set1_ps(scale[0] * d))
                    } else {
                        _mm256_set1_ps(scale[0] * d)
                    };
                    acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(part), factor, acc[r]);
                    if F::HALVES {
                        mins[r] = s0.mul_add(min[0], s1.mul_add(min[1], mins[r]));
                    } else if F::SIGNED && VNNI {
                        mins[r] = s.mul_add(-128.0 * scale[0], mins[r]);
                    } else if !F::SIGNED {
                        mins[r] = s.mul_add(min[0], mins[r]);
                    }
                }
            }
        }
        std::array::from_fn(|r| horizontal_sum(acc[r]) + mins[r])
    }
}

/// Four rows of a 32-value format against one vector, two to a 512-bit register. Same bits as [`dot_rows_q8`].
#[inline(always)]
unsafe fn dot_pairs_q8<F: Format, const TWO: bool>(rows: [*const u8; 4], row_bytes: usize, x: Q8Row<'_>) -> [f32; 4] {
    // SAFETY: as in `dot_rows_q8`; the caller's CPU has the AVX-512 set.
    unsafe {
        let mut acc = [_mm512_setzero_ps(); 2];
        let mut mins = [0.0_f32; 4];
        for i in 0..row_bytes / F::BLOCK_BYTES {
            let high = _mm512_broadcast_i64x4(_mm256_loadu_si256(x.q.as_ptr().add(GROUP * i).cast()));
            let low = if TWO {
                _mm512_broadcast_i64x4(_mm256_loadu_si256(x.low.as_ptr().add(GROUP * i).cast()))
            } else {
                high
            };
            let d = *x.d.get_unchecked(i);
            let s = *x.s.get_unchecked(2 * i) + *x.s.get_unchecked(2 * i + 1);
            for (p, acc) in acc.iter_mut().enumerate() {
                let blocks = [rows[2 * p].add(i * F::BLOCK_BYTES), rows[2 * p + 1].add(i * F::BLOCK_BYTES)];
                let mut factors = [0.0; 2];
                for (side, block) in blocks.into_iter().enumerate() {
                    // The same place in the next rows: weights come from memory, in order.
                    _mm_prefetch::<_MM_HINT_T0>(block.wrapping_add(4 * row_bytes).cast());
                    let header = F::header(block);
                    let scale = F::scale(&header, 0)[0];
                    factors[side] = scale * d;
                    let min = if F::SIGNED { -128.0 * scale } else { F::min(&header, 0)[0] };
                    mins[2 * p + side] = s.mul_add(min, mins[2 * p + side]);
                }
                let first = _mm512_castsi256_si512(F::quants(blocks[0], 0));
                let mut q = _mm512_inserti64x4::<1>(first, F::quants(blocks[1], 0));
                if F::SIGNED {
                    q = _mm512_xor_si512(q, _mm512_set1_epi8(-128));
                }
                let mut part = _mm512_dpbusd_epi32(_mm512_setzero_si512(), q, high);
                if TWO {
                    part = _mm512_dpbusd_epi32(_mm512_slli_epi32::<7>(part), q, low);
                }
                let factor = _mm512_set1_ps(factors[0]);
                let factor = _mm512_mask_broadcastss_ps(factor, 0xff00, _mm_set_ss(factors[1]));
                *acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part), factor, *acc);
            }
        }
        let mut out = mins;
        for (p, acc) in acc.into_iter().enumerate() {
            out[2 * p] += horizontal_sum(_mm512_castps512_ps256(acc));
            out[2 * p + 1] += horizontal_sum(_mm512_extractf32x8_ps::<1>(acc));
        }
        out
    }
}

/// Adds sums of products of four neighbouring bytes, `[8]` i32, to `acc`. Signed weights are biased under `VNNI`.
#[inline(always)]
unsafe fn dot_bytes<F: Format, const VNNI: bool>(acc: __m256i, q: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller's contract on CPU features.
    unsafe {
        if VNNI {
            return _mm256_dpbusd_epi32(acc, q, x);
        }
        let pairs = if F::SIGNED {
            _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q))
        } else {
            _mm256_maddubs_epi16(q, x)
        };
        _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

#[inline(always)]
pub(super) unsafe fn horizontal_sum(v: __m256) -> f32 {
    // SAFETY: the caller's contract on CPU features.
    unsafe {
        let q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let d = _mm_add_ps(q, _mm_movehl_ps(q, q));
        _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)))
    }
}

/// Transposes an 8x8 matrix of 32-bit values.
#[inline(always)]
unsafe fn transpose_8x8(r: [__m256i; 8]) -> [__m256i; 8] {
    // Loops and not closures: closures do not have the caller's instruction set.
    // SAFETY: the caller's contract on CPU features.
    unsafe {
        let (mut t, mut u, mut v) = (r, r, r);
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        for i in [0, 1, 4, 5] {
            let to = 2 * i - i / 4 * 4;
            u[to] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
            u[to + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        }
        for i in 0..4 {
            v[i] = _mm256_permute2x128_si256::<0x20>(u[i], u[i + 4]);
            v[i + 4] = _mm256_permute2x128_si256::<0x31>(u[i], u[i + 4]);
        }
        v
    }
}

/// A float element type in memory.
pub(super) trait Elem {
    const BYTES: usize;
    /// # Safety
    /// Eight elements are readable at `p`; the CPU has avx2 and f16c.
    unsafe fn load8(p: *const u8) -> __m256;
    /// # Safety
    /// Sixteen elements are readable at `p`; the CPU has avx512f.
    unsafe fn load16(p: *const u8) -> __m512;
    /// # Safety
    /// One element is readable at `p`; the CPU has f16c.
    unsafe fn load1(p: *const u8) -> f32;
}

pub(super) struct F32Elem;
pub(super) struct F16Elem;
pub(super) struct Bf16Elem;

impl Elem for F32Elem {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load8(p: *const u8) -> __m256 {
        // SAFETY: the caller's contract.
        unsafe { _mm256_loadu_ps(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load16(p: *const u8) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_loadu_ps(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load1(p: *const u8) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<f32>().read_unaligned() }
    }
}

impl Elem for F16Elem {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load8(p: *const u8) -> __m256 {
        // SAFETY: the caller's contract.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load16(p: *const u8) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load1(p: *const u8) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { f16_at(p) }
    }
}

impl Elem for Bf16Elem {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load8(p: *const u8) -> __m256 {
        // SAFETY: the caller's contract.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load16(p: *const u8) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load1(p: *const u8) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { f32::from_bits(u32::from(p.cast::<u16>().read_unaligned()) << 16) }
    }
}

/// Up to 16 float rows, transposed into `panel` `[n_cols][16]`; missing rows are zeros.
///
/// # Safety
/// The CPU has avx2 and f16c; `rows` points to `n_rows` rows of `row_bytes` bytes; `panel` has `16 * n_cols` values.
#[inline(always)]
pub(super) unsafe fn pack_f32<E: Elem>(
    rows: *const u8,
    row_bytes: usize,
    n_rows: usize,
    n_cols: usize,
    panel: &mut [f32],
) {
    if n_rows < PANEL_ROWS {
        panel.fill(0.0);
    }
    for half in 0..2 {
        let here = n_rows.saturating_sub(8 * half).min(8);
        if here == 0 {
            break;
        }
        // SAFETY: the caller's contract; a missing row repeats the last one here and is cleared below.
        unsafe {
            let row = |r: usize| rows.add((8 * half + r.min(here - 1)) * row_bytes);
            let whole = n_cols / 8 * 8;
            for c in (0..whole).step_by(8) {
                let mut q = [_mm256_setzero_si256(); 8];
                for (r, q) in q.iter_mut().enumerate().take(here) {
                    *q = _mm256_castps_si256(E::load8(row(r).add(c * E::BYTES)));
                }
                for (i, v) in transpose_8x8(q).into_iter().enumerate() {
                    _mm256_storeu_si256(panel.as_mut_ptr().add((c + i) * PANEL_ROWS + 8 * half).cast(), v);
                }
            }
            for c in whole..n_cols {
                for r in 0..here {
                    panel[c * PANEL_ROWS + 8 * half + r] = E::load1(row(r).add(c * E::BYTES));
                }
            }
        }
    }
}
