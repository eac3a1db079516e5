//! `ecokv run`: one prompt, one answer.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ecokv::image::{Limits, RgbImage};
use ecokv::{Engine, Error, MEDIA_MARKER};

use super::args::RunArgs;
use super::choice::Choice;
use super::demo;
use super::generate::{Prepared, generate};
use super::output::{Failure, Progress, print, stderr_line};
use super::report;

/// Larger image files are not read.
const MAX_IMAGE_BYTES: u64 = 256 << 20;

pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let Some(model) = &args.model else { return demo::run(args) };
    let choice = Choice::new(&args.method, args.seed)?;
    let text = match args.prompt.as_deref() {
        None => return Err(Failure::Mendable("a prompt is missing: -p PROMPT".into())),
        Some(text) => text,
    };
    check_prompt(text, args.image.len())?;
    if args.mmproj.is_none()
        && let Some(image) = args.image.first()
    {
        let what = format!("--image {}: the model needs its vision tower to see it: --mmproj FILE", image.display());
        return Err(Failure::Mendable(what));
    }
    let images = read_images(args)?;
    let progress = Progress::new();
    progress.stage("opening the model");
    let engine =
        Engine::open(model, args.mmproj.as_deref(), args.engine_options()?)?.with_image_limits(args.limits.limits());
    let done = answer(&engine, args, &choice, text, &images, &progress);
    std::mem::forget(engine); // the process ends, and the system takes memory back faster than piece by piece
    done
}

/// Answers and reports. Text goes out as it is made, unless it is JSON that is asked for.
pub fn answer(
    engine: &Engine,
    args: &RunArgs,
    choice: &Choice,
    text: &str,
    images: &[RgbImage],
    progress: &Progress,
) -> Result<(), Failure> {
    progress.aside(|| report::file_notes(engine, args.raw));
    progress.stage(if images.is_empty() { "encoding the prompt" } else { "encoding the images" });
    let prepared = Prepared::new(engine, text, images, args.raw).map_err(|failure| match failure {
        Failure::Mendable(what) if !args.raw && engine.template().is_err() => {
            Failure::Mendable(format!("{what} (--raw runs the prompt without a template)"))
        }
        other => other,
    })?;
    let answer = generate(engine, args, choice, &prepared.prompt, progress, |piece| {
        if args.json || piece.is_empty() {
            return Ok(());
        }
        progress.clear();
        print(piece)
    })?;
    progress.clear();
    if args.json {
        print(&format!("{}\n", report::json(choice, &answer)))?;
    } else if !answer.text.is_empty() && !answer.text.ends_with('\n') {
        print("\n")?;
    }
    report::answer_notes(args, choice, &answer);
    if !args.json {
        for line in report::table(engine, args, choice, &prepared, &answer).lines() {
            stderr_line(line);
        }
    }
    Ok(())
}

/// The text, and its markers against the images.
pub fn check_prompt(text: &str, n_images: usize) -> Result<(), Failure> {
    if text.is_empty() {
        return Err(Failure::Mendable("the prompt (-p) is empty".into()));
    }
    let markers = text.matches(MEDIA_MARKER).count();
    if markers > n_images {
        let what = format!("the prompt has {markers} {MEDIA_MARKER} for {n_images} images (--image)");
        return Err(Failure::Mendable(what));
    }
    Ok(())
}

/// The pictures of `--image`, in order.
pub fn read_images(args: &RunArgs) -> Result<Vec<RgbImage>, Failure> {
    args.image.iter().map(|path| read_image(path)).collect()
}

fn read_image(path: &Path) -> Result<RgbImage, Failure> {
    let name = path.display();
    let io = |source| Failure::from(Error::Io { path: path.into(), source });
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(MAX_IMAGE_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_IMAGE_BYTES {
        return Err(Failure::Mendable(format!("{name}: larger than {MAX_IMAGE_BYTES} bytes, the most that is read")));
    }
    RgbImage::from_encoded(&bytes, &Limits::default()).map_err(|e| Failure::Mendable(format!("{name}: {e}")))
}
