//! Recorded outputs of other implementations.

#![allow(dead_code)] // each test file takes what it needs

use std::collections::BTreeMap;
use std::path::PathBuf;

use safetensors::SafeTensors;

/// A file of recorded tensors: shape and values of each.
pub struct Golden(pub BTreeMap<String, (Vec<usize>, Vec<f32>)>);

impl Golden {
    pub fn load(path: &str) -> Golden {
        let bytes = std::fs::read(testdata(path)).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let values = |view: &safetensors::tensor::TensorView<'_>| -> Vec<f32> {
            let d = view.data();
            match view.dtype() {
                safetensors::Dtype::F32 => d.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
                safetensors::Dtype::I32 => {
                    d.chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()) as f32).collect()
                }
                safetensors::Dtype::U8 => d.iter().map(|&b| f32::from(b)).collect(),
                other => panic!("{other:?}"),
            }
        };
        Golden(file.tensors().into_iter().map(|(k, v)| (k, (v.shape().to_vec(), values(&v)))).collect())
    }

    pub fn get(&self, name: &str) -> &[f32] {
        &self.0[name].1
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.get(name).iter().map(|&v| v as u32).collect()
    }
}

pub fn testdata(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(path)
}

/// Largest difference over the largest value.
pub fn relative(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    got.iter().zip(want).fold(0.0_f32, |m, (g, w)| m.max((g - w).abs())) / largest
}

/// Channels in the file's order: the converter interleaves the halves of each key.
pub fn interleaved(rows: &[f32], d: usize) -> Vec<f32> {
    rows.chunks(d).flat_map(|r| (0..d).map(|c| r[c / 2 + (c % 2) * d / 2])).collect()
}
