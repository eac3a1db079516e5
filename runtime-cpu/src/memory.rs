//! Zeroed memory for weights and caches in chunks that ask for huge pages. A decode step reads all of it once: in pages of
//! 4 KiB the CPU looks up another every few rows, which took a fifth of the time or more.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{MmapMut, MmapRaw};

/// Types whose zero bytes are a value.
///
/// # Safety
/// That, and values are aligned to at most 64 bytes.
pub(crate) unsafe trait Zero: Copy + Send + Sync {}

// SAFETY: zero bytes are the number 0.
unsafe impl Zero for f32 {}
// SAFETY: as above.
unsafe impl Zero for half::f16 {}

/// A chunk of weights.
pub(crate) const WEIGHTS_BYTES: usize = 64 << 20;

/// Hands out pieces of chunks, one after the other. A chunk lives as long as one of its pieces.
#[derive(Debug)]
pub(crate) struct Arena {
    chunk_bytes: usize,
    chunk: Option<Arc<MmapRaw>>,
    /// Bytes of `chunk` that pieces own already.
    used: usize,
}

/// Values of one owner.
#[derive(Debug)]
pub(crate) enum Piece<T> {
    Chunk {
        first: NonNull<T>,
        len: usize,
        /// Keeps the memory mapped.
        _chunk: Arc<MmapRaw>,
    },
    /// Where the system refuses a map.
    Heap(Vec<T>),
}

impl Arena {
    /// Untouched memory of a chunk costs nothing.
    pub fn new(chunk_bytes: usize) -> Arena {
        Arena { chunk_bytes, chunk: None, used: 0 }
    }

    /// `n` zeros.
    pub fn take<T: Zero>(&mut self, n: usize) -> Piece<T> {
        const { assert!(align_of::<T>() <= 64) }
        let Some(bytes) = n.checked_mul(size_of::<T>()).and_then(|b| b.checked_next_multiple_of(64)) else {
            return Piece::heap(n); // fails as every such vector does
        };
        if n == 0 {
            return Piece::Heap(Vec::new());
        }
        if self.chunk.as_ref().is_none_or(|c| c.len() - self.used < bytes) {
            match map(bytes.max(self.chunk_bytes)) {
                Some(chunk) => (self.chunk, self.used) = (Some(Arc::new(chunk)), 0),
                None => return Piece::heap(n),
            }
        }
        let Some(chunk) = &self.chunk else { return Piece::heap(n) };
        // SAFETY: `used + bytes` lie inside the chunk.
        let first = unsafe { NonNull::new_unchecked(chunk.as_mut_ptr().add(self.used).cast()) };
        self.used += bytes;
        Piece::Chunk { first, len: n, _chunk: chunk.clone() }
    }
}

/// Zeroed pages, huge ones where the system has them.
fn map(bytes: usize) -> Option<MmapRaw> {
    let map = MmapMut::map_anon(bytes).ok()?;
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Some(map.into())
}

impl<T: Zero> Piece<T> {
    fn heap(n: usize) -> Piece<T> {
        // SAFETY: the contract of `Zero`.
        Piece::Heap(vec![unsafe { std::mem::zeroed() }; n])
    }
}

impl<T> Deref for Piece<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            // SAFETY: the arena gave this part of the chunk to nobody else; its zero bytes are values (`Zero`).
            Piece::Chunk { first, len, .. } => unsafe { std::slice::from_raw_parts(first.as_ptr(), *len) },
            Piece::Heap(values) => values,
        }
    }
}

impl<T> DerefMut for Piece<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            // SAFETY: as in `deref`.
            Piece::Chunk { first, len, .. } => unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), *len) },
            Piece::Heap(values) => values,
        }
    }
}

// SAFETY: a piece owns its values, as a vector does.
unsafe impl<T: Send> Send for Piece<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Piece<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zero_and_nobody_elses() {
        let mut arena = Arena::new(1 << 12);
        let mut pieces: Vec<Piece<f32>> = [3, 0, 17, 1000, 5000, 1].map(|n| arena.take(n)).into();
        for (i, piece) in pieces.iter_mut().enumerate() {
            assert!(piece.iter().all(|&v| v == 0.0), "piece {i}");
            assert_eq!(piece.as_ptr().addr() % 64 * usize::from(!piece.is_empty()), 0, "piece {i}");
            piece.fill(i as f32 + 1.0);
        }
        drop(arena);
        pieces.swap_remove(3); // the chunk of others stays
        for (piece, value) in pieces.iter().zip([1.0, 2.0, 3.0, 6.0, 5.0]) {
            assert!(piece.iter().all(|&v| v == value));
        }
        assert_eq!(pieces.iter().map(|p| p.len()).collect::<Vec<_>>(), [3, 0, 17, 1, 5000]);
    }
}
