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
    /// A conversation could not be turned into a prompt.
    #[error("chat template: {what}")]
    Template {
        /// What is wrong, with the file's name where it is the file's fault.
        what: String,
    },
}
