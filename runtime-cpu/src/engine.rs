//! An opened model: weights, tokenizer, vision tower. Immutable, shared by any number of sessions.

use std::path::Path;

use crate::Error;
use crate::gguf::GgufFile;
use crate::kernels::Dispatch;
use crate::model::{Decoder, ImageLimits, ModelConfig, VisionTower};
use crate::ops::{Compute, Precision};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// An opened model.
pub struct Engine {
    pub(crate) compute: Compute,
    pub(crate) decoder: Decoder,
    pub(crate) tokenizer: Tokenizer,
    /// Base models have none; only a chat prompt minds.
    pub(crate) template: Result<ChatTemplate, Error>,
    pub(crate) vision: Option<VisionTower>,
    pub(crate) image_limits: ImageLimits,
}

/// How an engine computes.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Worker threads; 0 means one per core.
    pub n_threads: usize,
    /// Arithmetic of quantised weights.
    pub precision: Precision,
    /// Instruction set of the kernels; `None` means the best of this CPU.
    pub dispatch: Option<Dispatch>,
    /// Repacks the weights for the vector kernels as they are loaded. Otherwise they stay in the file's
    /// map, shared with other processes, and decoding is slower.
    pub repack: bool,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions { n_threads: 0, precision: Precision::default(), dispatch: None, repack: true }
    }
}

impl Engine {
    /// Opens a language model and, for images, its projector file ("mmproj").
    ///
    /// # Errors
    /// [`Error::Io`] or one of the file errors, naming the file, the entry and the numbers.
    pub fn open(model: &Path, mmproj: Option<&Path>, options: EngineOptions) -> Result<Engine, Error> {
        let model = GgufFile::open(model)?;
        let mmproj = mmproj.map(GgufFile::open).transpose()?;
        Engine::new(&model, mmproj.as_ref(), options)
    }

    /// From files that are open already.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn new(model: &GgufFile, mmproj: Option<&GgufFile>, options: EngineOptions) -> Result<Engine, Error> {
        let mut decoder = Decoder::load(model)?;
        let tokenizer = Tokenizer::from_gguf(model)?;
        if tokenizer.n_tokens() > decoder.config().n_vocab {
            let (tokens, rows) = (tokenizer.n_tokens(), decoder.config().n_vocab);
            let what = format!("{tokens} tokens but only {rows} embedding rows");
            return Err(Error::Model { file: model.name().into(), what });
        }
        let mut vision = mmproj.map(|f| VisionTower::load(f, decoder.config().n_embd)).transpose()?;
        let template = ChatTemplate::from_gguf(model, &tokenizer);
        let mut compute = Compute::new(options.n_threads)?;
        compute.precision = options.precision;
        compute.dispatch = options.dispatch.unwrap_or(compute.dispatch);
        if options.repack {
            decoder.repack(&compute);
            vision.iter_mut().for_each(|v| v.repack(&compute));
        }
        Ok(Engine { compute, decoder, tokenizer, template, vision, image_limits: ImageLimits::default() })
    }

    /// The same engine, with limits on what each picture of a prompt may cost.
    pub fn with_image_limits(self, image_limits: ImageLimits) -> Engine {
        Engine { image_limits, ..self }
    }

    /// Hyper-parameters of the language model.
    pub fn config(&self) -> &ModelConfig {
        self.decoder.config()
    }

    /// The tokenizer of the language model.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template of the language model.
    ///
    /// # Errors
    /// [`Error::Template`] if the file has none that works and no built-in one fits.
    pub fn template(&self) -> Result<&ChatTemplate, Error> {
        self.template.as_ref().map_err(|e| match e {
            Error::Template { what } => Error::Template { what: what.clone() },
            other => Error::Template { what: other.to_string() },
        })
    }

    /// The vision tower, if a projector file was opened.
    pub fn vision(&self) -> Option<&VisionTower> {
        self.vision.as_ref()
    }

    /// Threads, instruction set and precision.
    pub fn compute(&self) -> &Compute {
        &self.compute
    }
}
