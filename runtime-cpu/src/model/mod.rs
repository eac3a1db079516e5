//! The models: a language decoder and, for images, a vision tower with its projector.

mod config;
mod decoder;
pub mod families;
mod projector;
mod rotation;
mod vision;
mod vision_config;

pub use config::ModelConfig;
pub use decoder::{DecodeState, Decoder, Logits, Staged};
pub use vision::{ImageEmbedding, VisionTower};
pub use vision_config::{Activation, ProjectorKind, VisionConfig};
