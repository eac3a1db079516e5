//! From a picture of any size to the normalised square a vision tower expects.

use super::RgbImage;
use super::resize::{Canvas, Filter, Window, resize_window};
use crate::Error;

/// How a picture that is not square becomes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fit {
    /// Centre it on a square of the mean colour, then resize: nothing is lost. What LLaVA-1.5 was trained with.
    #[default]
    Pad,
    /// Resize the shorter side to the target and cut the middle out: what `CLIPImageProcessor` of transformers does.
    Crop,
}

/// Normalised pixels.
#[derive(Clone, Debug, PartialEq)]
pub struct Pixels {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// `[3][height][width]`
    pub data: Vec<f32>,
}

/// Per-channel mean and standard deviation, in units of full scale (255).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalize {
    /// Subtracted first.
    pub mean: [f32; 3],
    /// Divided by; finite and not zero, see [`Normalize::new`].
    pub std: [f32; 3],
}

impl Normalize {
    /// # Errors
    /// [`Error::Image`] if a mean is outside 0..=1 or a deviation is not a positive finite number.
    pub fn new(mean: [f32; 3], std: [f32; 3]) -> Result<Normalize, Error> {
        let sane = mean.iter().all(|m| (0.0..=1.0).contains(m)) && std.iter().all(|s| s.is_normal() && *s > 0.0);
        if sane {
            Ok(Normalize { mean, std })
        } else {
            let what = format!("mean {mean:?} must lie in 0..=1 and deviation {std:?} must be positive and finite");
            Err(Error::Image { what })
        }
    }

    /// The mean as a colour, truncated: (122, 116, 104) for CLIP.
    fn background(&self) -> [u8; 3] {
        self.mean.map(|m| (m * 255.0) as u8)
    }

    /// What each of the 256 levels becomes. `v/255` is computed in f64 and rounded, the rest in f32, as transformers
    /// does it.
    fn table(&self, channel: usize) -> [f32; 256] {
        let (mean, std) = (self.mean[channel], self.std[channel]);
        std::array::from_fn(|v| ((v as f64 * (1.0 / 255.0)) as f32 - mean) / std)
    }
}

/// Brings `image` to `side` x `side` pixels (bicubic) and normalises it. A picture of that size is not resampled.
///
/// The padded or uncropped picture is never stored; `image.height() * side * 3` bytes lie between the two passes.
///
/// # Errors
/// [`Error::Image`] if `side` is zero or unreasonably large.
pub fn fixed_size(image: &RgbImage, side: u32, fit: Fit, normalize: &Normalize) -> Result<Pixels, Error> {
    let square = match fit {
        Fit::Pad => pad(image, side, normalize.background()),
        Fit::Crop => crop(image, side),
    }?;
    Ok(Pixels::new(&square, normalize))
}

fn pad(image: &RgbImage, side: u32, background: [u8; 3]) -> Result<RgbImage, Error> {
    let longest = image.width.max(image.height);
    let canvas = Canvas {
        image,
        width: longest,
        height: longest,
        left: (longest - image.width) / 2,
        top: (longest - image.height) / 2,
        background,
    };
    resize_window(&canvas, (side, side), &Window { left: 0, top: 0, width: side, height: side }, Filter::Bicubic)
}

fn crop(image: &RgbImage, side: u32) -> Result<RgbImage, Error> {
    let shortest = u64::from(image.width.min(image.height));
    let scaled = |length: u32| {
        let scaled = u64::from(side) * u64::from(length) / shortest;
        u32::try_from(scaled).map_err(|_| {
            let what = format!(
                "{}x{} pixels: with the short side at {side} the long one would be {scaled}",
                image.width, image.height
            );
            Error::Image { what }
        })
    };
    let full = (scaled(image.width)?, scaled(image.height)?);
    let window = Window { left: (full.0 - side) / 2, top: (full.1 - side) / 2, width: side, height: side };
    resize_window(&Canvas::of(image), full, &window, Filter::Bicubic)
}

impl Pixels {
    /// Normalises `image` as it is.
    pub fn new(image: &RgbImage, normalize: &Normalize) -> Pixels {
        let mut data = Vec::with_capacity(image.pixels.len());
        for channel in 0..3 {
            let table = normalize.table(channel);
            data.extend(image.pixels[channel..].iter().step_by(3).map(|&v| table[usize::from(v)]));
        }
        Pixels { width: image.width as usize, height: image.height as usize, data }
    }

    /// Cuts the picture into squares: `[height/side * width/side][3 * side * side]`, squares row-major, values in
    /// (channel, row, column) order. Pixels beyond the last whole square are left out. `side` must not be zero.
    pub fn patches(&self, side: usize) -> Vec<f32> {
        let (rows, columns) = (self.height / side, self.width / side);
        let mut out = Vec::with_capacity(rows * columns * 3 * side * side);
        for (row, column) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
            for (channel, y) in (0..3).flat_map(|c| (0..side).map(move |y| (c, y))) {
                let start = (channel * self.height + row * side + y) * self.width + column * side;
                out.extend_from_slice(&self.data[start..start + side]);
            }
        }
        out
    }
}
