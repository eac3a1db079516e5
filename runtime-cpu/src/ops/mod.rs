//! The mathematics of a transformer over plain slices, split over threads.

pub mod act;
pub mod attention;
pub mod linear;
pub mod norm;
pub mod rope;

use crate::Error;
use crate::kernels::Dispatch;
use crate::threads::Pool;

pub use linear::Linear;

/// What every operation needs: threads, the instruction set, and how quantised weights are multiplied.
pub struct Compute {
    /// Worker threads.
    pub pool: Pool,
    /// Kernels.
    pub dispatch: Dispatch,
    /// Arithmetic of quantised weights.
    pub precision: Precision,
}

/// Arithmetic used with quantised weights. Float weights are always multiplied in float.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Activations are quantised to 8 bits, dot products are exact integers per 32 values: fastest. The noise is that
    /// of llama.cpp: logits of a small model move by some percent. AMX multiplies many tokens as with `Int16`.
    Int8,
    /// As `Int8` with 15 bits in two planes: a hundredth of the noise. Decoding waits for memory and costs no more.
    #[default]
    Int16,
    /// Weights are converted to f32 and multiplied with f32 activations: slow, the reference.
    Float,
}

impl Compute {
    /// Threads (0 = one per core) and the best instruction set of this CPU.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system refuses the threads.
    pub fn new(n_threads: usize) -> Result<Compute, Error> {
        Ok(Compute { pool: Pool::new(n_threads)?, dispatch: Dispatch::detect(), precision: Precision::default() })
    }
}
