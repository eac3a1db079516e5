//! Pillow's resampling, bit for bit.
//!
//! Separable and anti-aliased: every output sample is a weighted mean over a support that grows with the reduction.
//! Weights are computed in f64 and rounded to 22 fractional bits; the horizontal pass comes first and is rounded to
//! u8 before the vertical one; a pass whose size does not change is skipped. (Pillow from version 12 on picks the
//! cheaper order for some shapes; the models were trained with horizontal first.)

use super::RgbImage;
use crate::Error;

/// A resampling kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Triangle, support 1.
    Bilinear,
    /// Cubic convolution with a = -0.5, support 2.
    Bicubic,
    /// Windowed sinc, support 3.
    Lanczos3,
}

/// Stretches `image` to `width` x `height` pixels.
///
/// # Errors
/// [`Error::Image`] if a side is zero or the result would have more than 2^28 pixels.
pub fn resize(image: &RgbImage, width: u32, height: u32, filter: Filter) -> Result<RgbImage, Error> {
    let canvas = Canvas::of(image);
    resize_window(&canvas, (width, height), &Window { left: 0, top: 0, width, height }, filter)
}

/// A picture pasted on a larger one of a single colour, without the larger one ever being stored.
pub(super) struct Canvas<'a> {
    pub image: &'a RgbImage,
    pub width: u32,
    pub height: u32,
    /// Position of the picture's top left corner.
    pub left: u32,
    pub top: u32,
    pub background: [u8; 3],
}

/// The part of a resized canvas that is wanted.
pub(super) struct Window {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

/// Computes only `window` of the canvas resized to `full`, with the same bits as cutting it out afterwards.
pub(super) fn resize_window(
    canvas: &Canvas,
    full: (u32, u32),
    window: &Window,
    filter: Filter,
) -> Result<RgbImage, Error> {
    const MAX_PIXELS: u64 = 1 << 28;
    if window.width == 0 || window.height == 0 || u64::from(window.width) * u64::from(window.height) > MAX_PIXELS {
        let what = format!("cannot resize to {}x{} pixels: 1 to {MAX_PIXELS} allowed", window.width, window.height);
        return Err(Error::Image { what });
    }
    let columns = Axis::new(canvas.width, full.0, window.left, window.width, filter);
    let rows = Axis::new(canvas.height, full.1, window.top, window.height, filter);
    let narrow = Narrowed::new(canvas, &columns, rows.inputs());
    let pixels = rows.apply_vertically(&narrow);
    RgbImage::from_rgb(window.width, window.height, pixels)
}

/// The result of the horizontal pass: the rows that the vertical pass reads.
struct Narrowed {
    row_len: usize,
    /// First canvas row held in `picture`.
    first: usize,
    /// Rows that show the picture, `[rows][window.width][3]`.
    picture: Vec<u8>,
    /// Every other row, `[window.width][3]`.
    background: Vec<u8>,
}

impl Narrowed {
    fn new(canvas: &Canvas, columns: &Axis, rows: std::ops::Range<usize>) -> Narrowed {
        let row_len = columns.len() * 3;
        let mut background = vec![0; row_len];
        columns.row_pass(0, 0, canvas.background).apply(&[], &mut background);

        let (top, height) = (canvas.top as usize, canvas.image.height as usize);
        let first = rows.start.max(top);
        let end = rows.end.min(top + height).max(first);
        let pass = columns.row_pass(canvas.left as usize, canvas.image.width as usize, canvas.background);
        let mut picture = vec![0; (end - first) * row_len];
        for (y, out) in (first..end).zip(picture.chunks_exact_mut(row_len)) {
            pass.apply(canvas.image.row(y - top), out);
        }
        Narrowed { row_len, first, picture, background }
    }

    fn row(&self, y: usize) -> &[u8] {
        let held = y.checked_sub(self.first).and_then(|i| self.picture.get(i * self.row_len..(i + 1) * self.row_len));
        held.unwrap_or(&self.background)
    }
}

const FRACTION_BITS: u32 = 22;
/// Makes the shift round to nearest.
const HALF: i32 = 1 << (FRACTION_BITS - 1);

/// The weights of one dimension. |weights| of one output sum to less than 2 * 2^22, so 255 times that fits an i32.
enum Axis {
    /// Size unchanged: outputs are inputs from `first` on.
    Copy {
        first: usize,
        len: usize,
    },
    Weighted {
        taps: Vec<Taps>,
        weights: Vec<i32>,
    },
}

/// Weights of one output: `weights[at..at + len]` belong to the inputs `first..first + len`.
struct Taps {
    first: usize,
    at: usize,
    len: usize,
}

impl Axis {
    fn new(n_in: u32, n_out: u32, window_first: u32, window_len: u32, filter: Filter) -> Axis {
        if n_in == n_out {
            return Axis::Copy { first: window_first as usize, len: window_len as usize };
        }
        let scale = f64::from(n_in) / f64::from(n_out);
        let stretch = scale.max(1.0);
        let support = filter.support() * stretch;
        let per_pixel = 1.0 / stretch;
        let mut taps = Vec::with_capacity(window_len as usize);
        let mut weights = Vec::new();
        let mut exact = Vec::new();
        for i in window_first..window_first + window_len {
            let centre = (f64::from(i) + 0.5) * scale;
            // Conversions truncate towards zero, as C's do.
            let first = ((centre - support + 0.5) as i64).max(0);
            let end = ((centre + support + 0.5) as i64).min(i64::from(n_in));
            exact.clear();
            exact.extend((first..end).map(|j| filter.weight((j as f64 - centre + 0.5) * per_pixel)));
            let sum: f64 = exact.iter().sum();
            taps.push(Taps { first: first as usize, at: weights.len(), len: exact.len() });
            weights.extend(exact.iter().map(|w| to_fixed(w / sum)));
        }
        Axis::Weighted { taps, weights }
    }

    /// Number of outputs.
    fn len(&self) -> usize {
        match self {
            Axis::Copy { len, .. } => *len,
            Axis::Weighted { taps, .. } => taps.len(),
        }
    }

    /// The inputs that are read at all.
    fn inputs(&self) -> std::ops::Range<usize> {
        match self {
            Axis::Copy { first, len } => *first..first + len,
            Axis::Weighted { taps, .. } => {
                let first = taps.first().map_or(0, |t| t.first);
                first..taps.last().map_or(first, |t| t.first + t.len)
            }
        }
    }

    /// The horizontal pass for rows of `width` pixels that start at column `left` of a canvas of one colour.
    fn row_pass(&self, left: usize, width: usize, background: [u8; 3]) -> RowPass<'_> {
        // The part of the inputs first..first + len that the row covers: start in the row, and range in the inputs.
        let covered = |first: usize, len: usize| {
            let (start, end) = (first.max(left), (first + len).min(left + width));
            if start < end { (start - left, start - first..end - first) } else { (0, 0..0) }
        };
        match self {
            Axis::Copy { first, len } => {
                let (source, target) = covered(*first, *len);
                RowPass::Copy { source, target, background }
            }
            Axis::Weighted { taps, weights } => RowPass::Weighted(
                taps.iter()
                    .map(|t| {
                        let (source, inside) = covered(t.first, t.len);
                        let all = &weights[t.at..][..t.len];
                        let beside = all.iter().sum::<i32>() - all[inside.clone()].iter().sum::<i32>();
                        let base = background.map(|v| HALF + i32::from(v) * beside);
                        Output { source, weights: &all[inside], base }
                    })
                    .collect(),
            ),
        }
    }

    fn apply_vertically(&self, rows: &Narrowed) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len() * rows.row_len);
        match self {
            Axis::Copy { first, len } => (*first..first + len).for_each(|y| out.extend_from_slice(rows.row(y))),
            Axis::Weighted { taps, weights } => {
                let mut sums = vec![0i32; rows.row_len];
                for t in taps {
                    sums.fill(HALF);
                    for (k, &w) in weights[t.at..][..t.len].iter().enumerate() {
                        for (sum, &v) in sums.iter_mut().zip(rows.row(t.first + k)) {
                            *sum += i32::from(v) * w;
                        }
                    }
                    out.extend(sums.iter().map(|&s| to_u8(s)));
                }
            }
        }
        out
    }
}

/// An [`Axis`] fitted to rows of one width and position, so that the canvas beside the picture costs nothing.
enum RowPass<'a> {
    Copy { source: usize, target: std::ops::Range<usize>, background: [u8; 3] },
    Weighted(Vec<Output<'a>>),
}

/// One output of the pass: `weights` belong to the row's pixels from `source` on, the rest has been added to `base`.
struct Output<'a> {
    source: usize,
    weights: &'a [i32],
    base: [i32; 3],
}

impl RowPass<'_> {
    fn apply(&self, row: &[u8], out: &mut [u8]) {
        match self {
            RowPass::Copy { source, target, background } => {
                out.chunks_exact_mut(3).for_each(|p| p.copy_from_slice(background));
                out[target.start * 3..target.end * 3].copy_from_slice(&row[source * 3..][..target.len() * 3]);
            }
            RowPass::Weighted(outputs) => {
                for (output, out) in outputs.iter().zip(out.chunks_exact_mut(3)) {
                    let mut sum = output.base;
                    let pixels = row[output.source * 3..].chunks_exact(3);
                    for (p, &w) in pixels.zip(output.weights) {
                        for c in 0..3 {
                            sum[c] += i32::from(p[c]) * w;
                        }
                    }
                    for c in 0..3 {
                        out[c] = to_u8(sum[c]);
                    }
                }
            }
        }
    }
}

impl Filter {
    fn support(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos3 => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        match self {
            Filter::Bilinear => (1.0 - x.abs()).max(0.0),
            Filter::Bicubic => bicubic(x.abs()),
            Filter::Lanczos3 if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Filter::Lanczos3 => 0.0,
        }
    }
}

/// The order of operations is Pillow's: it decides the last bit.
fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

fn to_fixed(weight: f64) -> i32 {
    let scaled = weight * f64::from(1u32 << FRACTION_BITS);
    (scaled + 0.5f64.copysign(scaled)) as i32
}

fn to_u8(sum: i32) -> u8 {
    (sum >> FRACTION_BITS).clamp(0, 255) as u8
}

impl<'a> Canvas<'a> {
    /// The picture alone.
    pub fn of(image: &'a RgbImage) -> Canvas<'a> {
        Canvas { image, width: image.width, height: image.height, left: 0, top: 0, background: [0; 3] }
    }
}
