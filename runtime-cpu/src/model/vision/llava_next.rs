//! LLaVA-NeXT ("LLaVA-1.6", Liu et al. 2024): beside an overview, a picture is seen at the one of several resolutions
//! that suits it, cut into squares. Features of the squares are put together again, without those of the padding, and a
//! learned row ends each line.

use super::ImageEmbedding;
use super::limits::{ImageCost, ImageLimits};
use crate::Error;
use crate::image::{Filter, RgbImage, resize};

/// How one picture is cut, and put together again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Size of the picture.
    size: (u32, u32),
    /// Side of a square in pixels.
    side: u32,
    /// Patches along the side of a square.
    per_side: usize,
    /// `(columns, rows)` of squares; `None` for the overview alone.
    grid: Option<(u32, u32)>,
}

impl Plan {
    /// The resolution that keeps the most of the picture's pixels, the smallest of them, among those within `limits`. If
    /// there is none, the overview alone. `resolutions` are `(width, height)`, multiples of `side`.
    ///
    /// # Errors
    /// [`Error::Image`] if the overview is beyond the limits.
    pub fn new(
        size: (u32, u32),
        (side, per_side): (u32, usize),
        resolutions: &[(u32, u32)],
        limits: &ImageLimits,
    ) -> Result<Plan, Error> {
        let overview = Plan { size, side, per_side, grid: None };
        limits.check(&overview.cost(), size)?;
        let mut best: Option<(Plan, u64, u64)> = None;
        for &(width, height) in resolutions {
            let plan = Plan { grid: Some((width / side, height / side)), ..overview };
            if !limits.allow(&plan.cost()) {
                continue;
            }
            let (w, h) = (f64::from(size.0), f64::from(size.1));
            let scale = (f64::from(width) / w).min(f64::from(height) / h);
            let scaled = (w * scale) as u64 * (h * scale) as u64;
            let effective = scaled.min(u64::from(size.0) * u64::from(size.1));
            let wasted = (u64::from(width) * u64::from(height)).saturating_sub(effective);
            if best.is_none_or(|(_, e, w)| effective > e || (effective == e && wasted < w)) {
                best = Some((plan, effective, wasted));
            }
        }
        Ok(best.map_or(overview, |(plan, ..)| plan))
    }

    /// What the picture costs.
    pub fn cost(&self) -> ImageCost {
        let square = self.per_side * self.per_side;
        let (columns, rows) = self.grid.unwrap_or((1, 1));
        let rest = match self.grid {
            None => 1,
            Some(_) => {
                let (rows, columns) = self.shown();
                rows.len() * (columns.len() + 1)
            }
        };
        ImageCost {
            n_tokens: square + rest,
            n_tiles: 1 + self.grid.map_or(0, |(columns, rows)| columns as usize * rows as usize),
            longest_edge: columns.max(rows) * self.side,
        }
    }

    /// The overview, stretched to a square, then the squares of the picture, row by row; centred on black.
    ///
    /// # Errors
    /// [`Error::Image`] if a resolution is unreasonably large.
    pub fn tiles(&self, image: &RgbImage) -> Result<Vec<RgbImage>, Error> {
        let mut tiles = vec![resize(image, self.side, self.side, Filter::Bicubic)?];
        if let Some((columns, rows)) = self.grid {
            let (width, height) = (columns * self.side, rows * self.side);
            let (scale_w, scale_h) =
                (f64::from(width) / f64::from(self.size.0), f64::from(height) / f64::from(self.size.1));
            let fitted = |length: u32, scale: f64, most: u32| ((f64::from(length) * scale).ceil() as u32).min(most);
            let (new_width, new_height) = match scale_w < scale_h {
                true => (width, fitted(self.size.1, scale_w, height)),
                false => (fitted(self.size.0, scale_h, width), height),
            };
            let resized = resize(image, new_width, new_height, Filter::Bicubic)?;
            tiles.extend(resized.centred(width, height)?.squares(self.side));
        }
        Ok(tiles)
    }

    /// Rows of the language model's width for each square, as [`tiles`](Self::tiles) gives them, to rows of the prompt:
    /// the overview, then the picture line by line with `newline` after each.
    pub fn pack(&self, tiles: &[ImageEmbedding], newline: &[f32]) -> ImageEmbedding {
        let (n_embd, n) = (newline.len(), self.per_side);
        let mut data = tiles[0].data.clone();
        match self.grid {
            None => data.extend_from_slice(newline),
            Some((grid_columns, _)) => {
                let (rows, columns) = self.shown();
                for row in rows {
                    for column in columns.clone() {
                        let tile = &tiles[1 + row / n * grid_columns as usize + column / n];
                        data.extend_from_slice(&tile.data[(row % n * n + column % n) * n_embd..][..n_embd]);
                    }
                    data.extend_from_slice(newline);
                }
            }
        }
        ImageEmbedding { n_tokens: data.len() / n_embd, data, grid: None }
    }

    /// Rows and columns of patches that show the picture and not its padding. As the reference computes it, which
    /// forgets the odd row of an uneven padding.
    fn shown(&self) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let (columns, rows) = self.grid.unwrap_or((1, 1));
        let (width, height) = (columns as usize * self.per_side, rows as usize * self.per_side);
        let (w, h) = (f64::from(self.size.0), f64::from(self.size.1));
        let padding = |full: usize, length: f64, scale: f64| (full - whole(length * scale).min(full)) / 2;
        if w / h > width as f64 / height as f64 {
            let padding = padding(height, h, width as f64 / w);
            (padding..height - padding, 0..width)
        } else {
            let padding = padding(width, w, height as f64 / h);
            (0..height, padding..width - padding)
        }
    }
}

/// Rounded down, but for what is less than 5e-8 below a whole number.
fn whole(x: f64) -> usize {
    (x + 5e-8).floor() as usize
}
