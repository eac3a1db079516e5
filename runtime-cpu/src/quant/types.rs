//! Geometry of the block formats.

/// Element type of a tensor. Names and ids are ggml's.
///
/// A row is a sequence of blocks; a block holds [`block_len`](Self::block_len) elements in
/// [`block_bytes`](Self::block_bytes) bytes. Everything is little-endian.
#[allow(non_camel_case_types)]
#[allow(missing_docs, reason = "the names are the formats' own; `dequantize_row` describes each layout")]
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GgmlType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

impl GgmlType {
    /// Every supported type.
    pub const ALL: [GgmlType; 15] = [
        GgmlType::F32,
        GgmlType::F16,
        GgmlType::BF16,
        GgmlType::Q4_0,
        GgmlType::Q4_1,
        GgmlType::Q5_0,
        GgmlType::Q5_1,
        GgmlType::Q8_0,
        GgmlType::Q2_K,
        GgmlType::Q3_K,
        GgmlType::Q4_K,
        GgmlType::Q5_K,
        GgmlType::Q6_K,
        GgmlType::IQ4_NL,
        GgmlType::IQ4_XS,
    ];

    /// The type with this number in a GGUF tensor table; `None` if it is unknown or not supported.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.spec().0 == id)
    }

    /// The number that stands for this type in a GGUF tensor table.
    pub const fn id(self) -> u32 {
        self.spec().0
    }

    /// Elements per block: 1, 32 or 256.
    pub const fn block_len(self) -> usize {
        self.spec().1
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        self.spec().2
    }

    /// Bytes of a row of `n_cols` elements; `None` if `n_cols` is not a multiple of the block length or the size
    /// overflows.
    pub const fn row_bytes(self, n_cols: usize) -> Option<usize> {
        if !n_cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (n_cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Name as ggml prints it, upper case.
    pub const fn name(self) -> &'static str {
        self.spec().3
    }

    /// (id, elements per block, bytes per block, name)
    const fn spec(self) -> (u32, usize, usize, &'static str) {
        match self {
            GgmlType::F32 => (0, 1, 4, "F32"),
            GgmlType::F16 => (1, 1, 2, "F16"),
            GgmlType::BF16 => (30, 1, 2, "BF16"),
            GgmlType::Q4_0 => (2, 32, 18, "Q4_0"),
            GgmlType::Q4_1 => (3, 32, 20, "Q4_1"),
            GgmlType::Q5_0 => (6, 32, 22, "Q5_0"),
            GgmlType::Q5_1 => (7, 32, 24, "Q5_1"),
            GgmlType::Q8_0 => (8, 32, 34, "Q8_0"),
            GgmlType::Q2_K => (10, 256, 84, "Q2_K"),
            GgmlType::Q3_K => (11, 256, 110, "Q3_K"),
            GgmlType::Q4_K => (12, 256, 144, "Q4_K"),
            GgmlType::Q5_K => (13, 256, 176, "Q5_K"),
            GgmlType::Q6_K => (14, 256, 210, "Q6_K"),
            GgmlType::IQ4_NL => (20, 32, 18, "IQ4_NL"),
            GgmlType::IQ4_XS => (23, 256, 136, "IQ4_XS"),
        }
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
