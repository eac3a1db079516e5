//! The command line as the user types it.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use ecokv::cache::KvType;
use ecokv::kernels::Dispatch;
use ecokv::model::ImageLimits;
use ecokv::ops::Precision;
use ecokv::{EngineOptions, Error, Modalities, Modality, Sampling};

/// Answers questions about text and images with quantised GGUF models on the CPU, keeping only the entries of the
/// key-value cache that matter. Without a model it shows a bundled demo.
#[derive(Debug, Parser)]
#[command(name = "ecokv", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer a prompt (the default)
    Run(Box<RunArgs>),
    /// Show what a GGUF file holds
    Inspect(InspectArgs),
    /// List the eviction methods
    Methods(MethodsArgs),
    /// Measure how fast a model reads prompts and answers
    Bench(Box<BenchArgs>),
}

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct RunArgs {
    /// Language model (GGUF); without it the bundled demo model runs
    #[arg(short, value_name = "MODEL.gguf")]
    pub model: Option<PathBuf>,
    /// Vision tower and projector that belong to the model (GGUF)
    #[arg(long, value_name = "FILE", requires = "model")]
    pub mmproj: Option<PathBuf>,
    /// PNG or JPEG; may be given several times
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,
    /// Text; <__media__> in it stands for the next image, images without a marker go in front
    #[arg(short, value_name = "PROMPT")]
    pub prompt: Option<String>,
    /// Tokens to generate at most
    #[arg(short, value_name = "MAX_TOKENS", default_value_t = 256)]
    pub n_predict: usize,
    /// Sampling temperature; 0 is greedy: always the most likely token
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = at_least_zero)]
    pub temp: f32,
    /// Sample among the N most likely tokens; 0 means all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub top_k: usize,
    /// Sample among the most likely tokens whose probabilities sum to F
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = probability)]
    pub top_p: f32,
    /// Seed of the sampling and of method random
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Worker threads [default: one per core]
    #[arg(short, value_name = "THREADS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    #[command(flatten)]
    pub kernels: KernelArgs,
    /// Positions for prompt and answer together [default: what the model was trained for]
    #[arg(short, value_name = "CTX", value_parser = clap::value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
    /// Run the prompt as it is, without a chat template
    #[arg(long)]
    pub raw: bool,
    /// Element type of the cache
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = KvArg::F16)]
    pub kv_type: KvArg,
    /// Print one JSON object instead of the text
    ///
    /// `kept` ([layer][KV head]) and `kv_bytes` are those after the eviction, before the answer; `kv_bytes_full` is what
    /// the whole prompt would take. `tokens` and `text` leave the end token out. What was not measured is null.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub limits: LimitArgs,
    #[command(flatten)]
    pub method: MethodArgs,
}

/// What each image may cost. The largest size within the limits is used; a model that has none refuses the image.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Images")]
pub struct LimitArgs {
    /// Most positions that an image may take in the prompt [default: what the model was trained for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub image_max_tokens: Option<u32>,
    /// Most squares into which an image may be cut, its overview included
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub image_max_tiles: Option<u32>,
    /// Most pixels along the longer side of what the model sees
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub image_longest_edge: Option<u32>,
}

/// Which entries stay after the prompt.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Eviction")]
pub struct MethodArgs {
    /// Method, see `ecokv methods` [default: full, or ecokv with --budget]
    #[arg(long, value_name = "NAME", hide_possible_values = true, value_parser = method_names())]
    pub method: Option<String>,
    /// Entries kept per KV head on average, protected ones included [default: 128]
    #[arg(long, value_name = "N")]
    pub budget: Option<u32>,
    /// Last queries that judge the entries; as many last entries are kept, fewer where the budget is small
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub window: Option<u32>,
    /// Keep exactly this many last entries
    #[arg(long, value_name = "N")]
    pub keep_recent: Option<u32>,
    /// Weight of Euclidean diversity [default: the method's, or 1 - beta]
    #[arg(long, value_name = "F", value_parser = at_least_zero)]
    pub alpha: Option<f32>,
    /// Weight of cosine diversity [default: the method's, or 1 - alpha]
    #[arg(long, value_name = "F", value_parser = at_least_zero)]
    pub beta: Option<f32>,
    /// How the layers share the budget [default: the method's]
    #[arg(long, value_name = "SHARES", value_enum)]
    pub layer_budget: Option<LayerArg>,
    /// How the heads of a layer share its budget [default: the method's]
    #[arg(long, value_name = "SHARES", value_enum)]
    pub head_budget: Option<HeadArg>,
    /// Keep all text or all images, whatever the method says [default: none]
    #[arg(long, value_name = "KIND", value_enum)]
    pub protect: Option<ProtectArg>,
    /// Of the budget, the entries that come from images; text gets the rest [default: the method decides]
    #[arg(long, value_name = "N")]
    pub image_budget: Option<u32>,
    /// Euclidean diversity is the distance from the mean key of the head, or of the same kind, text or image [default: the
    /// method's]
    #[arg(long, value_name = "OF", value_enum)]
    pub centroid: Option<CentroidArg>,
    /// A method for every layer, from a file: first line "ecokv-route 1", then "layers N", "heads N" (KV heads) and a
    /// line "LAYER METHOD [BUDGET]" for each layer
    #[arg(long, value_name = "FILE", conflicts_with = "method")]
    pub route: Option<PathBuf>,
    /// Scores of the KV heads for method sparsemm: numbers, layer after layer
    #[arg(long, value_name = "FILE")]
    pub head_profile: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Language model or projector (GGUF)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct MethodsArgs {
    /// Print a Markdown table
    #[arg(long)]
    pub markdown: bool,
}

/// How products are computed.
#[derive(Args, Debug, Default)]
pub struct KernelArgs {
    /// Instruction set: scalar or what else this CPU has [default: the best]
    #[arg(long, value_name = "NAME")]
    pub dispatch: Option<String>,
    /// Activations that meet quantised weights: 15 bits, 8 bits (faster prompts, the noise of llama.cpp), or 32-bit floats
    /// (slow, the reference)
    #[arg(long, value_enum, default_value_t, value_name = "TYPE")]
    pub precision: PrecisionArg,
    /// Leave the weights in the file's map, shared between processes, instead of repacking them: slower
    #[arg(long)]
    pub no_repack: bool,
}

#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Language model (GGUF)
    #[arg(short, value_name = "MODEL.gguf")]
    pub model: PathBuf,
    /// Prompt lengths to read, with commas between them; 0 for none
    #[arg(short, value_name = "N,...", value_delimiter = ',', default_value = "512")]
    pub prompts: Vec<u32>,
    /// Numbers of tokens to generate; 0 for none
    #[arg(short, value_name = "N,...", value_delimiter = ',', default_value = "128")]
    pub n_predict: Vec<u32>,
    /// Depths: tokens that are in the context before
    #[arg(short, value_name = "N,...", value_delimiter = ',', default_value = "0")]
    pub depths: Vec<u32>,
    /// Numbers of worker threads [default: one per core]
    #[arg(short, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,
    /// Repetitions of every test
    #[arg(short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    #[command(flatten)]
    pub kernels: KernelArgs,
    /// Element type of the cache
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = KvArg::F16)]
    pub kv_type: KvArg,
    /// Print one JSON object instead of the table
    ///
    /// `tokens_per_s` is the median of the repetitions and `spread` half the distance between their quartiles. `kv_bytes`
    /// is the cache at the end of the test, `peak_rss_bytes` the most memory in use since the test began.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub method: MethodArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum KvArg {
    F32,
    F16,
    #[value(name = "q8_0")]
    Q8_0,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum PrecisionArg {
    Int8,
    #[default]
    Int16,
    Float,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LayerArg {
    Uniform,
    Pyramid,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum HeadArg {
    Uniform,
    Adaptive,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ProtectArg {
    Text,
    Image,
    None,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum CentroidArg {
    Head,
    Modality,
}

impl KernelArgs {
    pub fn engine_options(&self, n_threads: usize) -> Result<EngineOptions, Error> {
        let dispatch = self.dispatch.as_deref().map(Dispatch::by_name).transpose()?;
        Ok(EngineOptions { n_threads, precision: self.precision.into(), dispatch, repack: !self.no_repack })
    }
}

impl RunArgs {
    pub fn engine_options(&self) -> Result<EngineOptions, Error> {
        self.kernels.engine_options(self.threads.unwrap_or(0) as usize)
    }

    pub fn sampling(&self) -> Sampling {
        Sampling { temperature: self.temp, top_k: self.top_k, top_p: self.top_p, seed: self.seed }
    }
}

impl From<PrecisionArg> for Precision {
    fn from(arg: PrecisionArg) -> Precision {
        match arg {
            PrecisionArg::Int8 => Precision::Int8,
            PrecisionArg::Int16 => Precision::Int16,
            PrecisionArg::Float => Precision::Float,
        }
    }
}

impl From<KvArg> for KvType {
    fn from(arg: KvArg) -> KvType {
        match arg {
            KvArg::F32 => KvType::F32,
            KvArg::F16 => KvType::F16,
            KvArg::Q8_0 => KvType::Q8_0,
        }
    }
}

impl LimitArgs {
    pub fn limits(&self) -> ImageLimits {
        ImageLimits {
            max_tokens: self.image_max_tokens.map(|n| n as usize),
            max_tiles: self.image_max_tiles.map(|n| n as usize),
            longest_edge: self.image_longest_edge,
        }
    }
}

impl MethodArgs {
    pub fn modalities(&self) -> Modalities {
        let protect = match self.protect {
            None | Some(ProtectArg::None) => None,
            Some(ProtectArg::Text) => Some(Modality::Text),
            Some(ProtectArg::Image) => Some(Modality::Image),
        };
        Modalities { protect, image_budget: self.image_budget }
    }

    /// The flags that were given, but for `--method` itself.
    pub fn given(&self) -> Vec<&'static str> {
        let flags = [
            ("--budget", self.budget.is_some()),
            ("--window", self.window.is_some()),
            ("--keep-recent", self.keep_recent.is_some()),
            ("--alpha", self.alpha.is_some()),
            ("--beta", self.beta.is_some()),
            ("--layer-budget", self.layer_budget.is_some()),
            ("--head-budget", self.head_budget.is_some()),
            ("--protect", self.modalities().protect.is_some()),
            ("--image-budget", self.image_budget.is_some()),
            ("--centroid", self.centroid.is_some()),
            ("--route", self.route.is_some()),
            ("--head-profile", self.head_profile.is_some()),
        ];
        flags.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag).collect()
    }
}

fn method_names() -> PossibleValuesParser {
    PossibleValuesParser::new(ecokv_core::methods::ALL.iter().map(|m| m.name))
}

fn at_least_zero(text: &str) -> Result<f32, String> {
    in_range(text, |v| v >= 0.0, "a number, at least 0")
}

fn probability(text: &str) -> Result<f32, String> {
    in_range(text, |v| v > 0.0 && v <= 1.0, "a number above 0, at most 1")
}

fn in_range(text: &str, range: impl Fn(f32) -> bool, expected: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(v) if v.is_finite() && range(v) => Ok(v),
        _ => Err(format!("expected {expected}")),
    }
}
