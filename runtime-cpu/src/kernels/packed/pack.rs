//! From ggml's blocks to panels.

use super::{Layout, Line};
use crate::kernels::{PANEL_ROWS, WeightRows};
use crate::quant::GgmlType;

/// Repacks up to 16 rows. Missing rows become zeros: their scales are.
pub(super) fn panel(w: WeightRows<'_>, to: &mut [Line]) {
    macro_rules! of {
        ($($name:ident)*) => {
            match w.ty {
                $(GgmlType::$name => panel_of(GgmlType::$name, w, bytes(to)),)*
                GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => unreachable!("float weights are not packed"),
            }
        };
    }
    of!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS)
}

/// As [`panel`], of a format that the compiler knows: a model has a million blocks for each 32 MB.
#[inline(always)]
fn panel_of(ty: GgmlType, w: WeightRows<'_>, to: &mut [u8]) {
    let l = Layout::of(ty);
    if w.n_rows() < PANEL_ROWS {
        to.fill(0);
    }
    for r in 0..w.n_rows() {
        let row = &w.data[r * w.row_bytes..(r + 1) * w.row_bytes];
        let blocks = row.chunks_exact(ty.block_bytes());
        for (from, to) in blocks.zip(to.chunks_exact_mut(l.block_bytes())) {
            let (header, records) = to.split_at_mut(l.header_bytes());
            let at = scale_at(ty);
            if l.codes {
                put(header, r, &from[at..at + 2]);
            }
            if l.codes && l.min {
                // The min is subtracted: its sign goes to the half.
                put(header, PANEL_ROWS + r, &[from[at + 2], from[at + 3] ^ 0x80]);
            }
            for (g, record) in records.chunks_exact_mut(l.record_bytes()).enumerate() {
                let (quants, rest) = record.split_at_mut(l.group_bytes());
                let (scales, mins) = rest.split_at_mut(l.scale_bytes());
                put_quants(l.bits, quads(ty, from, g), &mut quants[4 * r..]);
                match (l.codes, l.min) {
                    (false, min) => {
                        put(scales, r, &from[..2]);
                        if min {
                            put(mins, r, &from[2..4]);
                        }
                    }
                    (true, min) => {
                        for h in 0..l.n_halves() {
                            let i = g * l.n_halves() + h;
                            scales[h * PANEL_ROWS + r] = scale_code(ty, from, i) as u8;
                            if min {
                                mins[h * PANEL_ROWS + r] = min_code(ty, from, i);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The lines as one slice.
fn bytes(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: a line is 64 bytes without padding; every bit pattern is valid.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

#[inline(always)]
fn put(to: &mut [u8], half: usize, value: &[u8]) {
    to[2 * half..2 * half + 2].copy_from_slice(value);
}

/// Writes 32 quants of a row: `to` begins at the row's place in the group's first line.
#[inline(always)]
fn put_quants(bits: usize, q: [u32; 8], to: &mut [u8]) {
    let mut put = |line: usize, v: u32| to[64 * line..64 * line + 4].copy_from_slice(&v.to_le_bytes());
    if bits == 8 {
        q.into_iter().enumerate().for_each(|(j, q)| put(j, q));
        return;
    }
    for j in 0..4 {
        put(j, (q[j] & 0x0f0f_0f0f) | ((q[j + 4] & 0x0f0f_0f0f) << 4));
    }
    if bits == 5 {
        put(4, (0..8).fold(0, |v, j| v | ((q[j] >> 4) & 0x0101_0101) << j));
    }
    if bits == 6 {
        for u in 0..2 {
            put(4 + u, (0..4).fold(0, |v, j| v | ((q[4 * u + j] >> 4) & 0x0303_0303) << (2 * j)));
        }
    }
}

/// The quants of a group, unsigned bytes in the order of their columns.
#[inline(always)]
fn quads(ty: GgmlType, b: &[u8], g: usize) -> [u32; 8] {
    match ty {
        GgmlType::Q4_0 => nibbles(&b[2..]),
        GgmlType::Q4_1 => nibbles(&b[4..]),
        GgmlType::IQ4_NL => nibbles(&b[2..]),
        GgmlType::IQ4_XS => nibbles(&b[8 + 16 * g..]),
        GgmlType::Q5_0 => with_fifth(nibbles(&b[6..]), word(&b[2..])),
        GgmlType::Q5_1 => with_fifth(nibbles(&b[8..]), word(&b[4..])),
        GgmlType::Q8_0 => std::array::from_fn(|j| word(&b[2 + 4 * j..]) ^ 0x8080_8080),
        GgmlType::Q2_K => std::array::from_fn(|j| two_bits(&b[16..], g, j)),
        GgmlType::Q3_K => std::array::from_fn(|j| two_bits(&b[32..], g, j) | one_bit(b, g, j) << 2),
        GgmlType::Q4_K => std::array::from_fn(|j| nibble_plane(&b[16 + 32 * (g / 2)..], g % 2, j)),
        GgmlType::Q5_K => {
            std::array::from_fn(|j| nibble_plane(&b[48 + 32 * (g / 2)..], g % 2, j) | one_bit(&b[16..], g, j) << 4)
        }
        GgmlType::Q6_K => {
            let (h, s) = (g / 4, g % 4);
            std::array::from_fn(|j| {
                let low = nibble_plane(&b[64 * h + 32 * (s % 2)..], s / 2, j);
                low | ((word(&b[128 + 32 * h + 4 * j..]) >> (2 * s)) & 0x0303_0303) << 4
            })
        }
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => unreachable!("float weights are not packed"),
    }
}

/// Where the half of the scales lies in a 256-value block; that of the mins follows it.
#[inline(always)]
fn scale_at(ty: GgmlType) -> usize {
    match ty {
        GgmlType::Q2_K => 80,
        GgmlType::Q3_K => 108,
        GgmlType::Q6_K => 208,
        _ => 0,
    }
}

/// Factor of the half for the i-th scale of a 256-value block.
fn scale_code(ty: GgmlType, b: &[u8], i: usize) -> i8 {
    use crate::kernels::scalar::{k4_codes, q3_scale};
    match ty {
        GgmlType::Q2_K => (b[i] & 15) as i8,
        GgmlType::Q3_K => q3_scale(&b[96..108], i),
        GgmlType::Q6_K => b[192 + i] as i8,
        GgmlType::IQ4_XS => {
            let low = (b[4 + i / 2] >> (4 * (i % 2))) & 15;
            let high = (u16::from_le_bytes([b[2], b[3]]) >> (2 * i)) & 3;
            (low | (high as u8) << 4) as i8 - 32
        }
        _ => k4_codes(&b[4..16], i).0 as i8,
    }
}

/// Factor of the half for the i-th min of a 256-value block.
fn min_code(ty: GgmlType, b: &[u8], i: usize) -> u8 {
    if ty == GgmlType::Q2_K { b[i] >> 4 } else { crate::kernels::scalar::k4_codes(&b[4..16], i).1 }
}

#[inline(always)]
fn word(b: &[u8]) -> u32 {
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

/// Low nibbles of 16 bytes, then their high nibbles.
#[inline(always)]
fn nibbles(b: &[u8]) -> [u32; 8] {
    std::array::from_fn(|j| (word(&b[4 * (j % 4)..]) >> (4 * (j / 4))) & 0x0f0f_0f0f)
}

/// Low or high nibbles of four bytes.
#[inline(always)]
fn nibble_plane(b: &[u8], high: usize, j: usize) -> u32 {
    (word(&b[4 * j..]) >> (4 * high)) & 0x0f0f_0f0f
}

#[inline(always)]
fn two_bits(b: &[u8], g: usize, j: usize) -> u32 {
    (word(&b[32 * (g / 4) + 4 * j..]) >> (2 * (g % 4))) & 0x0303_0303
}

#[inline(always)]
fn one_bit(b: &[u8], g: usize, j: usize) -> u32 {
    (word(&b[4 * j..]) >> g) & 0x0101_0101
}

/// Adds bit j of `bits` to quant j as its fifth.
#[inline(always)]
fn with_fifth(q: [u32; 8], bits: u32) -> [u32; 8] {
    std::array::from_fn(|j| {
        let four = bits >> (4 * j);
        q[j] | (four & 1) << 4 | (four & 2) << 11 | (four & 4) << 18 | (four & 8) << 25
    })
}
