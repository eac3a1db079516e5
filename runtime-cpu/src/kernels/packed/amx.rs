//! AMX multiplies 16 tokens by 16 rows over the columns of a group in one instruction. Its sums are the integers that
//! `avx512.rs` finds, and what follows them is the same arithmetic: the products of the two are equal in every bit.
//!
//! The tile instructions are written out, as their intrinsics are not stable.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::avx512::{Avx512, quads};
use super::{GROUP, Header, Isa, Line, PANEL_ROWS, PackedRows, Packing, offset, with_packing};
use crate::kernels::Q8Rows;

/// Tokens of a tile.
const TOKENS: usize = 16;

thread_local! {
    /// A panel's quants as bytes.
    static QUANTS: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Integer sums of 16 tokens with 16 rows, for both planes.
#[repr(C, align(64))]
struct Sums([[[i32; PANEL_ROWS]; TOKENS]; 2]);

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Whether the CPU has AMX for bytes and the system lets this process use it, which asks for that leave.
pub(in crate::kernels) fn available() -> bool {
    const TILES_AND_BYTES: u32 = 3 << 24;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & TILES_AND_BYTES == TILES_AND_BYTES && may_use_tiles()
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

/// As `gemm_avx512`.
///
/// # Safety
/// As of `gemm_avx512`, and [`available`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(in crate::kernels) unsafe fn gemm_amx(
    w: PackedRows<'_>,
    x: &Q8Rows,
    tokens: Range<usize>,
    out: *mut f32,
    out_stride: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if !pays(x) {
            return super::avx512::gemm_avx512(w, x, tokens, out, out_stride);
        }
        with_packing!(w.ty, P => if x.low.is_empty() {
            panels::<P, false>(w, x, tokens, out, out_stride)
        } else {
            panels::<P, true>(w, x, tokens, out, out_stride)
        })
    }
}

/// Whether there are tokens enough for a tile.
pub(in crate::kernels) fn pays(x: &Q8Rows) -> bool {
    x.q.len() >= TOKENS * x.n_cols
}

#[inline(always)]
unsafe fn panels<P: Packing, const TWO: bool>(
    w: PackedRows<'_>,
    x: &Q8Rows,
    tokens: Range<usize>,
    out: *mut f32,
    out_stride: usize,
) {
    let l = P::LAYOUT;
    let mut quants = QUANTS.take();
    quants.resize(w.n_cols / GROUP * 8, Line([0; 64]));
    let mut sums = [const { Sums([[[0; PANEL_ROWS]; TOKENS]; 2]) }; 2];
    // SAFETY: the caller's contract.
    unsafe {
        configure(GROUP / l.n_halves());
        for (i, panel) in w.lines.chunks_exact(l.panel_lines(w.n_cols)).enumerate() {
            let n_rows = (w.n_rows - i * PANEL_ROWS).min(PANEL_ROWS);
            let panel = panel.as_ptr().cast();
            unpack::<P>(panel, &mut quants);
            for first in tokens.clone().step_by(TOKENS) {
                // The last tile begins early enough to be whole; what it repeats is not stored.
                let from = first.min(x.q.len() / x.n_cols - TOKENS);
                let acc = tile::<P, TWO>(panel, &quants, x, from, &mut sums);
                for (t, acc) in acc.into_iter().enumerate() {
                    if (first..tokens.end).contains(&(from + t)) {
                        let at = (from + t - tokens.start) * out_stride + i * PANEL_ROWS;
                        Avx512::store(acc, out.add(at), n_rows);
                    }
                }
            }
        }
        asm!("tilerelease", options(nostack, nomem));
    }
    QUANTS.set(quants);
}

/// Sets the tiles up: 0 to 3 for sums, 4 and 5 for `columns` of tokens, 6 and 7 for those of weights.
unsafe fn configure(columns: usize) {
    let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    for tile in 0..8 {
        config.row_bytes[tile] = if matches!(tile, 4 | 5) { columns as u16 } else { 64 };
        config.rows[tile] = if tile < 6 { TOKENS as u8 } else { columns as u8 / 4 };
    }
    // SAFETY: the CPU has AMX; the configuration is 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) }
}

/// The quants of a panel, unsigned bytes: eight lines of four columns for each group.
#[inline(always)]
unsafe fn unpack<P: Packing>(panel: *const u8, quants: &mut [Line]) {
    let l = P::LAYOUT;
    for (g, lines) in quants.chunks_exact_mut(8).enumerate() {
        // SAFETY: the panel has the groups of `quants`; a line is 64 bytes.
        unsafe {
            let block = panel.add(g / l.block_groups() * l.block_bytes());
            let q = block.add(l.header_bytes() + g % l.block_groups() * l.record_bytes());
            for v in 0..4 {
                let [a, b] = quads::<P>(q, v);
                _mm512_store_si512(lines[v].0.as_mut_ptr().cast(), a);
                _mm512_store_si512(lines[v + 4].0.as_mut_ptr().cast(), b);
            }
        }
    }
}

/// Products of a panel with 16 tokens from `first` on.
#[inline(always)]
unsafe fn tile<P: Packing, const TWO: bool>(
    panel: *const u8,
    quants: &[Line],
    x: &Q8Rows,
    first: usize,
    sums: &mut [Sums; 2],
) -> [__m512; TOKENS] {
    let l = P::LAYOUT;
    let (n, groups) = (x.n_cols, x.n_cols / GROUP);
    let parts = groups * l.n_halves();
    let columns = GROUP / l.n_halves();
    // SAFETY: the caller's contract.
    unsafe {
        let q = x.q.as_ptr().add(first * n);
        let low = if TWO { x.low.as_ptr().add(first * n) } else { q };
        let d = x.d.as_ptr().add(first * groups);
        let (s, s_step) = if l.halves {
            (x.s.as_ptr().add(2 * first * groups), 2 * groups)
        } else {
            (x.total.as_ptr().add(first * groups), groups)
        };
        let w = quants.as_ptr().cast::<u8>();
        let mut acc = [_mm512_setzero_ps(); TOKENS];
        let mut header = Header::<Avx512>::read::<P>(panel, 0);
        products::<TWO>(q, low, n, w, &mut sums[0]);
        for part in 0..parts {
            // The next products are under way while these are added.
            if part + 1 < parts {
                let at = (part + 1) * columns;
                products::<TWO>(q.add(at), low.add(at), n, w.add(at * PANEL_ROWS), &mut sums[(part + 1) % 2]);
            }
            let (g, h) = (part / l.n_halves(), part % l.n_halves());
            let block = panel.add(g / l.block_groups() * l.block_bytes());
            if l.codes && g % l.block_groups() == 0 {
                header = Header::<Avx512>::read::<P>(block, 0);
            }
            let scales = block.add(l.header_bytes() + g % l.block_groups() * l.record_bytes() + l.group_bytes());
            let (scale, min) = header.factors::<P>(scales, h, 0);
            let Sums([high, low]) = &sums[part % 2];
            for t in 0..TOKENS {
                let mut sum = _mm512_load_si512(high[t].as_ptr().cast());
                if TWO {
                    sum = _mm512_add_epi32(_mm512_slli_epi32::<7>(sum), _mm512_load_si512(low[t].as_ptr().cast()));
                }
                acc[t] = Avx512::add_ints(acc[t], sum, _mm512_mul_ps(scale, _mm512_set1_ps(*d.add(t * groups + g))));
                if offset::<Avx512, P>() != 0 || l.min {
                    acc[t] = Avx512::add_product(acc[t], min, _mm512_set1_ps(*s.add(t * s_step + part)));
                }
            }
        }
        acc
    }
}

/// `to[plane][t][r] = sum_c x[plane][t][c] w[r][c]` over the columns of the tiles; tokens are `stride` bytes apart.
#[inline(always)]
unsafe fn products<const TWO: bool>(x: *const i8, low: *const i8, stride: usize, w: *const u8, to: &mut Sums) {
    // SAFETY: the caller's contract; the tiles are configured.
    unsafe {
        if TWO {
            asm!(
                "tileloadd tmm6, [{w} + {line} * 1]",
                "tileloadd tmm4, [{x} + {stride} * 1]",
                "tilezero tmm0",
                "tdpbsud tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{low} + {stride} * 1]",
                "tilezero tmm1",
                "tdpbsud tmm1, tmm5, tmm6",
                "tilestored [{to} + {line} * 1], tmm0",
                "tilestored [{to} + {line} * 1 + 1024], tmm1",
                w = in(reg) w, x = in(reg) x, low = in(reg) low, to = in(reg) to,
                stride = in(reg) stride, line = in(reg) 64_usize,
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
                options(nostack, preserves_flags)
            );
        } else {
            asm!(
                "tileloadd tmm6, [{w} + {line} * 1]",
                "tileloadd tmm4, [{x} + {stride} * 1]",
                "tilezero tmm0",
                "tdpbsud tmm0, tmm4, tmm6",
                "tilestored [{to} + {line} * 1], tmm0",
                w = in(reg) w, x = in(reg) x, to = in(reg) to, stride = in(reg) stride, line = in(reg) 64_usize,
                out("tmm0") _, out("tmm4") _, out("tmm6") _,
                options(nostack, preserves_flags)
            );
        }
    }
}
