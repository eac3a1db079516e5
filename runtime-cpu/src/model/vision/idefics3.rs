//! Idefics3 and SmolVLM (Laurençon et al. 2024; Marafioti et al. 2025): a picture is scaled until its longer side has a
//! given length, then stretched to whole squares, which the model gets row by row with their place as text, and last the
//! whole picture as one square.

use super::limits::{ImageCost, ImageLimits};
use super::{ImageEmbedding, ImagePart};
use crate::Error;
use crate::image::{Filter, RgbImage, resize};

const AROUND: &str = "<fake_token_around_image>";
const GLOBAL: &str = "<global-img>";

/// How one picture is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    side: u32,
    tokens_per_tile: usize,
    /// Size after the first scaling.
    scaled: (u32, u32),
    /// `(columns, rows)` of squares.
    grid: (u32, u32),
}

impl Plan {
    /// The largest longer side within `limits`, at most `longest_edge`. `side` is that of a square in pixels.
    ///
    /// # Errors
    /// [`Error::Image`] if even a single square is beyond the limits.
    pub fn new(
        size: (u32, u32),
        (side, tokens_per_tile): (u32, usize),
        longest_edge: u32,
        limits: &ImageLimits,
    ) -> Result<Plan, Error> {
        let plan = |edge: u32| {
            let scaled = scale_to(size, edge);
            Plan { side, tokens_per_tile, scaled, grid: grid(scaled, side) }
        };
        let edge = limits.longest_edge.map_or(longest_edge, |most| longest_edge.min(most).max(1));
        let whole_squares = (1..edge.div_ceil(side)).rev().map(|n| n * side);
        for edge in std::iter::once(edge).chain(whole_squares) {
            let plan = plan(edge);
            if limits.allow(&plan.cost()) {
                return Ok(plan);
            }
        }
        let least = plan(side);
        limits.check(&least.cost(), size).map(|()| least)
    }

    /// What the picture costs.
    pub fn cost(&self) -> ImageCost {
        let n_tiles = match self.grid {
            (1, 1) => 1,
            (columns, rows) => 1 + columns as usize * rows as usize,
        };
        let longest_edge = self.grid.0.max(self.grid.1) * self.side;
        ImageCost { n_tokens: n_tiles * self.tokens_per_tile, n_tiles, longest_edge }
    }

    /// The squares row by row, then the overview. A picture of one square is its own overview.
    ///
    /// # Errors
    /// [`Error::Image`] if a size is unreasonably large.
    pub fn tiles(&self, image: &RgbImage) -> Result<Vec<RgbImage>, Error> {
        let scaled = resize(image, self.scaled.0, self.scaled.1, Filter::Lanczos3)?;
        let (width, height) = (self.grid.0 * self.side, self.grid.1 * self.side);
        let stretched = resize(&scaled, width, height, Filter::Lanczos3)?;
        let overview = resize(&stretched, self.side, self.side, Filter::Lanczos3)?;
        let mut tiles = if self.grid == (1, 1) { Vec::new() } else { stretched.squares(self.side) };
        tiles.push(overview);
        Ok(tiles)
    }

    /// The rows of each square, as [`tiles`](Self::tiles) gives them, with the text that belongs between them.
    pub fn layout(&self, tiles: Vec<ImageEmbedding>) -> Vec<ImagePart> {
        let special = |text: &str| ImagePart::Special(text.into());
        let mut parts = Vec::new();
        let mut tiles = tiles.into_iter().map(ImagePart::Rows);
        if self.grid != (1, 1) {
            for row in 1..=self.grid.1 {
                for column in 1..=self.grid.0 {
                    parts.extend([special(AROUND), special(&format!("<row_{row}_col_{column}>"))]);
                    parts.extend(tiles.next());
                }
                parts.push(ImagePart::Text("\n".into()));
            }
            parts.push(ImagePart::Text("\n".into()));
        }
        parts.extend([special(AROUND), special(GLOBAL)]);
        parts.extend(tiles.next());
        parts.push(special(AROUND));
        parts
    }
}

/// The longer side becomes `edge`, the other one even, as far as there is anything left of it.
fn scale_to((width, height): (u32, u32), edge: u32) -> (u32, u32) {
    let ratio = f64::from(width) / f64::from(height);
    let even = |length: f64| (length as u32).next_multiple_of(2).max(1);
    if width >= height { (edge, even(f64::from(edge) / ratio)) } else { (even(f64::from(edge) * ratio), edge) }
}

/// Squares that the scaled picture is stretched to: the longer side first, then the other one in proportion.
fn grid((width, height): (u32, u32), side: u32) -> (u32, u32) {
    let ratio = f64::from(width) / f64::from(height);
    let squares = |length: u32| length.div_ceil(side).max(1);
    if width >= height {
        let columns = squares(width);
        (columns, squares((f64::from(columns * side) / ratio) as u32))
    } else {
        let rows = squares(height);
        (squares((f64::from(rows * side) * ratio) as u32), rows)
    }
}
