//! Times the vision tower of a projector file on a picture of noise, for comparisons with other programs: a line with rows,
//! squares and seconds for each repetition.
//!
//! `cargo run --release --example encode_picture MODEL.gguf MMPROJ.gguf WIDTH HEIGHT REPETITIONS THREADS`

use std::path::Path;
use std::time::Instant;

use ecokv::image::RgbImage;
use ecokv::model::ImageLimits;
use ecokv::{Engine, EngineOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let usage = "MODEL.gguf MMPROJ.gguf WIDTH HEIGHT REPETITIONS THREADS";
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, mmproj, numbers @ ..] = &args[..] else { return Err(usage.into()) };
    let numbers = numbers.iter().map(|n| n.parse()).collect::<Result<Vec<u32>, _>>()?;
    let [width, height, repetitions, threads] = numbers.try_into().map_err(|_| usage)?;

    let options = EngineOptions { n_threads: threads as usize, ..EngineOptions::default() };
    let engine = Engine::open(Path::new(model), Some(Path::new(mmproj)), options)?;
    let noise = |i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8;
    let image = RgbImage::from_rgb(width, height, (0..3 * width * height).map(noise).collect())?;
    let vision = engine.vision().ok_or("no vision tower")?;
    let cost = vision.cost(width, height, &ImageLimits::default())?;
    for _ in 0..repetitions {
        let start = Instant::now();
        vision.encode(engine.compute(), &image, &ImageLimits::default())?;
        println!("{} {} {:.4}", cost.n_tokens, cost.n_tiles, start.elapsed().as_secs_f64());
    }
    Ok(())
}
