//! PNG and JPEG to RGB, within limits.

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader};

use super::RgbImage;
use crate::Error;

/// What an encoded picture may claim before it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest side in pixels.
    pub max_side: u32,
    /// Width times height. Decoding takes up to 12 bytes for each (16-bit RGBA, progressive JPEG).
    pub max_pixels: u64,
}

impl Default for Limits {
    /// 32,768 a side and 64 Mi pixels: any phone camera, any A3 scan at 600 dpi but its margins.
    fn default() -> Self {
        Limits { max_side: 32_768, max_pixels: 64 << 20 }
    }
}

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<RgbImage, Error> {
    let format = match image::guess_format(bytes) {
        Ok(f @ (ImageFormat::Png | ImageFormat::Jpeg)) => f,
        _ => return Err(error(format!("{} bytes that are neither PNG nor JPEG", bytes.len()))),
    };
    if format == ImageFormat::Png {
        // The PNG decoder allocates row buffers as soon as it is built, so its size is checked on the raw header.
        let (width, height) = png_size(bytes).ok_or_else(|| truncated(bytes))?;
        limits.check(width, height)?;
    } else if !jpeg_is_complete(bytes) {
        // The JPEG decoder would fill what is missing with grey and report success.
        return Err(truncated(bytes));
    }

    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut allowed = image::Limits::no_limits();
    allowed.max_alloc = Some(limits.max_pixels.saturating_mul(8).saturating_add(1 << 20));
    reader.limits(allowed);
    let mut decoder = reader.into_decoder().map_err(decoding)?;
    let (width, height) = decoder.dimensions();
    limits.check(width, height)?;
    let orientation = decoder.orientation().map_err(decoding)?;
    let mut picture = DynamicImage::from_decoder(decoder).map_err(decoding)?;
    picture.apply_orientation(orientation);
    RgbImage::from_rgb(picture.width(), picture.height(), into_rgb8(picture))
}

impl Limits {
    fn check(&self, width: u32, height: u32) -> Result<(), Error> {
        let pixels = u64::from(width) * u64::from(height);
        if width == 0 || height == 0 {
            return Err(error(format!("{width}x{height} pixels: a side is zero")));
        }
        if width.max(height) > self.max_side {
            return Err(error(format!("{width}x{height} pixels, a side may have at most {}", self.max_side)));
        }
        if pixels > self.max_pixels {
            return Err(error(format!("{width}x{height} = {pixels} pixels, at most {} are allowed", self.max_pixels)));
        }
        Ok(())
    }
}

/// 16-bit samples keep their high byte, as Pillow reads 16-bit RGB; the `image` crate would round.
fn into_rgb8(picture: DynamicImage) -> Vec<u8> {
    let high = |v: u16| (v >> 8) as u8;
    match picture {
        DynamicImage::ImageRgb16(p) => p.into_raw().into_iter().map(high).collect(),
        DynamicImage::ImageRgba16(p) => p.pixels().flat_map(|p| [p[0], p[1], p[2]]).map(high).collect(),
        DynamicImage::ImageLuma16(p) => p.pixels().flat_map(|p| [high(p[0]); 3]).collect(),
        DynamicImage::ImageLumaA16(p) => p.pixels().flat_map(|p| [high(p[0]); 3]).collect(),
        other => other.into_rgb8().into_raw(),
    }
}

/// Width and height of the IHDR chunk, which is always the first.
fn png_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let field = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    Some((field(16)?, field(20)?))
}

/// Walks the marker segments; true if the end-of-image marker is reached.
fn jpeg_is_complete(bytes: &[u8]) -> bool {
    const END_OF_IMAGE: u8 = 0xD9;
    let mut at = 2;
    loop {
        // Entropy-coded data and fill bytes lie between segments: go on to the next FF that starts a marker.
        let Some(skip) = bytes.get(at..).and_then(|rest| rest.windows(2).position(is_marker)) else { return false };
        at += skip;
        match bytes[at + 1] {
            END_OF_IMAGE => return true,
            0xD0..=0xD8 | 0x01 => at += 2, // restart, start and TEM markers have no length
            _ => match bytes.get(at + 2..at + 4) {
                Some(n) => at += 2 + usize::from(u16::from_be_bytes([n[0], n[1]])).max(2),
                None => return false,
            },
        }
    }
}

/// FF 00 is a stuffed byte of the data, FF FF a fill byte.
fn is_marker(pair: &[u8]) -> bool {
    pair[0] == 0xFF && !matches!(pair[1], 0x00 | 0xFF)
}

fn truncated(bytes: &[u8]) -> Error {
    error(format!("truncated: the file ends after {} bytes", bytes.len()))
}

fn decoding(e: image::ImageError) -> Error {
    error(e.to_string())
}

fn error(what: String) -> Error {
    Error::Image { what }
}
