//! Builds GGUF files that hold metadata only, and finds those of `testdata/`.

use ecokv::gguf::GgufFile;
use std::path::PathBuf;

/// A metadata value, written as its GGUF type.
#[allow(dead_code)] // every test binary uses its own part
#[derive(Clone)]
pub enum Value {
    U32(u32),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
}

/// A version 3 file without tensors.
pub fn vocab_file(entries: &[(&str, Value)]) -> GgufFile {
    GgufFile::from_static("test.gguf", Box::leak(vocab_bytes(entries).into_boxed_slice())).expect("a well-formed file")
}

/// The bytes of [`vocab_file`].
pub fn vocab_bytes(entries: &[(&str, Value)]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend((entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        put_str(&mut bytes, key);
        match value {
            Value::U32(x) => put(&mut bytes, 4, x.to_le_bytes()),
            Value::Bool(x) => put(&mut bytes, 7, [u8::from(*x)]),
            Value::Str(x) => {
                put(&mut bytes, 8, []);
                put_str(&mut bytes, x);
            }
            Value::Strs(x) => {
                put_array(&mut bytes, 8, x.len());
                x.iter().for_each(|s| put_str(&mut bytes, s));
            }
            Value::I32s(x) => {
                put_array(&mut bytes, 5, x.len());
                x.iter().for_each(|i| bytes.extend(i.to_le_bytes()));
            }
            Value::F32s(x) => {
                put_array(&mut bytes, 6, x.len());
                x.iter().for_each(|f| bytes.extend(f.to_le_bytes()));
            }
        }
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes
}

/// A file of `testdata/`.
#[allow(dead_code)]
pub fn testdata(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(name)
}

fn put<const N: usize>(bytes: &mut Vec<u8>, ty: u32, value: [u8; N]) {
    bytes.extend(ty.to_le_bytes());
    bytes.extend(value);
}

fn put_array(bytes: &mut Vec<u8>, ty: u32, len: usize) {
    put(bytes, 9, ty.to_le_bytes());
    bytes.extend((len as u64).to_le_bytes());
}

fn put_str(bytes: &mut Vec<u8>, s: &str) {
    bytes.extend((s.len() as u64).to_le_bytes());
    bytes.extend(s.as_bytes());
}
