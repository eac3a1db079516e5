//! Good GGUF files: a real one against what transformers wrote about the same model, small ones against their bytes.

mod gguf_bytes;

use std::path::PathBuf;

use ecokv::Error;
use ecokv::gguf::{GgufFile, LanguageSummary, ModelSummary, ProjectorSummary, Summary, TypeUse, Value};
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

/// The numbers are the Python `gguf` package's and the model's configuration.
#[test]
fn summary_of_a_language_model() {
    let (summary, model) = language("models/llama/model-f32.gguf");
    assert_eq!((summary.architecture.as_str(), summary.name.as_deref()), ("llama", Some("llama")));
    assert_eq!((summary.n_tensors, summary.n_parameters, summary.tensor_bytes), (30, 186_816, 747_264));
    assert_eq!(summary.file_bytes, 759_232);
    let f32_only = TypeUse { ty: GgmlType::F32, n_tensors: 30, n_parameters: 186_816, n_bytes: 747_264 };
    assert_eq!(summary.types, [f32_only]);
    assert_eq!((model.n_layers, model.n_embd, model.context_length), (Some(3), Some(64), Some(4096)));
    assert_eq!((model.n_ff, model.n_heads, model.n_kv_heads), (Some(vec![160; 3]), Some(vec![4; 3]), Some(vec![2; 3])));
    assert_eq!((model.key_length, model.value_length), (Some(16), Some(16)));
    assert_eq!((model.vocab_size, model.rope_freq_base, model.tied_head), (Some(448), Some(10000.0), false));
    // 3 layers, 2 heads, 16 + 16 elements of 4 bytes.
    assert_eq!((model.kv_bytes_per_token_f32, model.kv_bytes_per_token_f16), (Some(768), Some(384)));
}

#[test]
fn summary_counts_every_type() {
    let (summary, _) = language("models/llama-mixedq/model.gguf");
    assert_eq!((summary.n_tensors, summary.n_parameters, summary.tensor_bytes), (21, 1_017_088, 797_568));
    assert_eq!(summary.types.len(), 15);
    let of = |ty| summary.types.iter().find(|u| u.ty == ty).map(|u| (u.n_tensors, u.n_parameters, u.n_bytes)).unwrap();
    assert_eq!(summary.types[0].ty, GgmlType::Q8_0);
    assert_eq!(of(GgmlType::Q8_0), (2, 147_456, 156_672));
    assert_eq!(of(GgmlType::Q6_K), (2, 180_224, 147_840));
    assert_eq!(of(GgmlType::F32), (5, 1280, 5120));
    assert_eq!(of(GgmlType::Q3_K), (1, 65_536, 28_160));
    assert_eq!(of(GgmlType::IQ4_XS), (1, 65_536, 34_816));
    assert_eq!(of(GgmlType::BF16), (1, 32_768, 65_536));
}

#[test]
fn summary_of_a_projector() {
    let file = GgufFile::open(&testdata("models/llava15/mmproj-f32.gguf")).unwrap();
    let summary = Summary::new(&file).unwrap();
    assert_eq!((summary.architecture.as_str(), summary.n_tensors, summary.n_parameters), ("clip", 57, 74_352));
    let ModelSummary::Projector(p) = summary.model else { panic!("{:?}", summary.model) };
    let ProjectorSummary { projector_type, image_size, patch_size, n_layers, n_embd, n_ff, n_heads, projection_width } =
        p;
    assert_eq!(projector_type.as_deref(), Some("mlp"));
    assert_eq!((image_size, patch_size, n_layers, n_embd, n_heads), (Some(32), Some(8), Some(3), Some(48), Some(3)));
    // This file has the feed-forward names swapped; its language model is 64 wide.
    assert_eq!((n_ff, projection_width), (Some(96), Some(64)));
}

#[test]
fn summary_of_unusual_and_odd_metadata() {
    let base = || Gguf::new().entry("general.architecture", STRING, string("x"));
    let u = |n: u32| n.to_le_bytes();
    let summary = |file: Gguf| Summary::new(&GgufFile::from_static("odd", leak(file.build())).unwrap());
    let language = |file: Gguf| match summary(file).unwrap().model {
        ModelSummary::Language(model) => model,
        other => panic!("{other:?}"),
    };

    let bare = language(base());
    assert!(bare.n_layers.is_none() && bare.kv_bytes_per_token_f32.is_none() && !bare.tied_head);

    let heads = array(U32, 3, &[u(2), u(0), u(1)].concat());
    let per_layer = || {
        base().entry("x.block_count", U32, u(3)).entry("x.attention.head_count", U32, u(8)).entry(
            "x.attention.head_count_kv",
            ARRAY,
            &heads,
        )
    };
    let model =
        language(per_layer().entry("x.embedding_length", U32, u(40)).entry("x.attention.value_length", U32, u(3)));
    assert_eq!((model.key_length, model.value_length), (Some(5), Some(3)));
    assert_eq!((model.kv_bytes_per_token_f32, model.kv_bytes_per_token_f16), (Some(3 * 8 * 4), Some(3 * 8 * 2)));

    let no_heads = base().entry("x.block_count", U32, u(1)).entry("x.embedding_length", U32, u(40));
    let model = language(no_heads.entry("x.attention.head_count", U32, u(0)));
    assert_eq!((model.key_length, model.kv_bytes_per_token_f32), (None, None));

    let says = |file: Gguf, text: &str| assert_eq!(summary(file).unwrap_err().to_string(), text);
    says(Gguf::new(), "odd: metadata key general.architecture: missing");
    let huge = base().entry("x.block_count", U32, u(u32::MAX)).entry("x.attention.head_count", U32, u(1));
    says(huge, "odd: metadata key x.attention.head_count: 4294967295 layers, at most 4096 are supported");
    let wide = base()
        .entry("x.block_count", U32, u(4096))
        .entry("x.attention.head_count", U32, u(u32::MAX))
        .entry("x.attention.key_length", U32, u(u32::MAX))
        .entry("x.attention.value_length", U32, u(u32::MAX));
    says(wide, "odd: metadata key x.attention.head_count_kv: the cache's size overflows");
}

fn language(name: &str) -> (Summary, LanguageSummary) {
    let summary = Summary::new(&GgufFile::open(&testdata(name)).unwrap()).unwrap();
    match summary.model.clone() {
        ModelSummary::Language(model) => (summary, model),
        other => panic!("{other:?}"),
    }
}

fn testdata(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata")).join(name)
}
