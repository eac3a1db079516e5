//! The models.

mod projector;
mod vision;
mod vision_config;

pub use vision::{ImageEmbedding, VisionTower};
pub use vision_config::{Activation, ProjectorKind, VisionConfig};
