//! Redundancy of heads and attention over slots, against naive float64.

mod support;

use ecokv_core::*;
use support::*;

#[test]
fn redundancy_is_the_mean_cosine_of_pairs() {
    let mut rng = Rng(3);
    let layer = Layer::random(&mut rng, &[40, 0, 1, 25], 1, 12, 0, 1.5);
    let got = redundancy(Geometry::new(0.0, 1.0), &layer);
    for (h, got) in got.into_iter().enumerate() {
        let n = layer.lens[h] as usize;
        let unit = |i: usize| {
            let key: Vec<f64> = layer.key(h, i).iter().map(|&x| f64::from(x)).collect();
            let norm = key.iter().map(|x| x * x).sum::<f64>().sqrt();
            key.into_iter().map(|x| x / norm).collect::<Vec<_>>()
        };
        let units: Vec<_> = (0..n).map(unit).collect();
        let cosine = |i: usize, j: usize| units[i].iter().zip(&units[j]).map(|(a, b)| a * b).sum::<f64>();
        let pairs = (0..n).flat_map(|i| (0..i).map(move |j| (i, j)));
        let sum: f64 = pairs.map(|(i, j)| cosine(i, j)).sum();
        let expected = if n < 2 { 0.0 } else { (sum / (n * (n - 1) / 2) as f64).clamp(0.0, 1.0) };
        assert!((f64::from(got) - expected).abs() < 1e-5, "head {h}: {got} {expected}");
    }
}

#[test]
fn redundancy_needs_room_for_every_head() {
    let layer = Layer::random(&mut Rng(4), &[9, 9], 1, 8, 0, 1.0);
    let g = Geometry::new(0.5, 0.5);
    let len = redundancy_policy(g).workspace_len(layer.shape(), layer.rows()).unwrap();
    let (mut f32s, mut u32s) = (vec![0.0; len.f32s], vec![0; len.u32s]);
    let workspace = Workspace { f32s: &mut f32s, u32s: &mut u32s };
    let mut out = [7.0];
    let result = redundancy_layer(Dispatch::detect(), g, &layer.view(), workspace, &mut out);
    assert_eq!(result, Err(Error::LengthMismatch { what: "redundancies", need: 2, got: 1 }));
    assert_eq!(out, [7.0]);
}

/// Slots as entries of a softmax with `ln(mass)` added, some empty, continued from an attention over other rows.
#[test]
fn reading_slots_is_attention() {
    const D: usize = 10;
    let mut rng = Rng(5);
    let (query, keys, values) = (rng.normals(D), rng.normals(4 * D), rng.normals(4 * D));
    let mass = [3.0, 0.0, 0.5, 7.0];
    for d in Dispatch::available() {
        let (mut max, mut sum, mut out) = (f32::NEG_INFINITY, 0.0, vec![0.0; D]);
        for part in [0..2, 2..4] {
            let rows = part.start * D..part.end * D;
            let slots = (&keys[rows.clone()], &values[rows], &mass[part]);
            let reading = Reading { max: &mut max, sum: &mut sum, out: &mut out };
            read_slots(d, &query, 0.3, slots, reading).unwrap();
        }
        let (mut total, mut expected) = (0.0, vec![0.0; D]);
        for i in 0..4 {
            let dot: f64 = (0..D).map(|j| f64::from(query[j]) * f64::from(keys[i * D + j])).sum();
            let weight = f64::from(mass[i]) * (0.3 * dot).exp();
            total += weight;
            expected.iter_mut().zip(&values[i * D..]).for_each(|(e, &v)| *e += weight * f64::from(v));
        }
        for (got, expected) in out.iter().zip(expected) {
            assert!((f64::from(got / sum) - expected / total).abs() < 1e-5, "{}", d.name());
        }
    }
    let reading = Reading { max: &mut 0.0, sum: &mut 0.0, out: &mut [0.0; D - 1] };
    assert!(read_slots(Dispatch::scalar(), &query, 0.3, (&keys, &values, &mass), reading).is_err());
}

fn redundancy(g: Geometry, layer: &Layer) -> Vec<f32> {
    let len = redundancy_policy(g).workspace_len(layer.shape(), layer.rows()).unwrap();
    let (mut f32s, mut u32s) = (vec![f32::NAN; len.f32s], vec![9; len.u32s]);
    let mut out = vec![f32::NAN; layer.n_kv_heads];
    let workspace = Workspace { f32s: &mut f32s, u32s: &mut u32s };
    redundancy_layer(Dispatch::detect(), g, &layer.view(), workspace, &mut out).unwrap();
    out
}
