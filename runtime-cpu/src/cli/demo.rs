//! The bundled model: what the command shows when no model is named.

use ecokv::gguf::GgufFile;
use ecokv::image::{Limits, RgbImage};
use ecokv::{Engine, Error};
use serde::Deserialize;

use super::args::RunArgs;
use super::choice::Choice;
use super::generate::{Answer, Prepared, generate};
use super::output::{Failure, Progress, bytes, columns, print};
use super::{report, run as single};

const MODEL: &[u8] = include_bytes!("../../../examples/models/tinyvlm-q8_0.gguf");
const MMPROJ: &[u8] = include_bytes!("../../../examples/models/mmproj-cls-f16.gguf");
const IMAGE: &[u8] = include_bytes!("../../../examples/models/demo.png");
const QUESTION: &str = include_str!("../../../examples/models/demo.json");

/// Entries per head in the comparison: about a ninth of the prompt.
const BUDGET: u32 = 24;

/// The full cache, then what is compared with it.
const METHODS: [&str; 3] = ["full", "ecokv", "snapkv"];

/// What is asked about the bundled image.
#[derive(Deserialize)]
struct Demo {
    question: String,
    answer: String,
}

/// Compares methods on the demo question. With any flag that asks for something else, answers that instead.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let demo: Demo = serde_json::from_str(QUESTION).map_err(|e| Failure::Bug(format!("demo.json: {e}")))?;
    let plain = args.prompt.is_none() && args.image.is_empty() && !args.raw && !args.json;
    if plain && args.method.method.is_none() && args.method.given().is_empty() {
        return compare(args, &demo);
    }
    let choice = Choice::new(&args.method, args.seed)?;
    let text = args.prompt.as_deref().unwrap_or(&demo.question);
    let images = match args.image[..] {
        [] => vec![image()?],
        _ => single::read_images(args)?,
    };
    single::check_prompt(text, images.len())?;
    let progress = Progress::new();
    single::answer(&engine(args)?, args, &choice, text, &images, &progress)
}

fn compare(args: &RunArgs, demo: &Demo) -> Result<(), Failure> {
    let progress = Progress::new();
    let engine = engine(args)?;
    let prepared = Prepared::new(&engine, &demo.question, &[image()?], false)?;
    let titles = ["method", "answer", "right?", "entries per head", "KV cache", "prefill", "decode"];
    let mut rows = vec![titles.map(String::from).to_vec()];
    for name in METHODS {
        let choice = Choice::named(name, BUDGET)?;
        let answer = generate(&engine, args, &choice, &prepared.prompt, &progress, |_| Ok(()))?;
        progress.aside(|| report::answer_notes(args, &choice, &answer));
        rows.push(row(&choice, &answer, &demo.answer));
    }
    progress.clear();
    print(&format!(
        "A bundled {} vision-language model reads a page (examples/models/demo.png).\n\
         question  {}\n\
         answer    {}\n\n{}",
        bytes((MODEL.len() + MMPROJ.len()) as u64),
        demo.question,
        demo.answer,
        columns(&rows),
    ))
}

fn row(choice: &Choice, answer: &Answer, expected: &str) -> Vec<String> {
    let per_second = |rate: Option<f64>| rate.map_or("-".into(), |rate| format!("{rate:.0} tokens/s"));
    let prefill = answer.prompt_tokens as f64 / answer.stats.prefill.as_secs_f64();
    vec![
        choice.name.into(),
        answer.text.clone(),
        if answer.text.trim() == expected { "right" } else { "wrong" }.into(),
        report::entries(answer),
        bytes(answer.kv_bytes as u64),
        per_second(Some(prefill)),
        per_second(report::decode_rate(answer)),
    ]
}

fn engine(args: &RunArgs) -> Result<Engine, Failure> {
    let open = || -> Result<(GgufFile, GgufFile), Error> {
        Ok((GgufFile::from_static("tinyvlm-q8_0.gguf", MODEL)?, GgufFile::from_static("mmproj-cls-f16.gguf", MMPROJ)?))
    };
    let (model, mmproj) = open().map_err(|e| Failure::Bug(e.to_string()))?;
    Ok(Engine::new(&model, Some(&mmproj), args.engine_options())?.with_image_limits(args.limits.limits()))
}

fn image() -> Result<RgbImage, Failure> {
    RgbImage::from_encoded(IMAGE, &Limits::default()).map_err(|e| Failure::Bug(e.to_string()))
}
