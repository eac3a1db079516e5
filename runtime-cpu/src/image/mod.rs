//! Pictures: decoding within limits, and the exact resampling and normalisation the vision towers were trained with.

mod decode;
mod preprocess;
mod resize;

pub use decode::Limits;
pub use preprocess::{Fit, Normalize, Pixels, fixed_size};
pub use resize::{Filter, resize};

use crate::Error;

/// An 8-bit RGB picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RgbImage {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl RgbImage {
    /// Decodes a PNG or JPEG, recognised by its first bytes.
    ///
    /// An EXIF orientation is applied, alpha is dropped (as Pillow's `convert("RGB")` does), grey is replicated,
    /// 16-bit samples keep their high byte. Size limits are checked on the header, before any pixel is decoded.
    ///
    /// # Errors
    /// [`Error::Image`] if the bytes are no PNG or JPEG, are damaged or truncated, or exceed `limits`.
    pub fn from_encoded(bytes: &[u8], limits: &Limits) -> Result<RgbImage, Error> {
        decode::decode(bytes, limits)
    }

    /// Wraps raw pixels `[height][width][3]`.
    ///
    /// # Errors
    /// [`Error::Image`] if a side is zero or `pixels` is not `height * width * 3` bytes long.
    pub fn from_rgb(width: u32, height: u32, pixels: Vec<u8>) -> Result<RgbImage, Error> {
        let expected = u128::from(width) * u128::from(height) * 3;
        if width == 0 || height == 0 || pixels.len() as u128 != expected {
            let what = format!("{width}x{height} RGB pixels need {expected} bytes, got {}", pixels.len());
            return Err(Error::Image { what });
        }
        Ok(RgbImage { width, height, pixels })
    }

    /// Width in pixels, at least 1.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Height in pixels, at least 1.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The samples, `[height][width][3]`.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The picture in the middle of a black one, which must not be smaller; an odd pixel goes right or below.
    ///
    /// # Errors
    /// [`Error::Image`] if it is smaller.
    pub(crate) fn centred(&self, width: u32, height: u32) -> Result<RgbImage, Error> {
        let (Some(beside), Some(above)) = (width.checked_sub(self.width), height.checked_sub(self.height)) else {
            let what = format!("{}x{} pixels do not fit {width}x{height}", self.width, self.height);
            return Err(Error::Image { what });
        };
        let (left, top) = (beside as usize / 2, above as usize / 2);
        let mut pixels = vec![0; width as usize * height as usize * 3];
        let rows = pixels.chunks_exact_mut(width as usize * 3).skip(top);
        for (y, row) in (0..self.height as usize).zip(rows) {
            row[left * 3..][..self.width as usize * 3].copy_from_slice(self.row(y));
        }
        RgbImage::from_rgb(width, height, pixels)
    }

    /// Cut into squares, row by row. What is beyond the last whole square is left out.
    pub(crate) fn squares(&self, side: u32) -> Vec<RgbImage> {
        let (n, bytes) = (side as usize, side as usize * 3);
        let corners = (0..self.height / side).flat_map(|y| (0..self.width / side).map(move |x| (x, y)));
        let square = |(x, y): (u32, u32)| {
            let rows = (0..n).flat_map(|i| &self.row(y as usize * n + i)[x as usize * bytes..][..bytes]);
            RgbImage { width: side, height: side, pixels: rows.copied().collect() }
        };
        corners.map(square).collect()
    }

    fn row(&self, y: usize) -> &[u8] {
        let n = self.width as usize * 3;
        &self.pixels[y * n..][..n]
    }
}
