//! CPU runtime of ecokv.

pub mod cache;
mod error;
pub mod gguf;
pub mod image;
pub mod kernels;
pub mod model;
pub mod ops;
pub mod quant;
mod threads;
pub mod tokenizer;

pub use error::Error;
