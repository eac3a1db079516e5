//! Writes GGUF files byte by byte, right and wrong ones, independently of any GGUF library.
#![allow(dead_code, reason = "each test program uses a part")]

/// Value types of metadata entries.
pub const U8: u32 = 0;
pub const I32: u32 = 5;
pub const U32: u32 = 4;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;
pub const F64: u32 = 12;

/// A file under construction. Counts and version may be overridden to lie.
pub struct Gguf {
    version: [u8; 4],
    n_tensors: Option<u64>,
    n_entries: Option<u64>,
    alignment: usize,
    data: Vec<u8>,
    entries: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
}

impl Gguf {
    pub fn new() -> Self {
        Self {
            version: 3u32.to_le_bytes(),
            n_tensors: None,
            n_entries: None,
            alignment: 32,
            data: Vec::new(),
            entries: Vec::new(),
            tensors: Vec::new(),
        }
    }

    pub fn version(mut self, bytes: [u8; 4]) -> Self {
        self.version = bytes;
        self
    }

    pub fn alignment(mut self, alignment: usize) -> Self {
        self.alignment = alignment;
        self
    }

    pub fn n_tensors(mut self, n: u64) -> Self {
        self.n_tensors = Some(n);
        self
    }

    pub fn n_entries(mut self, n: u64) -> Self {
        self.n_entries = Some(n);
        self
    }

    pub fn entry(self, key: &str, ty: u32, value: impl AsRef<[u8]>) -> Self {
        self.raw_entry(&[&string(key), &ty.to_le_bytes(), value.as_ref()])
    }

    pub fn raw_entry(mut self, parts: &[&[u8]]) -> Self {
        self.entries.push(parts.concat());
        self
    }

    pub fn tensor(self, name: &str, ty: u32, dims: &[u64], offset: u64) -> Self {
        self.raw_tensor(&[
            &string(name),
            &(dims.len() as u32).to_le_bytes(),
            &u64s(dims),
            &ty.to_le_bytes(),
            &offset.to_le_bytes(),
        ])
    }

    pub fn raw_tensor(mut self, parts: &[&[u8]]) -> Self {
        self.tensors.push(parts.concat());
        self
    }

    pub fn data(mut self, n_bytes: usize) -> Self {
        self.data = (0..n_bytes).map(|i| i as u8).collect();
        self
    }

    pub fn build(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(self.version);
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_entries.unwrap_or(self.entries.len() as u64).to_le_bytes());
        out.extend(self.entries.concat());
        out.extend(self.tensors.concat());
        if !self.data.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&self.data);
        }
        out
    }
}

pub fn string(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat()
}

pub fn array(ty: u32, n: u64, values: &[u8]) -> Vec<u8> {
    [&ty.to_le_bytes()[..], &n.to_le_bytes(), values].concat()
}

pub fn u64s(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The API that takes embedded files wants them to live for ever; tests may leak these few hundred bytes.
pub fn leak(bytes: Vec<u8>) -> &'static [u8] {
    Box::leak(bytes.into_boxed_slice())
}
