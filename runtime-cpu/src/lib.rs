//! CPU runtime of ecokv.

mod error;
pub mod gguf;
pub mod quant;

pub use error::Error;
