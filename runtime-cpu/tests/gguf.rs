//! Good GGUF files: a real one against what transformers wrote about the same model, small ones against their bytes.

mod gguf_bytes;

use std::path::PathBuf;

use ecokv::Error;
use ecokv::gguf::{GgufFile, Value};
use ecokv::quant::GgmlType;
use gguf_bytes::{ARRAY, BOOL, F32, F64, Gguf, I32, STRING, U8, U32, U64, array, leak, string, u64s};
use safetensors::SafeTensors;

#[test]
fn real_file_has_the_model_s_shapes_and_numbers() {
    let file = GgufFile::open(&testdata("models/llama/model-f32.gguf")).unwrap();
    let m = file.metadata();
    assert_eq!(m.str("general.architecture").unwrap(), "llama");
    assert_eq!(m.u32("llama.embedding_length").unwrap(), 64);
    assert_eq!(m.u32("llama.feed_forward_length").unwrap(), 160);
    assert_eq!(m.f32("llama.attention.layer_norm_rms_epsilon").unwrap(), 1e-5);
    assert_eq!(m.u32_or_array("llama.attention.head_count", 3).unwrap(), [4, 4, 4]);
    assert!(m.bool("tokenizer.ggml.add_bos_token").unwrap());
    assert_eq!(m.str_array("tokenizer.ggml.tokens").unwrap().len(), 448);
    assert_eq!(m.f32_array("tokenizer.ggml.scores").unwrap().len(), 448);
    assert_eq!(m.i32_array("tokenizer.ggml.token_type").unwrap().len(), 448);
    assert_eq!(m.iter().count(), 22);

    assert_eq!(file.tensors().count(), 30);
    let gate = file.require("blk.2.ffn_gate.weight").unwrap();
    assert_eq!((gate.ty(), gate.dims(), gate.n_rows(), gate.n_cols()), (GgmlType::F32, &[64, 160][..], 160, 64));
    assert_eq!(gate.data().len(), 64 * 160 * 4);
    assert!(gate.expect_dims(&[64, 160, 1]).is_ok());
    let err = gate.expect_dims(&[160, 64]).unwrap_err().to_string();
    assert!(err.ends_with("tensor blk.2.ffn_gate.weight: shape [64, 160], expected [160, 64]"), "{err}");
    assert_eq!(file.require("output_norm.weight").unwrap().to_f32().len(), 64);

    // The first hidden state is the embedding rows of the prompt.
    let golden = std::fs::read(testdata("models/llama/golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&golden).unwrap();
    let ids = golden.tensor("input_ids").unwrap();
    let hidden = golden.tensor("hidden.0").unwrap();
    let embeddings = file.require("token_embd.weight").unwrap();
    let ids = ids.data().as_chunks().0.iter().map(|b| i32::from_le_bytes(*b) as usize);
    assert!(ids.len() > 4);
    for (id, expected) in ids.zip(hidden.data().chunks_exact(64 * 4)) {
        assert_eq!(embeddings.row(id), expected, "token {id}");
    }
}

#[test]
fn tensors_outlive_the_file_handle_and_cross_threads() {
    let path = testdata("models/llama/model-f32.gguf");
    let norm = GgufFile::open(&path).unwrap().require("output_norm.weight").unwrap();
    let here = norm.to_f32();
    let clone = norm.clone();
    let there = std::thread::spawn(move || clone.to_f32()).join().unwrap();
    assert_eq!(here, there);
}

#[test]
fn embedded_file_at_an_odd_address() {
    let good = Gguf::new().tensor("t", 0, &[2, 3], 0).tensor("u", 0, &[1, 1], 32).data(36).build();
    let mut shifted = vec![0u8];
    shifted.extend(&good);
    for start in 0..2 {
        let bytes = if start == 0 { leak(good.clone()) } else { &leak(shifted.clone())[1..] };
        let file = GgufFile::from_static("embedded", bytes).unwrap();
        let t = file.require("t").unwrap();
        assert_eq!(t.dims(), [2, 3]);
        assert_eq!(t.data(), (0..24).collect::<Vec<u8>>());
        assert_eq!(t.row(2), [16, 17, 18, 19, 20, 21, 22, 23]);
        let u = file.require("u").unwrap();
        assert_eq!((u.dims(), u.n_rows(), u.n_cols()), (&[1][..], 1, 1));
        assert_eq!(u.to_f32(), [f32::from_le_bytes([32, 33, 34, 35])]);
    }
}

#[test]
fn version_2_alignment_and_no_tensors_are_fine() {
    let aligned = Gguf::new().alignment(64).entry("general.alignment", U32, 64u32.to_le_bytes());
    let file = aligned.version(2u32.to_le_bytes()).tensor("t", 0, &[1], 64).data(68).build();
    let file = GgufFile::from_static("v2", leak(file)).unwrap();
    assert_eq!(file.require("t").unwrap().data(), [64, 65, 66, 67]);

    let vocabulary_only = GgufFile::from_static("v", leak(Gguf::new().entry("a", U8, [1]).build())).unwrap();
    assert_eq!(vocabulary_only.tensors().count(), 0);
    assert_eq!(GgufFile::from_static("nothing", leak(Gguf::new().build())).unwrap().metadata().iter().count(), 0);
}

#[test]
fn metadata_is_typed_and_errors_name_file_and_key() {
    let bytes = Gguf::new()
        .entry("u8", U8, [200])
        .entry("u64", U64, u64s(&[7]))
        .entry("big", U64, u64s(&[1 << 32]))
        .entry("minus", I32, (-1i32).to_le_bytes())
        .entry("single", F32, 0.1f32.to_le_bytes())
        .entry("double", F64, 0.5f64.to_le_bytes())
        .entry("yes", BOOL, [1])
        .entry("text", STRING, string("hi"))
        .entry("bytes", ARRAY, array(U8, 3, &[1, 2, 255]))
        .entry("big.array", ARRAY, array(U64, 1, &u64s(&[1 << 40])))
        .entry("layers", ARRAY, array(I32, 2, &[4, 0, 0, 0, 0, 0, 0, 0]))
        .entry("names", ARRAY, array(STRING, 2, &[string("a"), string("")].concat()))
        .entry("doubles", ARRAY, array(F64, 1, &0.25f64.to_le_bytes()))
        .build();
    let file = GgufFile::from_static("small", leak(bytes)).unwrap();
    let m = file.metadata();
    assert_eq!((m.u32("u8").unwrap(), m.u32("u64").unwrap()), (200, 7));
    assert_eq!((m.f32("single").unwrap(), m.f32("double").unwrap()), (0.1, 0.5));
    assert_eq!((m.bool("yes").unwrap(), m.str("text").unwrap()), (true, "hi"));
    assert_eq!(m.i32_array("bytes").unwrap(), [1, 2, 255]);
    assert_eq!(m.str_array("names").unwrap(), ["a", ""]);
    assert_eq!(m.f32_array("doubles").unwrap(), [0.25]);
    assert_eq!(m.u32_or_array("layers", 2).unwrap(), [4, 0]);
    assert_eq!(m.u32_or_array("u8", 3).unwrap(), [200; 3]);
    assert_eq!(m.opt_u32("absent").unwrap(), None);
    assert_eq!(m.opt_u32_or_array("absent", 2).unwrap(), None);
    assert!(m.contains("minus") && !m.contains("absent"));

    let says = |result: Result<(), Error>, key: &str, what: &str| match result {
        Err(Error::Metadata { file, key: k, what: w }) => assert_eq!((&*file, &*k, &*w), ("small", key, what)),
        other => panic!("{key}: {other:?}"),
    };
    says(m.u32("absent").map(drop), "absent", "missing");
    says(m.u32("big").map(drop), "big", "4294967296 is not an integer from 0 to 4294967295");
    says(m.opt_u32("minus").map(drop), "minus", "-1 is not an integer from 0 to 4294967295");
    says(m.opt_str("yes").map(drop), "yes", "true is not a string");
    says(m.f32("u8").map(drop), "u8", "200 is not a float");
    says(m.bool("u8").map(drop), "u8", "200 is not a boolean");
    says(m.str_array("bytes").map(drop), "bytes", "[3 integers] is not an array of strings");
    says(m.i32_array("big.array").map(drop), "big.array", "[1 integers] is not an array of 32-bit integers");
    says(m.f32_array("names").map(drop), "names", "[2 strings] is not an array of floats");
    says(m.u32_or_array("layers", 3).map(drop), "layers", "an array of 2 values for 3 layers");
    says(m.u32_or_array("u8", 4097).map(drop), "u8", "4097 layers, at most 4096 are supported");
    assert_eq!(m.iter().find(|(key, _)| *key == "single").unwrap().1, &Value::F32(0.1));

    let missing = file.require("blk.0.attn_q.weight").unwrap_err().to_string();
    assert_eq!(missing, "small: tensor blk.0.attn_q.weight: not among the 0 tensors of the file");
}

fn testdata(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata")).join(name)
}
