//! GGUF files: a read-only map of the file, typed metadata, and tensors borrowed from the map.
//!
//! Opening a file reads and checks its whole header; afterwards every [`Tensor`] is known to lie inside the file with
//! the size its shape and type demand. Nothing of the tensor data is copied or even touched.
//!
//! Versions 2 and 3, little-endian (the two differ only in that version 3 may be big-endian, which is refused).

mod inspect;
mod metadata;
mod reader;
mod tensor;

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

pub use inspect::{LanguageSummary, ModelSummary, ProjectorSummary, Summary, TypeUse};
pub use metadata::{MAX_LAYERS, Metadata, Value};
pub use tensor::{Tensor, TensorInfo};

use crate::Error;

/// An open GGUF file. Clones share the same map.
#[derive(Clone, Debug)]
pub struct GgufFile(Arc<Inner>);

impl GgufFile {
    /// Maps `path` and reads its header.
    ///
    /// The file must not be changed while it is open: the map shows such changes, and touching a page that was cut off
    /// ends the process.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened or mapped, [`Error::Gguf`] if it is not a regular file, not a GGUF
    /// file, damaged, or uses something that is not supported.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let io = |source| Error::Io { path: path.to_path_buf(), source };
        // Asked before opening: opening a named pipe would wait for a writer.
        let kind = std::fs::metadata(path).map_err(io)?;
        if !kind.is_file() {
            let what = if kind.is_dir() { "is a directory, not a GGUF file" } else { "is not a regular file" };
            return Err(Error::Gguf { file: name, what: what.to_owned() });
        }
        if kind.len() == 0 {
            return Err(Error::Gguf { file: name, what: "the file is empty".to_owned() });
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is read-only and private, and `Inner` owns it for as long as any slice of it is borrowed.
        // That nobody changes the file meanwhile cannot be checked; it is the documented condition of this function.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Self::parse(&name, Bytes::Map(map))
    }

    /// Reads the header of a GGUF file that is already in memory, for example embedded in the program. `name` stands for
    /// it in messages. The address of `bytes` needs no alignment.
    ///
    /// # Errors
    /// [`Error::Gguf`], as for [`open`](Self::open).
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Self, Error> {
        Self::parse(name, Bytes::Static(bytes))
    }

    /// Path or name, for messages.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The key-value pairs of the header.
    pub fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    /// Size of the whole file in bytes.
    pub fn n_bytes(&self) -> usize {
        self.0.bytes.len()
    }

    /// Every tensor, in the order of the file's table.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.0.tensors.iter()
    }

    /// The tensor of this name; `None` if the file has none.
    pub fn tensor(&self, name: &str) -> Option<Tensor> {
        let index = *self.0.by_name.get(name)?;
        Some(Tensor::new(Arc::clone(&self.0), index))
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the file has none.
    pub fn require(&self, name: &str) -> Result<Tensor, Error> {
        self.tensor(name).ok_or_else(|| Error::Tensor {
            file: self.name().to_owned(),
            tensor: name.to_owned(),
            what: format!("not among the {} tensors of the file", self.0.tensors.len()),
        })
    }

    /// Asks the system to read the file ahead of use. A hint: it returns at once and failure means nothing.
    pub fn prefetch(&self) {
        #[cfg(unix)]
        if let Bytes::Map(map) = &self.0.bytes {
            let _ = map.advise(memmap2::Advice::WillNeed);
        }
    }

    fn parse(name: &str, bytes: Bytes) -> Result<Self, Error> {
        let name: Arc<str> = name.into();
        let (entries, tensors) = reader::read_header(&name, &bytes)?;
        let by_name = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        let metadata = Metadata::new(Arc::clone(&name), entries);
        Ok(Self(Arc::new(Inner { name, bytes, metadata, tensors, by_name })))
    }
}

#[derive(Debug)]
struct Inner {
    name: Arc<str>,
    bytes: Bytes,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
enum Bytes {
    Map(memmap2::Mmap),
    Static(&'static [u8]),
}

impl Bytes {
    fn release(&self, range: std::ops::Range<usize>) {
        #[cfg(unix)]
        if let Bytes::Map(map) = self {
            // SAFETY: the map is of a file, private and never written: a dropped page is read from the file again.
            // Failure means nothing.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) };
        }
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Map(map) => map,
            Bytes::Static(bytes) => bytes,
        }
    }
}
