//! CPU runtime of ecokv.

mod error;
pub mod gguf;
pub mod image;
pub mod quant;

pub use error::Error;
