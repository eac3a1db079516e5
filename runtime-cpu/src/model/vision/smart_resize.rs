//! Qwen-VL's way of sizing a picture: its shape stays, its number of pixels is brought into a range.

use std::ops::Range;

use super::limits::{ImageCost, ImageLimits};
use crate::Error;
use crate::image::{Filter, RgbImage, resize};

/// The size that one picture is brought to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Pixels, multiples of the side of a merged block.
    width: u32,
    height: u32,
    /// Side of a merged block in pixels.
    block: u32,
}

impl Plan {
    /// The size nearest to the picture's whose pixels lie in `pixels` and within `limits`; `block` is the side of a merged
    /// block in pixels. Where the limits are below the least number of pixels, they win.
    ///
    /// # Errors
    /// [`Error::Image`] if even a single row of the language model is beyond the limits.
    pub fn new(size: (u32, u32), block: u32, pixels: &Range<u64>, limits: &ImageLimits) -> Result<Plan, Error> {
        let per_token = u64::from(block) * u64::from(block);
        let most = limits.max_tokens.map_or(pixels.end, |n| (n as u64).saturating_mul(per_token).min(MAX_PIXELS));
        let plan = |most: u64| {
            let (width, height) = smart_resize(size, block, &(pixels.start.min(most)..most));
            Plan { width, height, block }
        };
        // Only a longest edge needs more than one step, as it is not a number of pixels.
        for tokens in (1..=(most / per_token).max(1)).rev() {
            let most = if tokens == most / per_token { most } else { tokens * per_token };
            let plan = plan(most);
            if limits.allow(&plan.cost()) {
                return Ok(plan);
            }
        }
        let least = plan(per_token);
        limits.check(&least.cost(), size).map(|()| least)
    }

    /// What the picture costs.
    pub fn cost(&self) -> ImageCost {
        let n_tokens = (self.width / self.block) as usize * (self.height / self.block) as usize;
        ImageCost { n_tokens, n_tiles: 1, longest_edge: self.width.max(self.height) }
    }

    /// The picture, stretched to the size.
    ///
    /// # Errors
    /// [`Error::Image`] if that is unreasonably large.
    pub fn resized(&self, image: &RgbImage) -> Result<RgbImage, Error> {
        resize(image, self.width, self.height, Filter::Bicubic)
    }
}

/// Most pixels of a picture, whatever the limits: what Qwen2-VL's own configuration allows.
pub const MAX_PIXELS: u64 = 16384 * 28 * 28;

/// Both sides to multiples of `block`, as near as possible to the picture's, within the range of pixels. As transformers
/// computes it: halves to even, a side that would vanish only where the picture is enlarged.
fn smart_resize((width, height): (u32, u32), block: u32, pixels: &Range<u64>) -> (u32, u32) {
    let (w, h, f) = (f64::from(width), f64::from(height), f64::from(block));
    let nearest = |x: f64| (x / f).round_ties_even() * f;
    let area = nearest(w) * nearest(h);
    let sides = if area > pixels.end as f64 {
        let shrink = (w * h / pixels.end as f64).sqrt();
        [w, h].map(|x| ((x / shrink / f).floor() * f).max(f))
    } else if area < pixels.start as f64 {
        let enlarge = (pixels.start as f64 / (w * h)).sqrt();
        [w, h].map(|x| (x * enlarge / f).ceil() * f)
    } else {
        [w, h].map(nearest)
    };
    (sides[0].max(f) as u32, sides[1].max(f) as u32)
}
