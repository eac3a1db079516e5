//! Block formats of the weights: their geometry and the scalar reference that turns blocks into numbers.

mod dequant;
mod types;

pub use dequant::dequantize_row;
pub use types::GgmlType;
