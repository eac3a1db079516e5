//! CPU runtime of ecokv.

mod error;
pub mod gguf;
pub mod quant;
pub mod template;
pub mod tokenizer;

pub use error::Error;
