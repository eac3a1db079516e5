//! CPU runtime of ecokv.

pub mod cache;
mod engine;
mod error;
mod evictor;
pub mod gguf;
pub mod image;
pub mod kernels;
mod memory;
pub mod model;
mod observe;
pub mod ops;
mod prompt;
pub mod quant;
mod sampler;
mod session;
pub mod template;
pub mod threads;
pub mod tokenizer;

pub use ecokv_core::{HeadBudget, LayerBudget, Policy, methods};
pub use engine::{Engine, EngineOptions};
pub use error::Error;
pub use prompt::Prompt;
pub use sampler::{Sampler, Sampling, argmax};
pub use session::{Eviction, Modalities, Modality, Session, SessionOptions, Stats};
pub use template::MEDIA_MARKER;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
