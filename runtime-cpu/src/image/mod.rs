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

    fn row(&self, y: usize) -> &[u8] {
        let n = self.width as usize * 3;
        &self.pixels[y * n..][..n]
    }
}
