//! Rows of keys or values in one of the element types.

use half::f16;

use crate::Error;
use crate::kernels::{Dispatch, KvRows, Q8Block};
use crate::memory::{Arena, Piece, Zero};
use crate::ops::Compute;

// SAFETY: zero bytes are a scale and quants of 0.
unsafe impl Zero for Q8Block {}

/// Element type of cached keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// 4 bytes a value, exact.
    F32,
    /// 2 bytes a value.
    #[default]
    F16,
    /// Blocks of 32 values in 34 bytes, as ggml's Q8_0: a value is off by at most 1/254 of the largest of its block.
    Q8_0,
}

impl KvType {
    /// Bytes of an entry of the cache with heads of `head_dim` values: key, value and position.
    pub const fn entry_bytes(self, head_dim: usize) -> usize {
        let row = match self {
            KvType::F32 => 4 * head_dim,
            KvType::F16 => 2 * head_dim,
            KvType::Q8_0 => head_dim.div_ceil(32) * size_of::<Q8Block>(),
        };
        2 * row + size_of::<u32>()
    }

    /// Whether the type can hold heads of `head_dim` values.
    ///
    /// # Errors
    /// [`Error::KvType`] if it cannot.
    pub fn check(self, head_dim: usize) -> Result<(), Error> {
        match self {
            KvType::Q8_0 if !head_dim.is_multiple_of(32) => {
                Err(Error::KvType { kv_type: self.name(), head_dim, of: 32 })
            }
            _ => Ok(()),
        }
    }

    /// `f32`, `f16` or `q8_0`.
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Q8_0 => "q8_0",
        }
    }
}

/// `[rows][head_dim]`
#[derive(Debug)]
pub(super) struct Buffer {
    head_dim: usize,
    values: Values,
}

#[derive(Debug)]
enum Values {
    F32(Piece<f32>),
    F16(Piece<f16>),
    Q8_0(Piece<Q8Block>),
}

impl Buffer {
    /// Zeros. The type can hold `head_dim`.
    pub fn new(kv_type: KvType, head_dim: usize, rows: usize, memory: &mut Arena) -> Buffer {
        let values = match kv_type {
            KvType::F32 => Values::F32(memory.take(rows * head_dim)),
            KvType::F16 => Values::F16(memory.take(rows * head_dim)),
            KvType::Q8_0 => Values::Q8_0(memory.take(rows * head_dim / 32)),
        };
        Buffer { head_dim, values }
    }

    pub fn kv_type(&self) -> KvType {
        match self.values {
            Values::F32(_) => KvType::F32,
            Values::F16(_) => KvType::F16,
            Values::Q8_0(_) => KvType::Q8_0,
        }
    }

    pub fn rows(&self) -> KvRows<'_> {
        match &self.values {
            Values::F32(v) => KvRows::F32(v),
            Values::F16(v) => KvRows::F16(v),
            Values::Q8_0(v) => KvRows::Q8_0(v),
        }
    }

    pub fn write(&mut self, dispatch: Dispatch, i: usize, row: &[f32]) {
        let at = i * self.head_dim;
        match &mut self.values {
            Values::F32(v) => v[at..at + row.len()].copy_from_slice(row),
            Values::F16(v) => dispatch.to_f16(row, &mut v[at..at + row.len()]),
            Values::Q8_0(v) => quantize(row, &mut v[at / 32..]),
        }
    }

    /// Writes all rows `i` that `row(i)` has, in parallel: most of the time goes into pages that nobody has touched yet.
    pub fn fill<'a>(&mut self, cx: &Compute, row: impl Fn(usize) -> Option<&'a [f32]> + Sync) {
        fn fill<'a, T: Send>(
            cx: &Compute,
            values: &mut [T],
            width: usize,
            row: impl Fn(usize) -> Option<&'a [f32]> + Sync,
            write: impl Fn(&[f32], &mut [T]) + Sync,
        ) {
            cx.pool.runs([((), values, width)], |(), first, rows| {
                for (i, to) in rows.chunks_exact_mut(width).enumerate() {
                    row(first + i).into_iter().for_each(|row| write(row, to));
                }
            });
        }
        let d = self.head_dim;
        match &mut self.values {
            Values::F32(v) => fill(cx, v, d, row, |row, to| to.copy_from_slice(row)),
            Values::F16(v) => fill(cx, v, d, row, |row, to| cx.dispatch.to_f16(row, to)),
            Values::Q8_0(v) => fill(cx, v, d / 32, row, quantize),
        }
    }

    pub fn read(&self, i: usize, row: &mut [f32]) {
        let at = i * self.head_dim;
        match &self.values {
            Values::F32(v) => row.copy_from_slice(&v[at..at + row.len()]),
            Values::F16(v) => row.iter_mut().zip(&v[at..]).for_each(|(r, h)| *r = h.to_f32()),
            Values::Q8_0(v) => {
                let blocks = row.as_chunks_mut().0.iter_mut().zip(&v[at / 32..]);
                blocks.for_each(|(row, block)| *row = block.dequantize());
            }
        }
    }

    /// Makes room for `rows` rows; `(from, to, len)` are the runs that stay and where they go.
    pub fn relocate(&mut self, moves: &[(usize, usize, usize)], rows: usize, memory: &mut Arena) {
        fn copy<T: Zero>(
            old: &mut Piece<T>,
            moves: &[(usize, usize, usize)],
            n: usize,
            width: usize,
            memory: &mut Arena,
        ) {
            let mut new = memory.take(n * width);
            for &(from, to, len) in moves {
                new[to * width..(to + len) * width].copy_from_slice(&old[from * width..(from + len) * width]);
            }
            *old = new;
        }
        let d = self.head_dim;
        match &mut self.values {
            Values::F32(v) => copy(v, moves, rows, d, memory),
            Values::F16(v) => copy(v, moves, rows, d, memory),
            Values::Q8_0(v) => copy(v, moves, rows, d / 32, memory),
        }
    }
}

fn quantize(row: &[f32], to: &mut [Q8Block]) {
    to.iter_mut().zip(row.as_chunks().0).for_each(|(block, row)| *block = Q8Block::quantize(row));
}
