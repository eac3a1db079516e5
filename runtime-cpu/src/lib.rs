//! CPU runtime of ecokv.

mod error;
pub mod image;

pub use error::Error;
