//! The ragged cache and its slots, read by attention, against float64 arithmetic.

use ecokv::cache::{Kept, KvCache, KvType, SlotRows, Staging};
use ecokv::ops::Compute;
use ecokv::ops::attention::{self, DecodeScratch, Mask};

const HEADS: usize = 2;
const GROUP: usize = 3;
const D: usize = 24;

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (s >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// `softmax(q . k + bias) v` in float64: `rows` are (key, value, bias).
fn attend(q: &[f32], rows: &[(&[f32], &[f32], f64)]) -> Vec<f64> {
    let dot = |k: &[f32]| q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let weights: Vec<f64> = rows.iter().map(|(k, _, bias)| (dot(k) + bias).exp()).collect();
    let sum: f64 = weights.iter().sum();
    (0..D).map(|c| rows.iter().zip(&weights).map(|((_, v, _), w)| w / sum * f64::from(v[c])).sum()).collect()
}

fn staged(cx: &Compute, n: usize) -> (Staging, Vec<f32>, Vec<f32>) {
    let (k, v) = (noise(n * HEADS * D, 1), noise(n * HEADS * D, 2));
    let mut staging = Staging::new(HEADS, D, n);
    staging.push(cx, &k, &v, &(0..n as u32).collect::<Vec<_>>());
    (staging, k, v)
}

fn row(x: &[f32], i: usize, h: usize) -> &[f32] {
    &x[(i * HEADS + h) * D..][..D]
}

#[test]
fn ragged_heads_are_read_and_grow() {
    let cx = Compute::new(2).unwrap();
    // More rows than one task of a decode step takes.
    let (staging, k, v) = staged(&cx, 600);
    let keep = [(0..600).step_by(2).collect::<Vec<u32>>(), vec![0, 7, 599]];
    let mut cache = KvCache::new(1, HEADS, D, KvType::F32);
    cache.layer_mut(0).fill(&cx, &staging, |h| Kept::Rows(keep[h].clone()), 0, &SlotRows::default());
    assert_eq!(cache.bytes(), (300 + 3) * (2 * D * 4 + 4));
    let (new_k, new_v) = (noise(HEADS * D, 5), noise(HEADS * D, 6));
    let layer = cache.layer_mut(0);
    layer.push(cx.dispatch, &new_k, &new_v, 600);
    assert_eq!((layer.len(0), layer.positions(1)), (301, &[0, 7, 599, 600][..]));
    let q = noise(HEADS * GROUP * D, 3);
    let mut out = vec![0.0; q.len()];
    attention::decode(&cx, &q, layer, 1.0, &mut DecodeScratch::default(), &mut out);
    for (j, (q, out)) in q.chunks(D).zip(out.chunks(D)).enumerate() {
        let h = j / GROUP;
        let mut rows: Vec<_> = keep[h].iter().map(|&i| (row(&k, i as usize, h), row(&v, i as usize, h), 0.0)).collect();
        rows.push((row(&new_k, 0, h), row(&new_v, 0, h), 0.0));
        for (got, want) in out.iter().zip(attend(q, &rows)) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "head {j}: {got}, {want}");
        }
    }
}

#[test]
fn a_slot_of_equal_entries_is_all_of_them() {
    let cx = Compute::new(2).unwrap();
    let (staging, k, v) = staged(&cx, 5);
    let mut slots = SlotRows::new(HEADS, 2, D);
    let (slot_k, slot_v) = (noise(HEADS * D, 7), noise(HEADS * D, 8));
    for h in 0..HEADS {
        // The second slot of each head stays empty.
        slots.keys[h * 2 * D..][..D].copy_from_slice(row(&slot_k, 0, h));
        slots.values[h * 2 * D..][..D].copy_from_slice(row(&slot_v, 0, h));
        slots.mass[h * 2] = 9.0;
    }
    let mut cache = KvCache::new(1, HEADS, D, KvType::F32);
    cache.layer_mut(0).fill(&cx, &staging, |_| Kept::Range(0..5), 4, &slots);
    let q = noise(HEADS * GROUP * D, 3);
    let mut out = vec![0.0; q.len()];
    attention::decode(&cx, &q, cache.layer(0), 1.0, &mut DecodeScratch::default(), &mut out);
    for (j, (q, out)) in q.chunks(D).zip(out.chunks(D)).enumerate() {
        let h = j / GROUP;
        let mut rows: Vec<_> = (0..5).map(|i| (row(&k, i, h), row(&v, i, h), 0.0)).collect();
        rows.extend((0..9).map(|_| (row(&slot_k, 0, h), row(&slot_v, 0, h), 0.0)));
        for (got, want) in out.iter().zip(attend(q, &rows)) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "head {j}: {got}, {want}");
        }
    }
}

#[test]
fn prefill_attention_equals_float64() {
    let cx = Compute::new(2).unwrap();
    let n = 150;
    let (staging, k, v) = staged(&cx, n);
    let q = noise(n * HEADS * GROUP * D, 3);
    for mask in [Mask::Causal, Mask::None] {
        let mut out = vec![0.0; q.len()];
        attention::prefill(&cx, &q, n, &staging, mask, 1.0, &mut out);
        for t in [0, 1, 31, 32, 63, 64, 65, 149] {
            for j in 0..HEADS * GROUP {
                let at = (t * HEADS * GROUP + j) * D;
                let seen = if mask == Mask::Causal { t + 1 } else { n };
                let rows: Vec<_> = (0..seen).map(|i| (row(&k, i, j / GROUP), row(&v, i, j / GROUP), 0.0)).collect();
                for (got, want) in out[at..at + D].iter().zip(attend(&q[at..at + D], &rows)) {
                    assert!((f64::from(*got) - want).abs() < 2e-6, "{mask:?} token {t} head {j}: {got}, {want}");
                }
            }
        }
    }
}

/// A row through ggml's Q8_0: the largest magnitude of 32 values becomes 127, the scale is rounded to half precision.
fn through_q8_0(row: &[f32]) -> Vec<f32> {
    let block = |x: &[f32]| {
        let max = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        let scale = half::f16::from_f32(max / 127.0).to_f32();
        x.iter().map(|v| scale * (v * (1.0 / (max / 127.0))).round()).collect::<Vec<_>>()
    };
    row.chunks(32).flat_map(block).collect()
}

#[test]
fn q8_0_rows_are_read_grow_and_come_back() {
    let (heads, d, n) = (2, 64, 200);
    let cx = Compute::new(2).unwrap();
    let (k, v) = (noise((n + 2) * heads * d, 1), noise((n + 2) * heads * d, 2));
    let mut staging = Staging::new(heads, d, n + 2);
    staging.push(&cx, &k[..n * heads * d], &v[..n * heads * d], &(0..n as u32).collect::<Vec<_>>());
    let mut cache = KvCache::new(1, heads, d, KvType::Q8_0);
    // No headroom: the first new row makes the layer grow.
    cache.layer_mut(0).fill(&cx, &staging, |_| Kept::Range(0..n as u32), 0, &SlotRows::default());
    let layer = cache.layer_mut(0);
    for t in n..n + 2 {
        let new = t * heads * d..(t + 1) * heads * d;
        layer.push(cx.dispatch, &k[new.clone()], &v[new], t as u32);
    }
    let rows = |x: &[f32], h: usize| -> Vec<Vec<f32>> {
        (0..n + 2).map(|t| through_q8_0(&x[(t * heads + h) * d..][..d])).collect()
    };
    let q = noise(heads * GROUP * d, 3);
    let mut out = vec![0.0; q.len()];
    attention::decode(&cx, &q, layer, 0.5, &mut DecodeScratch::default(), &mut out);
    for (j, (q, out)) in q.chunks(d).zip(out.chunks(d)).enumerate() {
        let (keys, values) = (rows(&k, j / GROUP), rows(&v, j / GROUP));
        let dot = |k: &[f32]| q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let weights: Vec<f64> = keys.iter().map(|k| (0.5 * dot(k)).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for (c, got) in out.iter().enumerate() {
            let want: f64 = weights.iter().zip(&values).map(|(w, v)| w / sum * f64::from(v[c])).sum();
            assert!((f64::from(*got) - want).abs() < 1e-6, "head {j}: {got}, {want}");
        }
    }
    // A later prompt reads them back.
    staging.clear();
    layer.unload(&mut staging);
    for h in 0..heads {
        assert_eq!(staging.keys(h), rows(&k, h).concat());
        assert_eq!(staging.values(h, 0, n + 2), rows(&v, h).concat());
    }
    assert_eq!(cache.bytes(), heads * (n + 2) * (2 * 2 * 34 + 4));
}

#[test]
fn q8_0_needs_whole_blocks() {
    assert!(KvType::Q8_0.check(96).is_ok());
    assert!(KvType::F16.check(72).is_ok());
    let error = KvType::Q8_0.check(72).unwrap_err().to_string();
    assert_eq!(error, "a q8_0 cache needs heads of a multiple of 32 values, and the model's have 72");
}
