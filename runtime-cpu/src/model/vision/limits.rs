//! What a picture may cost.

use std::fmt;

use crate::Error;

/// Upper limits for one picture; `None` leaves it to the model. A picture is brought to the largest size that keeps all of
/// them; models without a choice fail instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageLimits {
    /// Rows it may take in the prompt, the text around them not counted.
    pub max_tokens: Option<usize>,
    /// Squares that the tower may encode for it, an overview included.
    pub max_tiles: Option<usize>,
    /// Pixels along the longer side of what the tower sees, all its squares put together.
    pub longest_edge: Option<u32>,
}

/// What a picture costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageCost {
    /// Rows in the prompt, the text around them not counted.
    pub n_tokens: usize,
    /// Squares that the tower encodes, an overview included.
    pub n_tiles: usize,
    /// Pixels along the longer side of what the tower sees.
    pub longest_edge: u32,
}

impl ImageLimits {
    /// Whether `cost` keeps the limits.
    pub fn allow(&self, cost: &ImageCost) -> bool {
        self.max_tokens.is_none_or(|max| cost.n_tokens <= max)
            && self.max_tiles.is_none_or(|max| cost.n_tiles <= max)
            && self.longest_edge.is_none_or(|max| cost.longest_edge <= max)
    }

    /// `least` is the cheapest way to encode a picture of `width` x `height`.
    ///
    /// # Errors
    /// [`Error::Image`] if even that is not allowed.
    pub(super) fn check(&self, least: &ImageCost, (width, height): (u32, u32)) -> Result<(), Error> {
        if self.allow(least) {
            return Ok(());
        }
        let what = format!(
            "{width}x{height} pixels take at least {} tokens, {} tiles and a longest edge of {}; the limits are: {self}",
            least.n_tokens, least.n_tiles, least.longest_edge
        );
        Err(Error::Image { what })
    }
}

/// Those that are set: `tokens 64, tiles 5`.
impl fmt::Display for ImageLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = [
            ("tokens", self.max_tokens),
            ("tiles", self.max_tiles),
            ("longest edge", self.longest_edge.map(|n| n as usize)),
        ];
        let set = limits.into_iter().filter_map(|(name, max)| max.map(|max| format!("{name} {max}")));
        f.write_str(&set.collect::<Vec<_>>().join(", "))
    }
}
