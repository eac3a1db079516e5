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
    cache.layer_mut(0).fill(cx.dispatch, &staging, |h| Kept::Rows(keep[h].clone()), 0, &SlotRows::default());
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
    cache.layer_mut(0).fill(cx.dispatch, &staging, |_| Kept::All(5), 4, &slots);
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
