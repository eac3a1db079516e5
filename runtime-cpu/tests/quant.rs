//! Dequantisation against blocks and numbers written by ggml itself (`testdata/quants.safetensors`).

use std::collections::HashMap;

use ecokv::quant::{GgmlType, dequantize_row};
use safetensors::SafeTensors;

const N_ROWS: usize = 3;
const N_COLS: usize = 512;

#[test]
fn every_block_format_gives_ggml_s_bits() {
    let file = golden_file();
    let golden = SafeTensors::deserialize(&file).unwrap();
    for ty in GgmlType::ALL.into_iter().filter(|&ty| ty != GgmlType::F32) {
        let raw = golden.tensor(&format!("{ty}.raw")).unwrap();
        let expected = floats(golden.tensor(&format!("{ty}.deq")).unwrap().data());
        let row_bytes = ty.row_bytes(N_COLS).unwrap();
        assert_eq!(raw.shape(), [N_ROWS, row_bytes], "{ty}");
        assert_eq!(expected.len(), N_ROWS * N_COLS, "{ty}");
        let mut row = [0.0; N_COLS];
        let mut different = 0;
        for (raw, expected) in raw.data().chunks_exact(row_bytes).zip(expected.chunks_exact(N_COLS)) {
            dequantize_row(ty, raw, &mut row);
            different += row.iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        }
        assert_eq!(different, 0, "{ty}: values with other bits than ggml's, of {}", N_ROWS * N_COLS);
    }
}

#[test]
fn f32_passes_through() {
    let values = [0.0, -0.0, 1.5, f32::MIN_POSITIVE / 2.0, f32::INFINITY, -3.25];
    let bytes: Vec<u8> = values.iter().flat_map(|v| f32::to_le_bytes(*v)).collect();
    let mut out = [9.0; 6];
    dequantize_row(GgmlType::F32, &bytes, &mut out);
    assert_eq!(out.map(f32::to_bits), values.map(f32::to_bits));
}

/// Rows are slices of a file at any address: the odd ones must work too.
#[test]
fn rows_need_no_alignment() {
    let file = golden_file();
    let golden = SafeTensors::deserialize(&file).unwrap();
    for ty in GgmlType::ALL.into_iter().filter(|&ty| ty != GgmlType::F32) {
        let raw = golden.tensor(&format!("{ty}.raw")).unwrap();
        let raw = &raw.data()[..ty.row_bytes(N_COLS).unwrap()];
        let mut shifted = vec![0; 1];
        shifted.extend_from_slice(raw);
        let (mut a, mut b) = ([0.0; N_COLS], [0.0; N_COLS]);
        dequantize_row(ty, raw, &mut a);
        dequantize_row(ty, &shifted[1..], &mut b);
        assert_eq!(a.map(f32::to_bits), b.map(f32::to_bits), "{ty}");
    }
}

#[test]
fn geometry_is_ggml_s() {
    let file = golden_file();
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    let metadata = header.metadata().clone().unwrap();
    for ty in GgmlType::ALL.into_iter().filter(|&ty| ty != GgmlType::F32) {
        let facts: HashMap<&str, &str> =
            metadata[ty.name()].split_whitespace().filter_map(|fact| fact.split_once('=')).collect();
        assert_eq!(facts["id"], ty.id().to_string(), "{ty}");
        assert_eq!(facts["block"], ty.block_len().to_string(), "{ty}");
        assert_eq!(facts["bytes"], ty.block_bytes().to_string(), "{ty}");
        assert_eq!(GgmlType::from_id(ty.id()), Some(ty));
    }
    assert_eq!((GgmlType::F32.id(), GgmlType::F32.block_len(), GgmlType::F32.block_bytes()), (0, 1, 4));
    for foreign in [4, 5, 9, 15, 16, 24, 31, 36, 39, u32::MAX] {
        assert_eq!(GgmlType::from_id(foreign), None);
    }
}

#[test]
fn row_bytes_refuses_broken_blocks_and_overflow() {
    assert_eq!(GgmlType::Q4_K.row_bytes(512), Some(288));
    assert_eq!(GgmlType::Q4_K.row_bytes(576), None);
    assert_eq!(GgmlType::Q8_0.row_bytes(576), Some(612));
    assert_eq!(GgmlType::Q8_0.row_bytes(0), Some(0));
    assert_eq!(GgmlType::F32.row_bytes(usize::MAX), None);
}

fn golden_file() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/quants.safetensors")).unwrap()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}
