//! Projector files for tests: one that exists, changed and written again.

#![allow(dead_code)] // every test takes its own part

use std::collections::BTreeMap;
use std::path::Path;

use ecokv::gguf::{GgufFile, Value};
use ecokv::quant::GgmlType;

/// The contents of a projector file, for changing and writing again.
pub struct Mmproj {
    pub keys: BTreeMap<String, Value>,
    pub tensors: Vec<RawTensor>,
}

#[derive(Clone)]
pub struct RawTensor {
    pub name: String,
    pub ty: GgmlType,
    pub dims: Vec<usize>,
    pub data: Vec<u8>,
}

impl Mmproj {
    /// That of a folder in `testdata/models/`.
    pub fn of(folder: &str) -> Mmproj {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models");
        let file = GgufFile::open(&models.join(folder).join("mmproj-f32.gguf")).unwrap();
        let keys = file.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        let raw = |name: &str| {
            let t = file.tensor(name).unwrap();
            RawTensor { name: name.to_owned(), ty: t.ty(), dims: t.dims().to_vec(), data: t.data().to_vec() }
        };
        Mmproj { keys, tensors: file.tensors().map(|t| raw(&t.name)).collect() }
    }

    pub fn set(&mut self, key: &str, value: Value) {
        self.keys.insert(key.to_owned(), value);
    }

    pub fn tensor(&mut self, name: &str) -> &mut RawTensor {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }

    pub fn remove_tensor(&mut self, name: &str) {
        self.tensors.retain(|t| t.name != name);
    }

    pub fn build(&self) -> GgufFile {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            put_str(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0;
        for t in &self.tensors {
            put_str(&mut out, &t.name);
            out.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|&d| out.extend((d as u64).to_le_bytes()));
            out.extend(t.ty.id().to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += t.data.len().next_multiple_of(32);
        }
        for t in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(&t.data);
        }
        GgufFile::from_static("test.gguf", out.leak()).unwrap()
    }
}

impl RawTensor {
    /// Keeps the first `n` of the last dimension.
    pub fn cut_to(&mut self, n: usize) {
        let last = self.dims.last_mut().unwrap();
        self.data.truncate(self.data.len() / *last * n);
        *last = n;
    }
}

fn put_str(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut tag = |id: u32| out.extend(id.to_le_bytes());
    match value {
        Value::Int(i) if *i < 0 => {
            tag(5);
            out.extend((*i as i32).to_le_bytes());
        }
        Value::Int(i) => {
            tag(4);
            out.extend((*i as u32).to_le_bytes());
        }
        Value::F32(x) => {
            tag(6);
            out.extend(x.to_le_bytes());
        }
        Value::Bool(b) => {
            tag(7);
            out.push(u8::from(*b));
        }
        Value::Str(s) => {
            tag(8);
            put_str(out, s);
        }
        Value::Ints(v) => {
            tag(9);
            tag(5);
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|i| out.extend((*i as i32).to_le_bytes()));
        }
        Value::Floats(v) => {
            tag(9);
            tag(6);
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|x| out.extend((*x as f32).to_le_bytes()));
        }
        other => panic!("{other} is not used in these files"),
    }
}
