//! AMX adds the products of 16 tokens by 16 rows over 64 columns of signed bytes in one instruction. Tile instructions are
//! written out, as their intrinsics are not stable; the rest is AVX-512.

pub(super) mod attention;

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::{COLUMNS, OUTLYING, Outliers, TILE_TOKENS, TileRows, tile_lines};
use crate::kernels::GROUP;
use crate::kernels::packed::avx512::{Avx512, quads};
use crate::kernels::packed::{Header, Layout, Line, PackedRows, Packing, with_packing};

/// Lines of a plane of [`COLUMNS`] columns.
const PLANE: usize = 16;

/// Largest fixed-point number, a little below what two signed bytes hold: products are rounded.
const LARGEST: f32 = 32_600.0;

/// Whether the CPU has AMX for bytes and the system lets this process use it, which asks for that leave.
pub(in crate::kernels) fn available() -> bool {
    const TILES_AND_INT8: u32 = 1 << 25 | 1 << 24;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & TILES_AND_INT8 == TILES_AND_INT8 && may_use_tiles()
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

/// Up to 16 tokens `[tokens][n_cols]` as a tile, without their outliers if there is room for these.
///
/// # Safety
/// The CPU has the features; `to` is a tile of these columns; there is a line of outliers for each token.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn split_tile(x: &[f32], n_cols: usize, to: &mut [Line], mut outliers: Option<&mut [Line]>) {
    let (planes, scales) = to.split_at_mut(to.len() - 1);
    let scales = scales.as_mut_ptr().cast::<f32>();
    for (t, x) in x.chunks_exact(n_cols).enumerate() {
        // SAFETY: 32 floats are read at a time; halves of lines inside `planes`, and 16 scales, are written.
        unsafe {
            let mut range = Magnitudes::new();
            let mut total = _mm512_setzero_ps();
            for x in x.as_chunks::<16>().0 {
                let x = _mm512_loadu_ps(x.as_ptr());
                range.add(x);
                total = _mm512_add_ps(total, _mm512_abs_ps(x));
            }
            let mut range = range.of_all();
            let mut found = Outliers::NONE;
            if let Some(lines) = &mut outliers {
                let threshold = _mm512_reduce_add_ps(total) * (OUTLYING / n_cols as f32);
                if _mm512_cvtss_f32(range.largest) > threshold {
                    range.largest = take_outliers(x, threshold, &mut found);
                }
                lines.as_mut_ptr().add(t).cast::<Outliers>().write(found);
            }
            let inverse = range.inverse();
            *scales.add(t) = _mm512_cvtss_f32(range.scales(256.0));
            let line = planes.as_mut_ptr().add(t).cast::<__m128i>();
            let half = |g: usize| line.add((g / 2 * 2 * PLANE) * 4 + g % 2 * 2);
            for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
                for i in 0..2 {
                    let x = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x.as_ptr().add(16 * i)), inverse));
                    let high = _mm512_srli_epi32::<8>(_mm512_add_epi32(x, _mm512_set1_epi32(128)));
                    _mm_store_si128(half(g).add(i), _mm512_cvtepi32_epi8(high));
                    _mm_store_si128(half(g).add(4 * PLANE + i), _mm512_cvtepi32_epi8(x));
                }
            }
            for &c in &found.columns[..found.n as usize] {
                let c = c as usize;
                let byte = half(c / GROUP).cast::<u8>().add(c % GROUP);
                byte.write(0);
                byte.add(PLANE * size_of::<Line>()).write(0);
            }
            if !n_cols.is_multiple_of(COLUMNS) {
                for i in [0, 1, 4 * PLANE, 4 * PLANE + 1] {
                    _mm_store_si128(half(n_cols / GROUP).add(i), _mm_setzero_si128());
                }
            }
        }
    }
}

/// Values above the threshold; returns the largest magnitude of the others.
#[inline(always)]
unsafe fn take_outliers(x: &[f32], threshold: f32, found: &mut Outliers) -> __m512 {
    let mut no_place = 0.0_f32;
    // SAFETY: the caller has the features.
    unsafe {
        let mut largest = _mm512_setzero_ps();
        for (i, x) in x.as_chunks::<16>().0.iter().enumerate() {
            let size = _mm512_abs_ps(_mm512_loadu_ps(x.as_ptr()));
            let mut out = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(size, _mm512_set1_ps(threshold));
            largest = _mm512_mask_max_ps(largest, !out, size, largest);
            while out != 0 {
                let lane = out.trailing_zeros() as usize;
                no_place = no_place.max(found.add((16 * i + lane) as u32, x[lane]));
                out &= out - 1;
            }
        }
        _mm512_set1_ps(_mm512_reduce_max_ps(largest).max(no_place))
    }
}

/// Some columns of a panel of weights as a tile of 16 rows.
///
/// # Safety
/// The CPU has the features; `w` is one panel with these columns, multiples of 32, and `to` a tile of them.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn convert(w: PackedRows<'_>, columns: Range<usize>, to: &mut [Line]) {
    // SAFETY: the caller's contract.
    unsafe { with_packing!(w.ty, P => convert_panel::<P>(w, columns, to)) }
}

#[inline(always)]
unsafe fn convert_panel<P: Packing>(w: PackedRows<'_>, columns: Range<usize>, to: &mut [Line]) {
    let (first, groups) = (columns.start / GROUP, columns.len() / GROUP);
    let to = to.as_mut_ptr();
    // SAFETY: the panel has these groups; `to` has two planes for every two of them and a line of scales.
    unsafe {
        let panel = w.panels(P::LAYOUT).next().unwrap_unchecked();
        let most = _mm512_set1_ps(largest_quant(P::LAYOUT));
        let mut range = Magnitudes::new();
        for g in 0..groups {
            for (scale, min) in Group::at::<P>(panel, first + g).factors {
                range.add(min);
                range.add(_mm512_fmadd_ps(most, scale, min));
            }
        }
        let inverse = range.inverse();
        _mm512_store_ps(to.add(tile_lines(columns.len()) - 1).cast(), range.scales(1.0));
        for g in 0..groups {
            let Group { quants, factors } = Group::at::<P>(panel, first + g);
            let to = to.add(g / 2 * 2 * PLANE + g % 2 * (PLANE / 2));
            for v in 0..4 {
                for (half, quad) in quads::<P>(quants, v).into_iter().enumerate() {
                    let (scale, min) = factors[half];
                    let x = dequantized(quad, _mm512_mul_ps(scale, inverse), _mm512_mul_ps(min, inverse));
                    for (p, bytes) in pack(x).into_iter().enumerate() {
                        _mm512_store_si512(to.add(p * PLANE + 4 * half + v).cast(), bytes);
                    }
                }
            }
        }
        if !groups.is_multiple_of(2) {
            for plane in 0..2 {
                to.add(groups / 2 * 2 * PLANE + plane * PLANE + PLANE / 2).write_bytes(0, PLANE / 2);
            }
        }
    }
}

/// The largest quant of a format.
const fn largest_quant(l: Layout) -> f32 {
    let two_bits = l.halves && l.min; // in nibbles
    match l.offset {
        0 if two_bits => 3.0,
        0 => ((1 << l.bits) - 1) as f32,
        offset => (2 * offset - 1) as f32,
    }
}

/// 32 columns of 16 rows.
struct Group {
    quants: *const u8,
    /// Scale and min of 16 columns each.
    factors: [(__m512, __m512); 2],
}

impl Group {
    #[inline(always)]
    unsafe fn at<P: Packing>(panel: *const u8, g: usize) -> Group {
        let l = P::LAYOUT;
        // SAFETY: the caller's contract.
        unsafe {
            let block = panel.add(g / l.block_groups() * l.block_bytes());
            let quants = block.add(l.header_bytes() + g % l.block_groups() * l.record_bytes());
            let scales = quants.add(l.group_bytes());
            let header = Header::<Avx512>::read::<P>(block, 0);
            let first = header.factors::<P>(scales, 0, 0);
            let second = if l.halves { header.factors::<P>(scales, 1, 0) } else { first };
            Group { quants, factors: [first, second] }
        }
    }
}

/// Four columns of 16 rows as fixed-point numbers.
#[inline(always)]
unsafe fn dequantized(quad: __m512i, scale: __m512, min: __m512) -> [__m512i; 4] {
    // SAFETY: the caller has the features.
    unsafe {
        let byte = _mm512_set1_epi32(0xff);
        let mut x = [
            _mm512_and_si512(quad, byte),
            _mm512_and_si512(_mm512_srli_epi32::<8>(quad), byte),
            _mm512_and_si512(_mm512_srli_epi32::<16>(quad), byte),
            _mm512_srli_epi32::<24>(quad),
        ];
        for x in &mut x {
            *x = _mm512_cvtps_epi32(_mm512_fmadd_ps(_mm512_cvtepi32_ps(*x), scale, min));
        }
        x
    }
}

/// Four numbers of each lane as four upper bytes and four lower ones. Both are signed: the upper byte is that of the
/// number plus 128.
#[inline(always)]
unsafe fn pack(x: [__m512i; 4]) -> [__m512i; 2] {
    const ODD: __mmask32 = 0xaaaa_aaaa;
    const ODD_BYTES: __mmask64 = 0xaaaa_aaaa_aaaa_aaaa;
    // SAFETY: the caller has the features.
    unsafe {
        let even = _mm512_mask_blend_epi16(ODD, x[0], _mm512_slli_epi32::<16>(x[2]));
        let odd = _mm512_mask_blend_epi16(ODD, x[1], _mm512_slli_epi32::<16>(x[3]));
        let half = _mm512_set1_epi16(128);
        let high = _mm512_srli_epi16::<8>(_mm512_add_epi16(even, half));
        let high = _mm512_mask_blend_epi8(ODD_BYTES, high, _mm512_add_epi16(odd, half));
        [high, _mm512_mask_blend_epi8(ODD_BYTES, even, _mm512_slli_epi16::<8>(odd))]
    }
}

/// The largest magnitude of each lane.
struct Magnitudes {
    largest: __m512,
    /// NaN where a number is not finite, else 0.
    nan: __m512,
}

// SAFETY of every block: the caller has the features.
impl Magnitudes {
    #[inline(always)]
    unsafe fn new() -> Magnitudes {
        // SAFETY: see above.
        unsafe { Magnitudes { largest: _mm512_setzero_ps(), nan: _mm512_setzero_ps() } }
    }

    #[inline(always)]
    unsafe fn add(&mut self, x: __m512) {
        // SAFETY: see above.
        unsafe {
            self.largest = _mm512_max_ps(_mm512_abs_ps(x), self.largest);
            self.nan = _mm512_fmadd_ps(x, _mm512_setzero_ps(), self.nan);
        }
    }

    /// That of all lanes, in each.
    #[inline(always)]
    unsafe fn of_all(&self) -> Magnitudes {
        // SAFETY: see above.
        unsafe {
            Magnitudes {
                largest: _mm512_set1_ps(_mm512_reduce_max_ps(self.largest)),
                nan: _mm512_set1_ps(_mm512_reduce_add_ps(self.nan)),
            }
        }
    }

    /// What makes fixed-point numbers; 0 where all are 0.
    #[inline(always)]
    unsafe fn inverse(&self) -> __m512 {
        // SAFETY: see above.
        unsafe {
            let some = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.largest, _mm512_setzero_ps());
            _mm512_maskz_div_ps(some, _mm512_set1_ps(LARGEST), self.largest)
        }
    }

    /// What `unit` in fixed-point numbers stands for.
    #[inline(always)]
    unsafe fn scales(&self, unit: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(self.largest, _mm512_set1_ps(unit / LARGEST), self.nan) }
    }
}

/// Adds to `out[t][r]` of `[n][stride]`, for the given tokens and the first `n_rows` rows of a tile of weights, the products of
/// its columns; those of the first columns are written.
///
/// # Safety
/// The CPU has AMX; the tokens are those of `x`, `w` is a tile of these columns; nobody else uses the outputs.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn products(
    w: &[Line],
    n_rows: usize,
    x: &TileRows,
    columns: Range<usize>,
    tokens: Range<usize>,
    out: *mut f32,
    stride: usize,
) {
    let (per_tile, steps) = (x.per_tile(), columns.len().div_ceil(COLUMNS));
    let first = columns.start / COLUMNS * 2 * PLANE;
    let scales = tile_lines(x.n_cols) - 1;
    let rows = ((1_u32 << n_rows) - 1) as __mmask16;
    let mut sums = [Sums::default(); 2];
    // SAFETY: the caller's contract.
    unsafe {
        let tiles = Tiles::configure();
        let w = w.as_ptr();
        let row_scales = _mm512_load_ps(w.add(tile_lines(columns.len()) - 1).cast());
        // Products take long to come out: those of a tile are asked for before those of the tile before it are used.
        let mut before = None;
        let mut turn = 0;
        for t in tokens.clone().step_by(TILE_TOKENS).map(Some).chain([None]) {
            let tile = t.map(|t| (t, x.lines.as_ptr().add(t / TILE_TOKENS * per_tile)));
            if let Some((t, tile)) = tile {
                multiply(&tiles, tile.add(first), w, steps, &mut sums[turn]);
                for t in t..tokens.end.min(t + TILE_TOKENS) {
                    _mm_prefetch::<_MM_HINT_T0>(out.add(t * stride).cast());
                }
            }
            turn ^= 1;
            let Some((t, tile)) = std::mem::replace(&mut before, tile) else { continue };
            for i in 0..TILE_TOKENS.min(tokens.end - t) {
                let out = out.add((t + i) * stride);
                let scale = *tile.add(scales).cast::<f32>().add(i);
                let mut product = _mm512_mul_ps(sums[turn].line(i), _mm512_mul_ps(row_scales, _mm512_set1_ps(scale)));
                let outliers = &*tile.add(scales + 1 + i).cast::<Outliers>();
                for o in 0..outliers.n as usize {
                    let column = outliers.columns[o] as usize;
                    if columns.contains(&column) {
                        let column = _mm512_mul_ps(weights(w, column - columns.start), row_scales);
                        product = _mm512_fmadd_ps(column, _mm512_set1_ps(outliers.values[o]), product);
                    }
                }
                if columns.start > 0 {
                    product = _mm512_add_ps(product, _mm512_maskz_loadu_ps(rows, out));
                }
                _mm512_mask_storeu_ps(out, rows, product);
            }
        }
    }
}

/// A column of the weights in fixed-point numbers.
#[inline(always)]
unsafe fn weights(w: *const Line, column: usize) -> __m512 {
    // SAFETY: the column exists.
    unsafe {
        let line = w.add(column / COLUMNS * 2 * PLANE + column % COLUMNS / 4);
        let shift = _mm_cvtsi32_si128(24 - 8 * (column % 4) as i32);
        let plane = |p: usize| _mm512_load_si512(line.add(p * PLANE).cast());
        let high = _mm512_srai_epi32::<24>(_mm512_sll_epi32(plane(0), shift));
        let low = _mm512_srai_epi32::<24>(_mm512_sll_epi32(plane(1), shift));
        _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<8>(high), low))
    }
}

/// Tiles of 16 lines, until it is dropped.
struct Tiles(());

impl Tiles {
    /// # Safety
    /// The CPU has AMX and the process may use it; there is one of these on a thread.
    unsafe fn configure() -> Tiles {
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
        config.row_bytes[..4].fill(64);
        config.rows[..4].fill(16);
        // SAFETY: the caller's contract; the configuration is 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) }
        Tiles(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the CPU has AMX.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
}

/// Sums of products of upper bytes, and of upper with lower ones: `[2][16]` lines of 16.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([[Line; TILE_TOKENS]; 2]);

impl Default for Sums {
    fn default() -> Sums {
        Sums([[Line([0; 64]); TILE_TOKENS]; 2])
    }
}

impl Sums {
    /// Line `i` in units of an upper byte.
    #[inline(always)]
    unsafe fn line(&self, i: usize) -> __m512 {
        // SAFETY: the caller has the features.
        unsafe {
            let load = |plane: usize| _mm512_load_si512((&raw const self.0[plane][i]).cast());
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(load(0)), _mm512_set1_ps(256.0), _mm512_cvtepi32_ps(load(1)))
        }
    }
}

/// A tile of tokens by one of rows. Of the eight tiles four are in use, though each part is then loaded for itself: the
/// more are, the fewer a core has left to load the next while it multiplies, and to a core that runs another thread
/// beside this one there are hardly any.
#[inline(always)]
unsafe fn multiply(_: &Tiles, x: *const Line, w: *const Line, steps: usize, sums: &mut Sums) {
    // SAFETY: the caller's contract; there is a step; tiles of sums lie one after the other.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm3, [{w} + {line} * 1]",
            "tileloadd tmm2, [{x} + {line} * 1 + 1024]",
            "tdpbssd tmm1, tmm2, tmm3",
            "tileloadd tmm2, [{x} + {line} * 1]",
            "tdpbssd tmm0, tmm2, tmm3",
            "tileloadd tmm3, [{w} + {line} * 1 + 1024]",
            "tdpbssd tmm1, tmm2, tmm3",
            "add {x}, 2048",
            "add {w}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {line} * 1], tmm0",
            "tilestored [{sums} + {line} * 1 + 1024], tmm1",
            x = inout(reg) x => _, w = inout(reg) w => _, steps = inout(reg) steps => _, line = in(reg) 64_usize,
            sums = in(reg) sums, out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            options(nostack)
        );
    }
}

/// Tiles of tokens `apart` lines from each other by a tile of rows of one step: what they share is loaded once.
#[inline(always)]
unsafe fn multiply_one(_: &Tiles, x: *const Line, apart: usize, w: *const Line, sums: &mut [Sums]) {
    // SAFETY: the caller's contract, as of `multiply`.
    unsafe {
        asm!(
            "tileloadd tmm2, [{w} + {line} * 1]",
            "tileloadd tmm3, [{w} + {line} * 1 + 1024]",
            "2:",
            "tileloadd tmm1, [{x} + {line} * 1]",
            "tilezero tmm0",
            "tdpbssd tmm0, tmm1, tmm2",
            "tilestored [{sums} + {line} * 1], tmm0",
            "tilezero tmm0",
            "tdpbssd tmm0, tmm1, tmm3",
            "tileloadd tmm1, [{x} + {line} * 1 + 1024]",
            "tdpbssd tmm0, tmm1, tmm2",
            "tilestored [{sums} + {line} * 1 + 1024], tmm0",
            "add {x}, {apart}",
            "add {sums}, 2048",
            "dec {n}",
            "jnz 2b",
            x = inout(reg) x => _, w = in(reg) w, apart = in(reg) apart * size_of::<Line>(), n = inout(reg) sums.len() => _,
            line = in(reg) 64_usize, sums = inout(reg) sums.as_mut_ptr() => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            options(nostack)
        );
    }
}
