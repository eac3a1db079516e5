//! Tensors as views of the file.

use std::ops::Range;
use std::sync::Arc;

use super::Inner;
use crate::Error;
use crate::quant::{GgmlType, dequantize_row};

/// One line of the file's tensor table.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: String,
    /// Element type.
    pub ty: GgmlType,
    /// Shape in GGUF order: `dims[0]` is contiguous. Trailing ones are removed, but one dimension always stays; none
    /// is zero.
    pub dims: Vec<usize>,
    /// Where the data lies in the file, in bytes; checked against the file's length.
    pub(super) range: Range<usize>,
}

impl TensorInfo {
    /// Size of the data in bytes.
    pub fn n_bytes(&self) -> usize {
        self.range.len()
    }

    /// Number of elements.
    pub fn n_elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// A tensor of an open file: a cheap handle that keeps the file open and borrows its bytes.
///
/// As a matrix it has [`n_rows`](Self::n_rows) contiguous rows of [`n_cols`](Self::n_cols) elements.
#[derive(Clone)]
pub struct Tensor {
    file: Arc<Inner>,
    index: usize,
}

impl Tensor {
    pub(super) fn new(file: Arc<Inner>, index: usize) -> Self {
        Self { file, index }
    }

    /// Name in the file.
    pub fn name(&self) -> &str {
        &self.info().name
    }

    /// Element type.
    pub fn ty(&self) -> GgmlType {
        self.info().ty
    }

    /// Shape in GGUF order, `dims[0]` contiguous.
    pub fn dims(&self) -> &[usize] {
        &self.info().dims
    }

    /// Product of `dims[1..]`.
    pub fn n_rows(&self) -> usize {
        self.dims()[1..].iter().product()
    }

    /// Elements per row, `dims[0]`.
    pub fn n_cols(&self) -> usize {
        self.dims()[0]
    }

    /// The raw blocks `[n_rows][row_bytes]`, borrowed from the file.
    pub fn data(&self) -> &[u8] {
        &self.file.bytes[self.info().range.clone()]
    }

    /// The raw blocks of row `r` `[row_bytes]`.
    ///
    /// # Panics
    /// If `r >= n_rows()`.
    pub fn row(&self, r: usize) -> &[u8] {
        let row_bytes = self.row_bytes();
        assert!(r < self.n_rows(), "row {r} of tensor {} with {} rows", self.name(), self.n_rows());
        &self.data()[r * row_bytes..][..row_bytes]
    }

    /// Tells the system that the data will not be read again soon: its pages leave memory, and come back from the file
    /// if they are read after all.
    pub fn release(&self) {
        self.file.bytes.release(self.info().range.clone());
    }

    /// All elements as f32 `[n_rows][n_cols]`. Meant for small tensors such as norms and biases.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.info().n_elements()];
        dequantize_row(self.ty(), self.data(), &mut out);
        out
    }

    /// Checks the shape, in GGUF order; trailing ones do not count.
    ///
    /// # Errors
    /// [`Error::Tensor`] with both shapes.
    pub fn expect_dims(&self, dims: &[usize]) -> Result<(), Error> {
        if without_trailing_ones(dims) == without_trailing_ones(self.dims()) {
            return Ok(());
        }
        Err(self.error(format!("shape {:?}, expected {dims:?}", self.dims())))
    }

    /// An error about this tensor.
    pub fn error(&self, what: String) -> Error {
        Error::Tensor { file: self.file.name.to_string(), tensor: self.name().to_owned(), what }
    }

    fn row_bytes(&self) -> usize {
        // The range was sized as rows * row_bytes when the file was opened.
        self.info().range.len() / self.n_rows()
    }

    fn info(&self) -> &TensorInfo {
        &self.file.tensors[self.index]
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({} {} {:?})", self.name(), self.ty(), self.dims())
    }
}

pub(super) fn without_trailing_ones(dims: &[usize]) -> &[usize] {
    let len = dims.iter().rposition(|&d| d != 1).map_or(1, |last| last + 1);
    &dims[..len.min(dims.len())]
}
