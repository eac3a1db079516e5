//! Scalar dequantisation: the readable definition of every block format, and the reference for faster kernels.

use half::{bf16, f16};

use super::GgmlType;

/// Writes the `out.len()` elements of one row to `out`.
///
/// Shapes: `row` `[row_bytes(n_cols)]`, `out` `[n_cols]` with `n_cols` a multiple of the type's block length. Checked in
/// debug builds; otherwise only the whole blocks that both sides hold are written.
///
/// Numerics: every product and sum is rounded to f32 on its own (no fused multiply-add), in ggml's order.
pub fn dequantize_row(ty: GgmlType, row: &[u8], out: &mut [f32]) {
    debug_assert_eq!(Some(row.len()), ty.row_bytes(out.len()), "{ty} row of {} elements", out.len());
    match ty {
        GgmlType::F32 => each(row, out, |b, [y]: &mut [f32; 1]| *y = f32::from_le_bytes(*b)),
        GgmlType::F16 => each(row, out, |b, [y]: &mut [f32; 1]| *y = f16::from_le_bytes(*b).to_f32()),
        GgmlType::BF16 => each(row, out, |b, [y]: &mut [f32; 1]| *y = bf16::from_le_bytes(*b).to_f32()),
        GgmlType::Q4_0 => each(row, out, q4_0),
        GgmlType::Q4_1 => each(row, out, q4_1),
        GgmlType::Q5_0 => each(row, out, q5_0),
        GgmlType::Q5_1 => each(row, out, q5_1),
        GgmlType::Q8_0 => each(row, out, q8_0),
        GgmlType::Q2_K => each(row, out, q2_k),
        GgmlType::Q3_K => each(row, out, q3_k),
        GgmlType::Q4_K => each(row, out, q4_k),
        GgmlType::Q5_K => each(row, out, q5_k),
        GgmlType::Q6_K => each(row, out, q6_k),
        GgmlType::IQ4_NL => each(row, out, iq4_nl),
        GgmlType::IQ4_XS => each(row, out, iq4_xs),
    }
}

/// Applies `block` to each block of `B` bytes and its `N` elements.
fn each<const B: usize, const N: usize>(row: &[u8], out: &mut [f32], block: impl Fn(&[u8; B], &mut [f32; N])) {
    let (blocks, _) = row.as_chunks::<B>();
    let (outs, _) = out.as_chunks_mut::<N>();
    for (b, y) in blocks.iter().zip(outs) {
        block(b, y);
    }
}

/// d f16, qs[16]: `d * (q - 8)`; element j is the low nibble of qs[j], element j + 16 the high one.
fn q4_0(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for j in 0..16 {
        y[j] = d * (f32::from(b[2 + j] & 15) - 8.0);
        y[j + 16] = d * (f32::from(b[2 + j] >> 4) - 8.0);
    }
}

/// d f16, m f16, qs[16]: `d * q + m`, nibbles as in Q4_0.
fn q4_1(b: &[u8; 20], y: &mut [f32; 32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for j in 0..16 {
        y[j] = d * f32::from(b[4 + j] & 15) + m;
        y[j + 16] = d * f32::from(b[4 + j] >> 4) + m;
    }
}

/// d f16, qh u32, qs[16]: `d * (q - 16)`; bit j of qh is bit 4 of element j.
fn q5_0(b: &[u8; 22], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    let qh = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
    for j in 0..16 {
        y[j] = d * (f32::from(b[6 + j] & 15 | fifth_bit(qh, j)) - 16.0);
        y[j + 16] = d * (f32::from(b[6 + j] >> 4 | fifth_bit(qh, j + 16)) - 16.0);
    }
}

/// d f16, m f16, qh u32, qs[16]: `d * q + m`, bits as in Q5_0.
fn q5_1(b: &[u8; 24], y: &mut [f32; 32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    let qh = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    for j in 0..16 {
        y[j] = d * f32::from(b[8 + j] & 15 | fifth_bit(qh, j)) + m;
        y[j + 16] = d * f32::from(b[8 + j] >> 4 | fifth_bit(qh, j + 16)) + m;
    }
}

/// d f16, i8[32]: `d * q`.
fn q8_0(b: &[u8; 34], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for j in 0..32 {
        y[j] = d * f32::from(b[2 + j].cast_signed());
    }
}

/// scales[16], qs[64], d f16, dmin f16: sub-blocks of 16, `d * (s & 15) * q - dmin * (s >> 4)`.
fn q2_k(b: &[u8; 84], y: &mut [f32; 256]) {
    let (d, dmin) = (half_at(b, 80), half_at(b, 82));
    for (i, y) in y.iter_mut().enumerate() {
        let s = b[i / 16];
        let scale = d * f32::from(s & 15);
        let min = dmin * f32::from(s >> 4);
        *y = scale * f32::from(two_bits(&b[16..80], i)) - min;
    }
}

/// hmask[32], qs[64], scales[12], d f16: sub-blocks of 16, `d * (s - 32) * (q - 4)`, q three bits wide.
fn q3_k(b: &[u8; 110], y: &mut [f32; 256]) {
    let d = half_at(b, 108);
    for (i, y) in y.iter_mut().enumerate() {
        let high = (b[i % 32] >> (i / 32) & 1) << 2;
        let q = two_bits(&b[32..96], i) | high;
        *y = d * (f32::from(scale_q3(&b[96..108], i / 16)) - 32.0) * (f32::from(q) - 4.0);
    }
}

/// d f16, dmin f16, scales[12], qs[128]: sub-blocks of 32, `d * s * q - dmin * m`.
fn q4_k(b: &[u8; 144], y: &mut [f32; 256]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    for (i, y) in y.iter_mut().enumerate() {
        let (s, m) = scale_min(&b[4..16], i / 32);
        *y = d * f32::from(s) * f32::from(nibble64(&b[16..144], i)) - dmin * f32::from(m);
    }
}

/// d f16, dmin f16, scales[12], qh[32], qs[128]: as Q4_K with a fifth bit; bit p of qh[j] belongs to element 32p + j.
fn q5_k(b: &[u8; 176], y: &mut [f32; 256]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    for (i, y) in y.iter_mut().enumerate() {
        let (s, m) = scale_min(&b[4..16], i / 32);
        let high = (b[16 + i % 32] >> (i / 32) & 1) << 4;
        let q = nibble64(&b[48..176], i) | high;
        *y = d * f32::from(s) * f32::from(q) - dmin * f32::from(m);
    }
}

/// ql[128], qh[64], scales i8[16], d f16: sub-blocks of 16, `d * s * (q - 32)`.
///
/// In half h, element `128h + 32p + j` has its low four bits in byte `64h + 32(p & 1) + j` of ql (high nibble from
/// p = 2 on) and its two high bits at bit 2p of byte `32h + j` of qh.
fn q6_k(b: &[u8; 210], y: &mut [f32; 256]) {
    let d = half_at(b, 208);
    for (i, y) in y.iter_mut().enumerate() {
        let (h, p, j) = (i / 128, i / 32 % 4, i % 32);
        let low = b[64 * h + 32 * (p & 1) + j] >> (4 * (p / 2)) & 15;
        let high = b[128 + 32 * h + j] >> (2 * p) & 3;
        let q = f32::from(low | high << 4) - 32.0;
        *y = d * f32::from(b[192 + i / 16].cast_signed()) * q;
    }
}

/// d f16, qs[16]: `d * IQ4[q]`, nibbles as in Q4_0.
fn iq4_nl(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for j in 0..16 {
        y[j] = d * iq4(b[2 + j] & 15);
        y[j + 16] = d * iq4(b[2 + j] >> 4);
    }
}

/// d f16, scales_h u16, scales_l[4], qs[128]: sub-blocks of 32, `d * (s - 32) * IQ4[q]`, each sub-block with its own 16
/// bytes of nibbles as in Q4_0.
fn iq4_xs(b: &[u8; 136], y: &mut [f32; 256]) {
    let d = half_at(b, 0);
    let scales_h = u16::from_le_bytes([b[2], b[3]]);
    for (sub, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = b[4 + sub / 2] >> (4 * (sub % 2)) & 15;
        let high = (scales_h >> (2 * sub) & 3) as u8;
        let d = d * (f32::from(low | high << 4) - 32.0);
        for j in 0..16 {
            let q = b[8 + 16 * sub + j];
            y[j] = d * iq4(q & 15);
            y[j + 16] = d * iq4(q >> 4);
        }
    }
}

fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

fn fifth_bit(qh: u32, j: usize) -> u8 {
    ((qh >> j & 1) as u8) << 4
}

/// Element `128h + 32p + j` of 64 packed bytes: bits 2p and 2p + 1 of byte `32h + j`.
fn two_bits(qs: &[u8], i: usize) -> u8 {
    qs[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3
}

/// Element `64g + j` of 128 packed bytes: low nibble of byte `32g + j`; element `64g + 32 + j`: its high nibble.
fn nibble64(qs: &[u8], i: usize) -> u8 {
    qs[32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 15
}

/// Six-bit scale `i` of 16 in Q3_K's 12 bytes, still biased by 32.
fn scale_q3(s: &[u8], i: usize) -> u8 {
    let low = s[i % 8] >> (4 * (i / 8)) & 15;
    let high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
    low | high << 4
}

/// Six-bit scale and minimum `i` of 8 in the 12 bytes of Q4_K and Q5_K.
fn scale_min(s: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        (s[i] & 63, s[i + 4] & 63)
    } else {
        (s[i + 4] & 15 | s[i - 4] >> 6 << 4, s[i + 4] >> 4 | s[i] >> 6 << 4)
    }
}

/// The non-linear four-bit grid of the IQ4 formats.
fn iq4(q: u8) -> f32 {
    const GRID: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    f32::from(GRID[usize::from(q & 15)])
}
