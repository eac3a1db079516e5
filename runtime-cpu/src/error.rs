//! The one error type of the crate.

use std::path::PathBuf;

/// Everything that can go wrong, one variant per stage. Each message is one line and names the thing and the numbers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or mapped.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The bytes are not a GGUF file that this crate can use.
    #[error("{file}: {what}")]
    Gguf {
        /// Path, or the name given to an embedded file.
        file: String,
        /// What is wrong, with the entry's name and the numbers.
        what: String,
    },
    /// A metadata key is missing, of another type, or out of range.
    #[error("{file}: metadata key {key}: {what}")]
    Metadata {
        /// Path, or the name given to an embedded file.
        file: String,
        /// The key looked up.
        key: String,
        /// What is wrong with it.
        what: String,
    },
    /// A tensor is missing or does not have the expected shape or type.
    #[error("{file}: tensor {tensor}: {what}")]
    Tensor {
        /// Path, or the name given to an embedded file.
        file: String,
        /// The tensor looked up.
        tensor: String,
        /// What is wrong with it.
        what: String,
    },
    /// A picture could not be decoded or is not usable.
    #[error("image: {what}")]
    Image {
        /// What is wrong, with the numbers.
        what: String,
    },
    /// Worker threads could not be started.
    #[error("cannot start {n_threads} threads: {what}")]
    Threads {
        /// Threads asked for.
        n_threads: usize,
        /// What the system said.
        what: String,
    },
    /// The model needs something that is not supported.
    #[error("{file}: {what}")]
    Model {
        /// Path, or the name given to an embedded file.
        file: String,
        /// The feature.
        what: String,
    },
    /// A prompt cannot be run as it is.
    #[error("prompt: {what}")]
    Prompt {
        /// What is wrong, with the numbers.
        what: String,
    },
    /// The prompt and the tokens to generate do not fit the context.
    #[error("{prompt} prompt tokens and {generate} to generate exceed the context of {context} tokens")]
    ContextFull {
        /// Tokens of the prompt, images included, and of what came before it.
        prompt: usize,
        /// Tokens to generate.
        generate: usize,
        /// Positions of the context.
        context: usize,
    },
    /// A session cannot go back that far, or is not that far yet.
    #[error("cannot go back to position {to}: only to {first} up to {last}")]
    Rewind {
        /// Positions to keep.
        to: usize,
        /// The fewest that can be kept: an eviction, or a sliding window, cannot be undone.
        first: usize,
        /// Positions of the session.
        last: usize,
    },
    /// The CPU does not have the instruction set.
    #[error("{name:?} is not an instruction set of this CPU, which has {}", available.join(", "))]
    Dispatch {
        /// What was asked for.
        name: String,
        /// What there is.
        available: Vec<&'static str>,
    },
    /// The element type of the cache cannot hold the model's heads.
    #[error("a {kv_type} cache needs heads of a multiple of {of} values, and the model's have {head_dim}")]
    KvType {
        /// The type.
        kv_type: &'static str,
        /// Values of a head.
        head_dim: usize,
        /// What it must be a multiple of.
        of: usize,
    },
    /// The caller broke off.
    #[error("cancelled")]
    Cancelled,
    /// A route is not usable.
    #[error("{0}")]
    Route(#[from] ecokv_core::RouteError),
    /// The eviction policy refused its inputs.
    #[error("eviction: {0}")]
    Evict(#[from] ecokv_core::Error),
    /// A conversation could not be turned into a prompt.
    #[error("chat template: {what}")]
    Template {
        /// What is wrong, with the file's name where it is the file's fault.
        what: String,
    },
}
