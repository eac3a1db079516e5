//! Recorded outputs of other implementations for small models with random weights, and how far this one is from them.
#![allow(dead_code)] // every program uses its own part

use std::collections::BTreeMap;
use std::path::PathBuf;

use ecokv::cache::KvType;
use ecokv::image::RgbImage;
use ecokv::model::{ImageLimits, ImagePart};
use ecokv::ops::Precision;
use ecokv::{Engine, EngineOptions, Prompt, Session, SessionOptions, argmax};
use safetensors::{Dtype, SafeTensors};

/// A model of `testdata/models/`, with what transformers computes in float32.
pub struct Case {
    /// Name and example of the family.
    pub family: &'static str,
    /// Folder.
    pub folder: &'static str,
    /// Prompt with a marker for the image; the recorded token ids where there is none.
    pub prompt: Option<&'static str>,
    /// Prefixes of the recorded pictures. The first belongs to the prompt.
    pub pictures: &'static [&'static str],
}

/// Every recorded model.
pub const CASES: [Case; 13] = [
    Case { family: "llama", folder: "llama", prompt: None, pictures: &[] },
    Case { family: "llama, tied output (SmolLM2)", folder: "smollm2", prompt: None, pictures: &[] },
    Case { family: "llama, linear scaling", folder: "llama-linear", prompt: None, pictures: &[] },
    Case { family: "llama, YaRN", folder: "llama-yarn", prompt: None, pictures: &[] },
    Case { family: "llama 3.1 scaling", folder: "llama-llama3", prompt: None, pictures: &[] },
    Case { family: "qwen2", folder: "qwen2", prompt: None, pictures: &[] },
    Case { family: "qwen3", folder: "qwen3", prompt: None, pictures: &[] },
    Case { family: "gemma3", folder: "gemma3", prompt: None, pictures: &[] },
    Case {
        family: "LLaVA-1.5",
        folder: "llava15",
        prompt: Some("USER: <__media__>\nWhat is in the image? ASSISTANT:"),
        pictures: &[""],
    },
    Case {
        family: "LLaVA-NeXT",
        folder: "llavanext",
        prompt: Some("[INST] <__media__>\nWhat is in the image? [/INST]"),
        pictures: &["a.", "b.", "c.", "d."],
    },
    Case {
        family: "Idefics3, SmolVLM",
        folder: "idefics3",
        prompt: Some("<|im_start|>User:<__media__>What is in the image?<end_of_utterance>\nAssistant:"),
        pictures: &["a.", "b.", "c."],
    },
    Case { family: "Qwen2-VL", folder: "qwen2vl", prompt: QWEN_VL, pictures: &[""] },
    Case { family: "Qwen2.5-VL", folder: "qwen25vl", prompt: QWEN_VL, pictures: &[""] },
];

const QWEN_VL: Option<&str> =
    Some("<|im_start|>user\n<__media__>What is in the image?<|im_end|>\n<|im_start|>assistant\n");

/// Largest differences from the recording, relative to its largest value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Errors {
    /// Rows that the pictures become.
    pub embeddings: f32,
    /// Logits after every token of the prompt and every step.
    pub logits: f32,
    /// Greedy tokens that are the same, of those recorded.
    pub greedy: (usize, usize),
}

/// Head of the table of [`Case::row`]s.
pub const TITLES: &str = "\
| family | recording | pictures | worst error of image embeddings | of logits | greedy tokens |
|---|---|---|---|---|---|";

impl Case {
    /// A row of the table. Errors are rounded up to one digit.
    pub fn row(&self, errors: &Errors) -> String {
        let embeddings = if self.pictures.is_empty() { "-".into() } else { rounded_up(errors.embeddings) };
        let (logits, (same, of)) = (rounded_up(errors.logits), errors.greedy);
        let (family, folder, pictures) = (self.family, self.folder, self.pictures.len());
        format!("| {family} | `{folder}` | {pictures} | {embeddings} | {logits} | {same} of {of} |")
    }

    /// Runs the model in float arithmetic.
    pub fn errors(&self) -> Result<Errors, ecokv::Error> {
        let golden = self.golden();
        let engine = self.engine(2)?;
        let mut errors = Errors::default();
        for picture in self.pictures {
            let got = rows(&engine, &golden.image(&format!("{picture}image")))?;
            errors.embeddings = errors.embeddings.max(relative(&got, golden.get(&format!("{picture}image_embeds"))));
        }
        let prompt = self.recorded_prompt(&engine, &golden)?;
        let mut session = Session::new(&engine, options())?;
        let logits = session.prefill_all_logits(&prompt)?;
        errors.logits = relative(&logits, golden.get("logits"));
        let n_vocab = engine.config().n_vocab;
        let mut last = logits[logits.len() - n_vocab..].to_vec();
        for (want, &id) in golden.get("gen_logits").chunks(n_vocab).zip(&golden.ids("gen_ids")) {
            errors.greedy = (errors.greedy.0 + usize::from(argmax(&last) == id), errors.greedy.1 + 1);
            last = session.decode(id)?.to_vec();
            errors.logits = errors.logits.max(relative(&last, want));
        }
        Ok(errors)
    }

    /// What was recorded.
    pub fn golden(&self) -> Golden {
        Golden::load(&format!("models/{}/golden.safetensors", self.folder))
    }

    /// The model in float arithmetic.
    pub fn engine(&self, n_threads: usize) -> Result<Engine, ecokv::Error> {
        let folder = testdata("models").join(self.folder);
        let mmproj = folder.join("mmproj-f32.gguf");
        let mmproj = (!self.pictures.is_empty()).then_some(mmproj.as_path());
        Engine::open(
            &folder.join("model-f32.gguf"),
            mmproj,
            EngineOptions { n_threads, precision: Precision::Float, ..EngineOptions::default() },
        )
    }

    /// The prompt of the recording.
    pub fn recorded_prompt(&self, engine: &Engine, golden: &Golden) -> Result<Prompt, ecokv::Error> {
        match (self.prompt, self.pictures) {
            (Some(text), [first, ..]) => Prompt::raw(engine, text, &[golden.image(&format!("{first}image"))]),
            _ => Prompt::tokens(engine, golden.ids("input_ids")),
        }
    }
}

fn rounded_up(error: f32) -> String {
    if error == 0.0 {
        return "0".into();
    }
    let power = error.log10().floor() as i32;
    match (error / 10f32.powi(power)).ceil() as u32 {
        10.. => format!("1e{}", power + 1),
        digit => format!("{digit}e{power}"),
    }
}

/// The rows of the prompt that a picture becomes, without the text between them.
pub fn rows(engine: &Engine, image: &RgbImage) -> Result<Vec<f32>, ecokv::Error> {
    let Some(vision) = engine.vision() else { return Ok(Vec::new()) };
    let parts = vision.encode(engine.compute(), image, &ImageLimits::default())?;
    Ok(parts.into_iter().flat_map(|p| if let ImagePart::Rows(rows) = p { rows.data } else { Vec::new() }).collect())
}

/// A cache that keeps everything as it was computed.
pub fn options() -> SessionOptions {
    SessionOptions { n_ctx: 0, n_generate: 16, kv_type: KvType::F32, eviction: None }
}

/// Tensors of a recording by name: shape and values.
pub struct Golden(pub BTreeMap<String, (Vec<usize>, Vec<f32>)>);

impl Golden {
    pub fn load(path: &str) -> Golden {
        let bytes = std::fs::read(testdata(path)).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let values = |view: &safetensors::tensor::TensorView<'_>| -> Vec<f32> {
            let d = view.data();
            match view.dtype() {
                Dtype::F32 => d.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
                Dtype::I32 => d.chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()) as f32).collect(),
                Dtype::U8 => d.iter().map(|&b| f32::from(b)).collect(),
                other => panic!("{other:?}"),
            }
        };
        Golden(file.tensors().into_iter().map(|(k, v)| (k, (v.shape().to_vec(), values(&v)))).collect())
    }

    pub fn get(&self, name: &str) -> &[f32] {
        &self.0[name].1
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.get(name).iter().map(|&v| v as u32).collect()
    }

    /// A picture, recorded as `[height][width][3]`.
    pub fn image(&self, name: &str) -> RgbImage {
        let (shape, values) = &self.0[name];
        RgbImage::from_rgb(shape[1] as u32, shape[0] as u32, values.iter().map(|&v| v as u8).collect()).unwrap()
    }
}

pub fn testdata(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(path)
}

/// Largest difference over the largest value.
pub fn relative(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    got.iter().zip(want).fold(0.0_f32, |m, (g, w)| m.max((g - w).abs())) / largest
}

/// Keys `[rows][d]` with their channels in the order of `llama` files, whose converter interleaves the halves of each.
pub fn interleaved(rows: &[f32], d: usize) -> Vec<f32> {
    rows.chunks(d).flat_map(|r| (0..d).map(|c| r[c / 2 + (c % 2) * d / 2])).collect()
}
