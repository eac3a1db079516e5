//! Weights repacked for the vector kernels: panels of 16 rows, a vector lane for each row.
//!
//! A panel is as small as the blocks it comes from, so it can replace them in memory, and it needs no shuffling when it
//! is read: four columns of 16 rows lie side by side in 64 bytes, which is what the byte dot products of every
//! instruction set want. A panel is read from its beginning to its end. It holds the groups of 32 columns one after the
//! other, and before every eight of them a header in formats of 256-value blocks:
//!
//! | part | bytes | content |
//! |---|---|---|
//! | header | 32, or 64 with mins | 16 halves that multiply the scales, 16 that multiply the mins |
//! | quants | `64 * bits` | four lines of nibbles (columns 0 to 15 low, 16 to 31 high), then the lines of the fifth and sixth bits; or eight lines of bytes |
//! | scales | 32; behind a header 16 for each scale of a row | 16 halves, or bytes |
//! | mins | as scales, where the format has mins | |
//!
//! The weight is `scale * (q - offset) + min`, as in ggml's formats.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
mod pack;

use super::{GROUP, PANEL_ROWS, Q8Rows, TILE, TileGroup, WeightRows};
use crate::memory::{Arena, Piece, Zero};
use crate::quant::GgmlType;

/// A whole matrix, repacked.
#[derive(Debug)]
pub struct Packed {
    ty: GgmlType,
    n_rows: usize,
    n_cols: usize,
    lines: Piece<Line>,
}

/// Some panels of a repacked matrix.
#[derive(Clone, Copy, Debug)]
pub struct PackedRows<'a> {
    /// Format that the weights had.
    pub(super) ty: GgmlType,
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
    lines: &'a [Line],
}

/// A cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

// SAFETY: bytes, aligned to 64.
unsafe impl Zero for Line {}

/// How a format lies in a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bits of a quant: 4, 5, 6 or 8.
    pub bits: usize,
    /// What is subtracted from a quant.
    pub offset: i32,
    /// A nibble is an index into the IQ4 table, whose values are stored with an offset of 128.
    pub table: bool,
    pub min: bool,
    /// A byte of scale for every group, times a half for every 256 columns.
    pub codes: bool,
    /// Scales for 16 columns.
    pub halves: bool,
}

/// A format as a type, for the kernels.
pub(super) trait Packing {
    const LAYOUT: Layout;
}

/// Calls `$body` with `$p` as the type of a quantised format.
macro_rules! with_packing {
    ($ty:expr, $p:ident => $body:expr) => {
        with_packing!(@ $ty, $p, $body, [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS])
    };
    (@ $ty:expr, $p:ident, $body:expr, [$($name:ident),*]) => {
        match $ty {
            $($crate::quant::GgmlType::$name => {
                struct $p;
                impl $crate::kernels::packed::Packing for $p {
                    const LAYOUT: $crate::kernels::packed::Layout =
                        $crate::kernels::packed::Layout::of($crate::quant::GgmlType::$name);
                }
                $body
            })*
            _ => unreachable!("float weights take the float kernels"),
        }
    };
}
pub(super) use with_packing;

/// The function `$name` of an instruction set: `$n` tokens of `$isa` at a time.
macro_rules! gemm {
    ($name:ident, $features:literal, $isa:ty, $n:literal) => {
        /// `out[(t - tokens.start) * out_stride + r]` for the rows of `w` and the given tokens.
        ///
        /// # Safety
        /// The CPU has the features; tokens exist and have the columns of `w`; `out` reaches as far.
        #[target_feature(enable = $features)]
        pub(in crate::kernels) unsafe fn $name(
            w: $crate::kernels::packed::PackedRows<'_>,
            x: &$crate::kernels::Q8Rows,
            tokens: std::ops::Range<usize>,
            out: *mut f32,
            out_stride: usize,
        ) {
            use $crate::kernels::packed::{panels, with_packing};
            // SAFETY: the caller's contract.
            unsafe {
                with_packing!(w.ty, P => if x.low.is_empty() {
                    panels::<$isa, P, $n, false>(w, x, tokens, out, out_stride)
                } else {
                    panels::<$isa, P, $n, true>(w, x, tokens, out, out_stride)
                })
            }
        }
    };
}
use gemm;

impl Layout {
    /// Of a quantised type.
    pub const fn of(ty: GgmlType) -> Layout {
        const fn plain(bits: usize, offset: i32, min: bool) -> Layout {
            Layout { bits, offset, table: false, min, codes: false, halves: false }
        }
        match ty {
            GgmlType::Q4_0 => plain(4, 8, false),
            GgmlType::Q4_1 => plain(4, 0, true),
            GgmlType::Q5_0 => plain(5, 16, false),
            GgmlType::Q5_1 => plain(5, 0, true),
            GgmlType::Q8_0 => plain(8, 128, false),
            GgmlType::IQ4_NL => Layout { table: true, ..plain(4, 128, false) },
            GgmlType::Q2_K => Layout { codes: true, halves: true, ..plain(4, 0, true) },
            GgmlType::Q3_K => Layout { codes: true, halves: true, ..plain(4, 4, false) },
            GgmlType::Q4_K => Layout { codes: true, ..plain(4, 0, true) },
            GgmlType::Q5_K => Layout { codes: true, ..plain(5, 0, true) },
            GgmlType::Q6_K => Layout { codes: true, halves: true, ..plain(6, 32, false) },
            GgmlType::IQ4_XS => Layout { codes: true, table: true, ..plain(4, 128, false) },
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => panic!("float weights are not packed"),
        }
    }

    /// A quant uses all eight bits; with `offset` taken off it is a signed byte.
    pub const fn is_bytes(self) -> bool {
        self.bits == 8 || self.table
    }

    /// Bytes of the quants of a group.
    pub const fn group_bytes(self) -> usize {
        64 * self.bits
    }

    /// Scales per group.
    pub const fn n_halves(self) -> usize {
        if self.halves { 2 } else { 1 }
    }

    /// Bytes of the scales of a group, or of its mins.
    pub const fn scale_bytes(self) -> usize {
        if self.codes { PANEL_ROWS * self.n_halves() } else { 2 * PANEL_ROWS }
    }

    /// Bytes of a group: quants, scales, mins.
    pub const fn record_bytes(self) -> usize {
        self.group_bytes() + self.scale_bytes() * if self.min { 2 } else { 1 }
    }

    /// Groups behind a header.
    pub const fn block_groups(self) -> usize {
        if self.codes { 8 } else { 1 }
    }

    /// Bytes of the header of a block.
    pub const fn header_bytes(self) -> usize {
        match (self.codes, self.min) {
            (false, _) => 0,
            (true, false) => 2 * PANEL_ROWS,
            (true, true) => 4 * PANEL_ROWS,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        self.header_bytes() + self.block_groups() * self.record_bytes()
    }

    /// Cache lines of a panel.
    const fn panel_lines(self, n_cols: usize) -> usize {
        (n_cols / GROUP / self.block_groups() * self.block_bytes()).div_ceil(64)
    }
}

impl Packed {
    /// Whether repacking `ty` pays. The panels of two- and three-bit formats are larger than their blocks, which only x86
    /// has kernels for.
    pub fn pays(ty: GgmlType) -> bool {
        match ty {
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => false,
            GgmlType::Q2_K | GgmlType::Q3_K => !cfg!(target_arch = "x86_64"),
            _ => true,
        }
    }

    /// Repacks all rows of a quantised type.
    pub fn new(w: WeightRows<'_>, pool: &crate::threads::Pool) -> Packed {
        Packed::within(&mut Arena::new(0), w, pool)
    }

    /// As [`new`](Packed::new), beside other matrices.
    pub(crate) fn within(memory: &mut Arena, w: WeightRows<'_>, pool: &crate::threads::Pool) -> Packed {
        w.check();
        let n_rows = w.n_rows();
        let per_panel = Layout::of(w.ty).panel_lines(w.n_cols);
        let mut lines = memory.take(n_rows.div_ceil(PANEL_ROWS) * per_panel);
        let panels = 4; // a small matrix has a dozen
        pool.chunks(&mut lines, panels * per_panel, |i, lines| {
            for (p, panel) in lines.chunks_exact_mut(per_panel).enumerate() {
                let from = (i * panels + p) * PANEL_ROWS;
                pack::panel(w.slice(from, n_rows.min(from + PANEL_ROWS)), panel);
            }
        });
        Packed { ty: w.ty, n_rows, n_cols: w.n_cols, lines }
    }

    /// Rows of the matrix.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Columns of the matrix.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Bytes in memory.
    pub fn n_bytes(&self) -> usize {
        size_of_val(&self.lines[..])
    }

    /// Rows `from..to`; `from` is a multiple of 16.
    pub fn rows(&self, from: usize, to: usize) -> PackedRows<'_> {
        let per_panel = Layout::of(self.ty).panel_lines(self.n_cols);
        assert!(from.is_multiple_of(PANEL_ROWS) && from <= to && to <= self.n_rows, "packed rows {from}..{to}");
        let lines = &self.lines[from / PANEL_ROWS * per_panel..to.div_ceil(PANEL_ROWS) * per_panel];
        PackedRows { ty: self.ty, n_rows: to - from, n_cols: self.n_cols, lines }
    }
}

impl<'a> PackedRows<'a> {
    /// Where each panel begins; `l` is the layout of the type.
    pub(super) fn panels(self, l: Layout) -> impl Iterator<Item = *const u8> + 'a {
        self.lines.chunks_exact(l.panel_lines(self.n_cols)).map(|panel| panel.as_ptr().cast())
    }
}

/// One instruction set's view of a panel: `LANES` of its 16 rows at a time.
///
/// # Safety
/// All functions: the CPU has the instruction set; pointers reach as far as their names say.
pub(super) trait Isa {
    /// Rows in a vector.
    const LANES: usize;
    /// `dots` takes whole bytes as signed ones: their offset is off already.
    const SIGNED: bool;
    type Int: Copy;
    type Float: Copy;

    unsafe fn zero() -> Self::Float;

    /// Dot products of the columns of a group, or of half `H` of it, with `N` tokens: `128 x[t] + low[t]` if `TWO`.
    /// `q` points to the first lane of the group's first line, `x` and `low` to the group's first four columns; the next
    /// four columns are `STEP` bytes on, those of the next token 4.
    unsafe fn dots<P: Packing, const N: usize, const TWO: bool, const H: usize, const STEP: usize>(
        q: *const u8,
        x: *const i8,
        low: *const i8,
    ) -> [Self::Int; N];

    /// `LANES` halves.
    unsafe fn halves(p: *const u8) -> Self::Float;
    /// `LANES` signed bytes.
    unsafe fn bytes(p: *const u8) -> Self::Float;
    unsafe fn mul(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn splat(v: f32) -> Self::Float;
    /// `acc + part * a`
    unsafe fn add_ints(acc: Self::Float, part: Self::Int, a: Self::Float) -> Self::Float;
    /// `acc + a * b`
    unsafe fn add_product(acc: Self::Float, a: Self::Float, b: Self::Float) -> Self::Float;
    /// Asks for a cache line; any address will do.
    unsafe fn prefetch(p: *const u8);
    /// The first `n` lanes.
    unsafe fn store(v: Self::Float, out: *mut f32, n: usize);
}

/// Products with weights that lie in the file: each panel is repacked, used for all tokens and forgotten.
/// `gemm` is the instruction set's.
pub(super) fn unpacked(w: WeightRows<'_>, mut gemm: impl FnMut(PackedRows<'_>, usize)) {
    // Taken out and put back: a panel is 10 to 100 KB.
    thread_local!(static PANEL: std::cell::RefCell<Vec<Line>> = const { std::cell::RefCell::new(Vec::new()) });
    let mut lines = PANEL.take();
    lines.resize(Layout::of(w.ty).panel_lines(w.n_cols), Line([0; 64]));
    for from in (0..w.n_rows()).step_by(PANEL_ROWS) {
        let rows = w.slice(from, w.n_rows().min(from + PANEL_ROWS));
        pack::panel(rows, &mut lines);
        gemm(PackedRows { ty: w.ty, n_rows: rows.n_rows(), n_cols: w.n_cols, lines: &lines }, from);
    }
    PANEL.set(lines);
}

/// `out[(t - tokens.start) * out_stride + r]` for the rows of `w`, `N` tokens at a time.
///
/// # Safety
/// The CPU has the instruction set; the tokens exist and have the columns of `w`; `out` reaches as far.
#[inline(always)]
pub(super) unsafe fn panels<I: Isa, P: Packing, const N: usize, const TWO: bool>(
    w: PackedRows<'_>,
    x: &Q8Rows,
    tokens: std::ops::Range<usize>,
    out: *mut f32,
    out_stride: usize,
) {
    for (i, panel) in w.panels(P::LAYOUT).enumerate() {
        let n_rows = (w.n_rows - i * PANEL_ROWS).min(PANEL_ROWS);
        let mut t = tokens.start;
        while t < tokens.end {
            let left = tokens.end - t;
            // SAFETY: the caller's contract.
            unsafe {
                let out = out.add((t - tokens.start) * out_stride + i * PANEL_ROWS);
                if left >= N && t % TILE + N <= TILE && t / TILE * TILE + TILE <= x.tiled {
                    tile::<I, P, N, TWO, { 4 * TILE }>(panel, w.n_cols, x, t, out, out_stride, n_rows);
                    t += N;
                } else {
                    tile::<I, P, 1, TWO, 4>(panel, w.n_cols, x, t, out, out_stride, n_rows);
                    t += 1;
                }
            }
        }
    }
}

/// One panel, `N` tokens, from a tile or, if `STEP` is 4, one from its row.
#[inline(always)]
unsafe fn tile<I: Isa, P: Packing, const N: usize, const TWO: bool, const STEP: usize>(
    panel: *const u8,
    n_cols: usize,
    x: &Q8Rows,
    first: usize,
    out: *mut f32,
    out_stride: usize,
    n_rows: usize,
) {
    let l = P::LAYOUT;
    let n_groups = n_cols / GROUP;
    // SAFETY: the caller's contract; a panel has the parts that its layout says.
    unsafe {
        let from = Tokens::at::<TWO, STEP>(x, first);
        let mut lane = 0;
        while lane < n_rows {
            let mut acc = [I::zero(); N];
            for b in 0..n_groups / l.block_groups() {
                let block = panel.add(b * l.block_bytes());
                let header = Header::<I>::read::<P>(block, lane);
                for i in 0..l.block_groups() {
                    let g = b * l.block_groups() + i;
                    let q = block.add(l.header_bytes() + i * l.record_bytes());
                    if N == 1 && lane == 0 {
                        // Weights come from memory, in order, faster than the hardware looks ahead.
                        for line in 0..l.record_bytes().div_ceil(64) {
                            I::prefetch(q.wrapping_add(AHEAD + 64 * line));
                        }
                    }
                    let x = from.group::<STEP>(g);
                    for h in 0..l.n_halves() {
                        let part = if h == 0 {
                            I::dots::<P, N, TWO, 0, STEP>(q.add(4 * lane), x.q, x.low)
                        } else {
                            I::dots::<P, N, TWO, 1, STEP>(q.add(4 * lane), x.q, x.low)
                        };
                        let (scale, min) = header.factors::<P>(q.add(l.group_bytes()), h, lane);
                        for t in 0..N {
                            acc[t] = I::add_ints(acc[t], part[t], I::mul(scale, I::splat(*x.d.add(t))));
                            if offset::<I, P>() != 0 || l.min {
                                let s = if l.halves { *x.s.add(h * STEP / 4 + t) } else { *x.total.add(t) };
                                acc[t] = I::add_product(acc[t], min, I::splat(s));
                            }
                        }
                    }
                }
            }
            for (t, v) in acc.into_iter().enumerate() {
                I::store(v, out.add(t * out_stride + lane), (n_rows - lane).min(I::LANES));
            }
            lane += I::LANES;
        }
    }
}

/// Where the activations of a tile, or of one row, lie.
#[derive(Clone, Copy)]
struct Tokens {
    q: *const i8,
    low: *const i8,
    d: *const f32,
    total: *const f32,
    s: *const f32,
}

impl Tokens {
    /// From the first group of token `t` on.
    #[inline(always)]
    unsafe fn at<const TWO: bool, const STEP: usize>(x: &Q8Rows, t: usize) -> Tokens {
        let (n, groups) = (x.n_cols, x.n_cols / GROUP);
        // SAFETY: the caller's contract.
        unsafe {
            if STEP == 4 {
                let q = x.q.as_ptr().add(t * n);
                let low = if TWO { x.low.as_ptr().add(t * n) } else { q };
                let (d, total) = (x.d.as_ptr().add(t * groups), x.total.as_ptr().add(t * groups));
                return Tokens { q, low, d, total, s: x.s.as_ptr().add(2 * t * groups) };
            }
            let record = x.tiles.as_ptr().add(t / TILE * groups).cast::<i8>().add(4 * (t % TILE));
            let floats = record.add(2 * GROUP * TILE).cast::<f32>();
            let (total, s) = (floats.add(TILE), floats.add(2 * TILE));
            Tokens { q: record, low: record.add(GROUP * TILE), d: floats, total, s }
        }
    }

    /// From group `g` on.
    #[inline(always)]
    unsafe fn group<const STEP: usize>(self, g: usize) -> Tokens {
        // SAFETY: the caller's contract.
        unsafe {
            let (bytes, floats, halves) = if STEP == 4 { (GROUP, 1, 2) } else { (RECORD, RECORD / 4, RECORD / 4) };
            Tokens {
                q: self.q.add(g * bytes),
                low: self.low.add(g * bytes),
                d: self.d.add(g * floats),
                total: self.total.add(g * floats),
                s: self.s.add(g * halves),
            }
        }
    }
}

/// Bytes of a group of a tile.
const RECORD: usize = size_of::<TileGroup>();

/// How far ahead of its use a decode step asks for a line, in bytes: what memory delivers in its latency.
const AHEAD: usize = 4096;

/// What an instruction set still has to subtract from a quant.
const fn offset<I: Isa, P: Packing>() -> i32 {
    if I::SIGNED && P::LAYOUT.is_bytes() { 0 } else { P::LAYOUT.offset }
}

/// What multiplies the scales and mins of a block, for `LANES` rows.
pub(super) struct Header<I: Isa> {
    scale: I::Float,
    min: I::Float,
}

impl<I: Isa> Header<I> {
    #[inline(always)]
    pub(super) unsafe fn read<P: Packing>(block: *const u8, lane: usize) -> Header<I> {
        let l = P::LAYOUT;
        // SAFETY: the caller's contract.
        unsafe {
            let at = |part: usize| I::halves(block.add(2 * (part * PANEL_ROWS + lane)));
            Header {
                scale: if l.codes { at(0) } else { I::zero() },
                min: if l.codes && l.min { at(1) } else { I::zero() },
            }
        }
    }

    /// Scale and min of a group, or of half `h` of it; `scales` is where its scales begin.
    #[inline(always)]
    pub(super) unsafe fn factors<P: Packing>(&self, scales: *const u8, h: usize, lane: usize) -> (I::Float, I::Float) {
        let l = P::LAYOUT;
        // SAFETY: the caller's contract.
        unsafe {
            let mins = scales.add(l.scale_bytes());
            let at = h * PANEL_ROWS + lane;
            let scale =
                if l.codes { I::mul(self.scale, I::bytes(scales.add(at))) } else { I::halves(scales.add(2 * lane)) };
            let min = match (l.min, l.codes) {
                (true, true) => I::mul(self.min, I::bytes(mins.add(at))),
                (true, false) => I::halves(mins.add(2 * lane)),
                (false, _) => I::mul(scale, I::splat(-(offset::<I, P>() as f32))),
            };
            (scale, min)
        }
    }
}
