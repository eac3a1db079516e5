//! AMX adds the products of 16 tokens by 16 rows over 32 columns of bf16 numbers in one instruction. Tile instructions are
//! written out, as their intrinsics are not stable; the rest is AVX-512.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::{ROWS, TILE_TOKENS, TileRows};
use crate::kernels::GROUP;
use crate::kernels::packed::avx512::{Avx512, quads};
use crate::kernels::packed::{Header, Line, PackedRows, Packing, with_packing};

/// Bytes of a tile.
const TILE: usize = 1024;

/// Whether the CPU has AMX for bf16 and the system lets this process use it, which asks for that leave.
pub(in crate::kernels) fn available() -> bool {
    const TILES_AND_BF16: u32 = 1 << 24 | 1 << 22;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & TILES_AND_BF16 == TILES_AND_BF16 && may_use_tiles()
}

#[cfg(target_os = "linux")]
fn may_use_tiles() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: a system call that touches no memory of ours.
    unsafe {
        asm!(
            "syscall", inout("rax") result, in("rdi") REQUEST, in("rsi") TILE_DATA, lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn may_use_tiles() -> bool {
    false
}

/// Up to 16 tokens `[tokens][n_cols]` as a tile: `[n_cols / 32][planes][16]`.
///
/// # Safety
/// The CPU has the features; `to` has room.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn split_tile(x: &[f32], n_cols: usize, two_planes: bool, to: &mut [Line]) {
    let planes = if two_planes { 2 } else { 1 };
    for (t, x) in x.chunks_exact(n_cols).enumerate() {
        for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
            // SAFETY: 32 floats are read, lines inside `to` written.
            unsafe {
                let x = [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))];
                let line = &raw mut to[g * planes * TILE_TOKENS + t];
                let high = [rounded(x[0]), rounded(x[1])];
                store_columns(high, line);
                if two_planes {
                    let low = [_mm512_sub_ps(x[0], as_float(high[0])), _mm512_sub_ps(x[1], as_float(high[1]))];
                    store_columns([rounded(low[0]), rounded(low[1])], line.add(TILE_TOKENS));
                }
            }
        }
    }
}

/// 32 columns of a token, in their order.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store_columns(x: [__m512i; 2], to: *mut Line) {
    // SAFETY: a line is 64 bytes.
    unsafe {
        for i in 0..2 {
            let half = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(x[i]));
            _mm256_store_si256(to.cast::<__m256i>().add(i), half);
        }
    }
}

/// The nearest bf16 number in the upper half of each lane; what is below it means nothing.
#[target_feature(enable = "avx512f")]
fn rounded(x: __m512) -> __m512i {
    _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000))
}

/// A rounded number as a float.
#[target_feature(enable = "avx512f")]
fn as_float(x: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-0x1_0000)))
}

/// Panels as pairs of bf16 numbers.
///
/// # Safety
/// The CPU has the features; `to` has room for the panels.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn convert(w: PackedRows<'_>, to: &mut [Line]) {
    // SAFETY: the caller's contract.
    unsafe { with_packing!(w.ty, P => convert_panels::<P>(w, to)) }
}

#[inline(always)]
unsafe fn convert_panels<P: Packing>(w: PackedRows<'_>, to: &mut [Line]) {
    let l = P::LAYOUT;
    let groups = w.n_cols / GROUP;
    for (panel, to) in w.panels(l).zip(to.chunks_exact_mut(groups * 2 * 16)) {
        for b in 0..groups / l.block_groups() {
            // SAFETY: the panel has these blocks; there are 32 lines for each group.
            unsafe {
                let block = panel.add(b * l.block_bytes());
                let header = Header::<Avx512>::read::<P>(block, 0);
                for i in 0..l.block_groups() {
                    let q = block.add(l.header_bytes() + i * l.record_bytes());
                    let to = to.as_mut_ptr().add((b * l.block_groups() + i) * 2 * 16);
                    let scales = q.add(l.group_bytes());
                    let first = header.factors::<P>(scales, 0, 0);
                    let second = if l.halves { header.factors::<P>(scales, 1, 0) } else { first };
                    for v in 0..4 {
                        let [a, b] = quads::<P>(q, v);
                        columns(a, first, to.add(2 * v));
                        columns(b, second, to.add(2 * v + 8));
                    }
                }
            }
        }
    }
}

/// Four columns of 16 rows: two lines of high numbers and, 16 lines on, two of low ones.
#[inline(always)]
unsafe fn columns(q: __m512i, (scale, min): (__m512, __m512), to: *mut Line) {
    // SAFETY: the caller's contract.
    unsafe {
        let byte = _mm512_set1_epi32(0xff);
        let upper = _mm512_set1_epi32(-0x1_0000);
        let q = [q, _mm512_srli_epi32::<16>(q)];
        for i in 0..2 {
            let even = _mm512_and_si512(q[i], byte);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<8>(q[i]), byte);
            let even = _mm512_fmadd_ps(_mm512_cvtepi32_ps(even), scale, min);
            let odd = _mm512_fmadd_ps(_mm512_cvtepi32_ps(odd), scale, min);
            let high = [rounded(even), rounded(odd)];
            let low = [rounded(_mm512_sub_ps(even, as_float(high[0]))), rounded(_mm512_sub_ps(odd, as_float(high[1])))];
            for (plane, [even, odd]) in [high, low].into_iter().enumerate() {
                // Bits of `odd` where `upper` is set, else of `even`, moved down.
                let pair = _mm512_ternarylogic_epi32::<0xca>(upper, odd, _mm512_srli_epi32::<16>(even));
                _mm512_store_si512(to.add(16 * plane + i).cast(), pair);
            }
        }
    }
}

/// `out[t][r]` of `[n][stride]` for the given rows and tokens; `w` holds the rows.
///
/// # Safety
/// The CPU has AMX; the tokens are those of `x`, `w` has two panels of its columns; nobody else uses these outputs.
pub(super) unsafe fn products(
    w: &[Line],
    rows: Range<usize>,
    x: &TileRows,
    tokens: Range<usize>,
    out: *mut f32,
    stride: usize,
) {
    let groups = x.n_cols / GROUP;
    let mut some = [[0.0_f32; ROWS]; 2 * TILE_TOKENS];
    // SAFETY: the caller's contract. Without a second tile of tokens the first stands in for it.
    unsafe {
        configure();
        let w = w.as_ptr().cast::<u8>();
        for t in tokens.clone().step_by(2 * TILE_TOKENS) {
            let n = (tokens.end - t).min(2 * TILE_TOKENS);
            let first = x.lines.as_ptr().cast::<u8>().add(t / TILE_TOKENS * x.tile_lines() * 64);
            let second = if n > TILE_TOKENS { first.add(x.tile_lines() * 64) } else { first };
            let whole = n == 2 * TILE_TOKENS && rows.len() == ROWS;
            let out = out.add(t * stride + rows.start);
            let (to, step) = if whole { (out, stride) } else { (some.as_mut_ptr().cast(), ROWS) };
            multiply(x.planes == 2, [first, second], [w, w.add(groups * 2 * TILE)], groups, to, step);
            if !whole {
                for (i, some) in some.iter().enumerate().take(n) {
                    out.add(i * stride).copy_from_nonoverlapping(some.as_ptr(), rows.len());
                }
            }
        }
        asm!("tilerelease", options(nostack, nomem));
    }
}

/// All tiles are 16 lines.
unsafe fn configure() {
    /// What `ldtilecfg` reads.
    #[repr(C, align(64))]
    struct Config {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }
    let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    config.row_bytes[..8].fill(64);
    config.rows[..8].fill(16);
    // SAFETY: the CPU has AMX; the configuration is 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) }
}

/// Two tiles of tokens by two of rows: `out` is `[32][stride]`. Products of high with low numbers come first.
#[inline(always)]
unsafe fn multiply(
    two_planes: bool,
    x: [*const u8; 2],
    w: [*const u8; 2],
    groups: usize,
    out: *mut f32,
    stride: usize,
) {
    /// The loop over groups with its body.
    macro_rules! kernel {
        ($step:literal, $($body:literal),*) => {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                $($body,)*
                concat!("add {x0}, ", $step),
                concat!("add {x1}, ", $step),
                "add {w0}, 2048",
                "add {w1}, 2048",
                "dec {groups}",
                "jnz 2b",
                "tilestored [{out0} + {step} * 4], tmm0",
                "tilestored [{out0} + {step} * 4 + 64], tmm1",
                "tilestored [{out1} + {step} * 4], tmm2",
                "tilestored [{out1} + {step} * 4 + 64], tmm3",
                x0 = inout(reg) x[0] => _, x1 = inout(reg) x[1] => _, w0 = inout(reg) w[0] => _, w1 = inout(reg) w[1] => _,
                groups = inout(reg) groups => _, line = in(reg) 64_usize,
                out0 = in(reg) out, out1 = in(reg) out.add(TILE_TOKENS * stride), step = in(reg) stride,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            )
        };
    }
    // SAFETY: the caller's contract; the tiles are configured; there is a group.
    unsafe {
        if two_planes {
            kernel!(
                2048,
                "tileloadd tmm4, [{x0} + {line} * 1 + 1024]",
                "tileloadd tmm6, [{w0} + {line} * 1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w1} + {line} * 1]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{x1} + {line} * 1 + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm4, [{x0} + {line} * 1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{x1} + {line} * 1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm6, [{w0} + {line} * 1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{w1} + {line} * 1 + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7"
            );
        } else {
            kernel!(
                1024,
                "tileloadd tmm4, [{x0} + {line} * 1]",
                "tileloadd tmm6, [{w0} + {line} * 1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w1} + {line} * 1 + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{x1} + {line} * 1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm6, [{w0} + {line} * 1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{w1} + {line} * 1]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7"
            );
        }
    }
}
