//! Decoding, resampling and normalisation against Pillow and transformers, and pictures that must be refused.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use ecokv::Error;
use ecokv::image::{Filter, Fit, Limits, Normalize, Pixels, RgbImage, fixed_size, resize};
use safetensors::SafeTensors;

#[test]
fn resampling_has_pillows_bits() {
    let golden = Golden::open("resize.safetensors");
    let mut cases = 0;
    for name in golden.names() {
        let (filter, rest) = match name.split_once('.').unwrap() {
            ("bilinear", rest) => (Filter::Bilinear, rest),
            ("bicubic", rest) => (Filter::Bicubic, rest),
            ("lanczos", rest) => (Filter::Lanczos3, rest),
            _ => continue,
        };
        let (from, to) = rest.split_once('.').unwrap();
        let (width, height) = to.split_once('x').unwrap();
        let source = golden.image(&format!("src.{from}"));
        let result = resize(&source, width.parse().unwrap(), height.parse().unwrap(), filter).unwrap();
        assert_eq!(result, golden.image(&name), "{name}");
        cases += 1;
    }
    assert_eq!(cases, 18);
}

#[test]
fn lossless_pictures_decode_as_in_pillow() {
    let golden = Golden::open("images/expected.safetensors");
    for name in ["rgb", "rgba", "grey_alpha", "grey", "bilevel", "palette", "rgb16", "grey16"] {
        let name = format!("{name}.png");
        assert_eq!(decode(&name).unwrap(), golden.image(&name), "{name}");
    }
}

/// JPEG decoders may differ by a rounding in the inverse transform and in the colour conversion.
#[test]
fn jpeg_pictures_decode_as_in_pillow() {
    let golden = Golden::open("images/expected.safetensors");
    for name in ["rgb.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg", "rotated.jpg"] {
        let (got, expected) = (decode(name).unwrap(), golden.image(name));
        assert_eq!((got.width(), got.height()), (expected.width(), expected.height()), "{name}");
        let worst = got.pixels().iter().zip(expected.pixels()).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(worst <= Some(3), "{name}: {worst:?} levels apart");
    }
}

#[test]
fn pad_and_crop_have_pillows_bits() {
    let golden = Golden::open("images/expected.safetensors");
    let clip = clip();
    let mut cases = 0;
    for name in golden.names() {
        let parts: Vec<&str> = name.split('.').collect();
        let fit = match parts[0] {
            "pad" => Fit::Pad,
            "crop" => Fit::Crop,
            _ => continue,
        };
        let source = golden.image(&format!("src.{}", parts[1]));
        let got = fixed_size(&source, parts[2].parse().unwrap(), fit, &clip).unwrap();
        // Equal normalised values mean equal levels: the normalisation is one-to-one.
        assert_eq!(got, Pixels::new(&golden.image(&name), &clip), "{name}");
        cases += 1;
    }
    assert_eq!(cases, 32);
}

#[test]
fn normalised_pixels_match_transformers() {
    let golden = Golden::open("models/llava15/golden.safetensors");
    let square = golden.image("image");
    for fit in [Fit::Pad, Fit::Crop] {
        let got = fixed_size(&square, 32, fit, &clip()).unwrap();
        assert_eq!(worst_difference(&got.data, &golden.f32("pixel_values")), 0.0, "{fit:?}");
    }
    let wide = fixed_size(&golden.image("wide_image"), 32, Fit::Crop, &clip()).unwrap();
    assert_eq!((wide.width, wide.height), (32, 32));
    assert_eq!(worst_difference(&wide.data, &golden.f32("wide_pixel_values_crop")), 0.0);
}

#[test]
fn patches_are_channel_row_column() {
    // [3][2][4], two patches of 2x2.
    let pixels = Pixels { width: 4, height: 2, data: (0..24).map(|v| v as f32).collect() };
    let expected = [0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23];
    assert_eq!(pixels.patches(2), expected.map(|v| v as f32));
}

#[test]
fn a_picture_of_extreme_shape_needs_little_memory() {
    // Padded to a square it would have 2^30 pixels, cropped it would first become 32 x 1,048,576.
    let long = RgbImage::from_rgb(1, 32_768, vec![200; 32_768 * 3]).unwrap();
    for fit in [Fit::Pad, Fit::Crop] {
        let got = fixed_size(&long, 32, fit, &clip()).unwrap();
        assert_eq!((got.width, got.height, got.data.len()), (32, 32, 3 * 32 * 32));
    }
    assert_modest_memory();
}

#[test]
fn broken_files_are_refused() {
    let cases: [(&[u8], &str); 5] = [
        (b"", "0 bytes that are neither PNG nor JPEG"),
        (b"GIF89a\x01\x00\x01\x00", "10 bytes that are neither PNG nor JPEG"),
        (b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>", "neither PNG nor JPEG"),
        (b"\x89PNG\r\n\x1a\n", "truncated: the file ends after 8 bytes"),
        (b"\xFF\xD8\xFF", "truncated: the file ends after 3 bytes"),
    ];
    for (bytes, message) in cases {
        let error = RgbImage::from_encoded(bytes, &Limits::default()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    for name in ["rgb.png", "palette.png", "rgb.jpg", "progressive.jpg", "rotated.jpg"] {
        let bytes = read(name);
        for len in 0..bytes.len() {
            if let Ok(image) = RgbImage::from_encoded(&bytes[..len], &Limits::default()) {
                // What follows the last pixel of a PNG is not needed.
                assert!(name.ends_with(".png") && image == decode(name).unwrap(), "{name} cut to {len} bytes");
            }
        }
    }
}

/// The name says nothing: the bytes decide.
#[test]
fn formats_are_recognised_by_content() {
    let golden = Golden::open("images/expected.safetensors");
    let png_called_jpg = RgbImage::from_encoded(&read("rgb.png"), &Limits::default()).unwrap();
    assert_eq!(png_called_jpg, golden.image("rgb.png"));
}

#[test]
fn huge_pictures_are_refused_before_decoding() {
    let limits = Limits::default();
    for (width, height, message) in [
        (10_000u32, 10_000u32, "10000x10000 = 100000000 pixels, at most 67108864 are allowed"),
        (2_000_000_000, 2_000_000_000, "2000000000x2000000000 pixels, a side may have at most 32768"),
        (40_000, 1, "40000x1 pixels, a side may have at most 32768"),
        (0, 7, "0x7 pixels: a side is zero"),
    ] {
        let mut png = read("rgb.png");
        png[16..20].copy_from_slice(&width.to_be_bytes());
        png[20..24].copy_from_slice(&height.to_be_bytes());
        let error = RgbImage::from_encoded(&png, &limits).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let mut jpeg = read("rgb.jpg");
    let start_of_frame = jpeg.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
    jpeg[start_of_frame + 5..start_of_frame + 9].copy_from_slice(&[0x27, 0x10, 0x27, 0x10]); // 10,000 x 10,000
    let error = RgbImage::from_encoded(&jpeg, &limits).unwrap_err().to_string();
    assert!(error.contains("10000x10000 = 100000000 pixels, at most 67108864 are allowed"), "{error}");
    assert_modest_memory();
}

#[test]
fn damaged_files_never_panic_nor_exhaust_memory() {
    let mut random = XorShift(0x9E37_79B9_7F4A_7C15);
    let limits = Limits { max_side: 512, max_pixels: 1 << 16 };
    for name in ["rgb.png", "palette.png", "rgb16.png", "rgb.jpg", "progressive.jpg", "cmyk.jpg", "rotated.jpg"] {
        let original = read(name);
        for _ in 0..1500 {
            let mut bytes = original.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(bytes.len());
                bytes[at] = random.below(256) as u8;
            }
            if random.below(4) == 0 {
                bytes.truncate(random.below(bytes.len()));
            }
            if let Ok(image) = RgbImage::from_encoded(&bytes, &limits) {
                assert!(u64::from(image.width()) * u64::from(image.height()) <= limits.max_pixels);
            }
        }
    }
    assert_modest_memory();
}

#[test]
fn impossible_sizes_and_statistics_are_refused() {
    for (width, height, len) in [(0, 4, 0), (2, 2, 11), (u32::MAX, u32::MAX, 3)] {
        let error = RgbImage::from_rgb(width, height, vec![0; len]).unwrap_err();
        assert!(matches!(&error, Error::Image { what } if what.ends_with(&format!("got {len}"))), "{error}");
    }
    let dot = RgbImage::from_rgb(1, 1, vec![1, 2, 3]).unwrap();
    for (width, height) in [(0, 1), (1, 0), (u32::MAX, u32::MAX)] {
        assert!(resize(&dot, width, height, Filter::Lanczos3).is_err());
    }
    for fit in [Fit::Pad, Fit::Crop] {
        assert!(fixed_size(&dot, 0, fit, &clip()).is_err());
        assert!(fixed_size(&dot, u32::MAX, fit, &clip()).is_err());
    }
    for (mean, std) in [(f32::NAN, 1.0), (-0.1, 1.0), (2.0, 1.0), (0.5, 0.0), (0.5, f32::NAN), (0.5, f32::INFINITY)] {
        assert!(Normalize::new([0.5, mean, 0.5], [1.0, 1.0, std]).is_err(), "{mean} {std}");
    }
}

fn clip() -> Normalize {
    Normalize::new([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.2613026, 0.2757771]).unwrap()
}

fn worst_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn decode(name: &str) -> Result<RgbImage, Error> {
    RgbImage::from_encoded(&read(name), &Limits::default())
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(testdata().join("images").join(name)).unwrap()
}

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata")
}

struct Golden(Vec<u8>);

impl Golden {
    fn open(name: &str) -> Golden {
        Golden(std::fs::read(testdata().join(name)).unwrap())
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.0).unwrap()
    }

    fn names(&self) -> Vec<String> {
        self.tensors().names().iter().map(|n| n.to_string()).collect()
    }

    /// A u8 tensor `[height][width][3]`.
    fn image(&self, name: &str) -> RgbImage {
        let tensors = self.tensors();
        let tensor = tensors.tensor(name).unwrap();
        let [height, width, 3] = *tensor.shape() else { panic!("{name}: {:?}", tensor.shape()) };
        RgbImage::from_rgb(width as u32, height as u32, tensor.data().to_vec()).unwrap()
    }

    fn f32(&self, name: &str) -> Vec<f32> {
        let tensors = self.tensors();
        let data = tensors.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

struct XorShift(u64);

impl XorShift {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// Records the largest single allocation of the process.
struct Largest(AtomicUsize);

#[global_allocator]
static LARGEST: Largest = Largest(AtomicUsize::new(0));

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's obligations are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Nothing in this file has reason to allocate more than the 3 MiB between the passes of the 1 x 32,768 picture.
fn assert_modest_memory() {
    let largest = LARGEST.0.load(Ordering::Relaxed);
    assert!(largest <= 4 << 20, "{largest} bytes in one allocation");
}
