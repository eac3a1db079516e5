//! Recorded tensors.

use safetensors::{Dtype, SafeTensors};

/// A file of `testdata/`.
pub struct Golden(Vec<u8>);

impl Golden {
    pub fn open(path: &str) -> Self {
        Self(std::fs::read(file(path)).unwrap())
    }

    pub fn f32s(&self, name: &str) -> Vec<f32> {
        let t = self.tensor(name, Dtype::F32);
        t.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        self.tensor(name, Dtype::U8).to_vec()
    }

    fn tensor(&self, name: &str, dtype: Dtype) -> &[u8] {
        let all = SafeTensors::deserialize(&self.0).unwrap();
        let t = all.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(t.dtype(), dtype, "{name}");
        t.data()
    }
}

pub fn file(path: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(path)
}
