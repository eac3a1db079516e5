//! Methods against independent double-precision versions on random data, and cases small enough to check by eye.

mod reference;
mod support;

use ecokv_core::*;
use support::*;

/// Layers of different shapes: (lens, group, head_dim, common part of the keys).
const SHAPES: [(&[u32], usize, usize, f32); 5] = [
    (&[120, 120], 3, 16, 0.0),
    (&[200, 90, 133], 1, 24, 3.0),
    (&[77], 7, 5, 8.0),
    (&[64, 65, 66, 67], 2, 64, 1.0),
    (&[301, 50], 4, 17, 20.0),
];

fn layers(n_queries: usize) -> impl Iterator<Item = Layer> {
    let mut rng = Rng(7);
    SHAPES.map(|(lens, group, d, bias)| Layer::random(&mut rng, lens, group, d, n_queries, bias)).into_iter()
}

/// Scores within 1e-4 of the reference (relative to its largest), and a kept set that is a top set of the reference up
/// to that tolerance, plus the last `w_keep`.
fn check(name: &str, p: &Policy, budget: u32, w_keep: usize, l: &Layer, reference: impl Fn(usize) -> Vec<f64>) {
    let (scores, kept) = (scores(p, budget, l), evict(p, budget, l));
    for h in 0..l.n_kv_heads {
        let (n, expected) = (l.lens[h] as usize, reference(h));
        let largest = expected.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        let scores = &scores[l.starts[h] as usize..][..n];
        for (i, (s, e)) in scores.iter().zip(&expected).enumerate() {
            assert!((f64::from(*s) - e).abs() <= 1e-4 * largest, "{name} head {h} entry {i}: {s} {e}");
        }
        let kept = &kept[h];
        assert_eq!(kept.len(), n.min(budget as usize), "{name}");
        let (scored, recent): (Vec<u32>, Vec<u32>) = kept.iter().partition(|&&i| (i as usize) < n - w_keep);
        assert_eq!(recent.len(), w_keep, "{name}");
        let worst_in = scored.iter().map(|&i| expected[i as usize]).fold(f64::INFINITY, f64::min);
        let best_out = (0..n - w_keep).filter(|&i| !scored.contains(&(i as u32))).map(|i| expected[i]);
        assert!(best_out.fold(f64::NEG_INFINITY, f64::max) <= worst_in + 2e-4 * largest, "{name} head {h}");
    }
}

#[test]
fn snapkv() {
    for l in layers(32) {
        check("snapkv", &policy("snapkv"), 40, 32, &l, |h| reference::snapkv(&l, h, 32, l.lens[h] as usize - 32));
        let p = policy("snapkv").with_keep_recent(3);
        check("w_keep 3", &p, 20, 3, &l, |h| reference::snapkv(&l, h, 32, l.lens[h] as usize - 3));
    }
}

#[test]
fn mixkv() {
    for l in layers(32) {
        check("mixkv", &policy("mixkv"), 45, 32, &l, |h| reference::mixkv(&l, h, 32, 32));
    }
}

#[test]
fn ecokv() {
    for l in layers(32) {
        for (alpha, beta) in [(0.5, 0.5), (0.25, 0.75), (1.0, 0.0), (0.0, 1.0)] {
            let p = policy("ecokv").with_geometry(alpha, beta).unwrap();
            let r = |w_obs, w_keep| {
                let l = &l;
                move |h| reference::ecokv(l, h, alpha.into(), beta.into(), w_obs, w_keep)
            };
            check("ecokv", &p, 24, 8, &l, r(8, 8));
            let p = p.with_window(32).with_keep_recent(8);
            check("ecokv, wide window", &p, 24, 8, &l, r(32, 8));
        }
    }
}

/// Without the Euclidean half and with MixKV's window, ECOKV is MixKV.
#[test]
fn ecokv_contains_mixkv() {
    let p = policy("ecokv").with_geometry(0.0, 1.0).unwrap().with_window(32);
    for l in layers(32) {
        assert_eq!(evict(&p, 48, &l), evict(&policy("mixkv"), 48, &l));
    }
}

#[test]
fn adakv() {
    for l in layers(8) {
        for floor in [0.0, 0.2, 0.5] {
            let p = policy("adakv").with_window(8).with_head_budget(HeadBudget::Adaptive { floor });
            let kept = evict(&p, 30, &l);
            let heads: Vec<Vec<f64>> = (0..l.n_kv_heads)
                .map(|h| {
                    let mut s = reference::snapkv(&l, h, 8, l.lens[h] as usize - 8);
                    s.extend([f64::INFINITY; 8]);
                    s
                })
                .collect();
            let floor = ((30.0 * floor) as usize).max(usize::from(floor > 0.0));
            let counts = reference::adakv(&heads, 30, floor);
            assert_eq!(kept.iter().map(Vec::len).collect::<Vec<_>>(), counts);
            for (kept, (scores, count)) in kept.iter().zip(heads.iter().zip(counts)) {
                assert_eq!(*kept, reference::top(scores, count));
            }
        }
    }
}

#[test]
fn h2o() {
    for l in layers(1) {
        let sums = |h: usize| {
            let s = l.starts[h] as usize;
            l.column_sums[s..s + l.lens[h] as usize - 15].iter().map(|&x| f64::from(x) / l.group as f64).collect()
        };
        check("h2o", &policy("h2o"), 30, 15, &l, sums);
        // With the bias to old entries removed.
        let mut p = policy("observed");
        p.protect.recent = Recent::Window(15);
        let fair = |h: usize| {
            let n = l.lens[h] as usize;
            sums(h).iter().enumerate().map(|(i, s)| s / (n - i) as f64).collect::<Vec<f64>>()
        };
        check("observed", &p, 30, 15, &l, fair);
    }
}

#[test]
fn vatp() {
    for l in layers(1) {
        let product = |h: usize| -> Vec<f64> {
            let (s, n) = (l.starts[h] as usize, l.lens[h] as usize);
            let norm = |i| l.value(h, i).iter().map(|x| f64::from(x.abs())).sum::<f64>();
            (0..n - 12).map(|i| f64::from(l.column_sums[s + i]) / l.group as f64 * norm(i)).collect()
        };
        check("vatp", &policy("vatp").with_sinks(0), 24, 12, &l, product);
    }
}

#[test]
fn manifoldkv() {
    for l in layers(1) {
        check("manifoldkv", &policy("manifoldkv"), 24, 0, &l, |h| reference::geometry(&l, h).distances);
    }
}

/// All heads keep what they attend to on average.
#[test]
fn shared_heads() {
    let l = Layer::random(&mut Rng(8), &[50, 50, 50], 2, 8, 1, 0.0);
    let heads: Vec<_> = (0..6).map(|q| reference::attention(&l, q, 1).remove(0)).collect();
    let mean: Vec<f64> = (0..49).map(|i| heads.iter().map(|a| a[i]).sum::<f64>() / 6.0).collect();
    check("tova", &policy("tova"), 10, 1, &l, |_| mean.clone());
}

/// Both pairings of a rotation by a known angle, and of none.
#[test]
fn mean_rotations() {
    let frequencies = [std::f32::consts::FRAC_PI_2];
    let (mut cos, mut sin) = ([0.0], [0.0]);
    expected::mean_rotation(&frequencies, 1, 1, &mut cos, &mut sin); // a quarter turn
    assert!(cos[0].abs() < 1e-6 && (sin[0] - 1.0).abs() < 1e-6);
    let (mut mean, mut covariance) = ([1.0, 0.0, 5.0], [2.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 7.0]);
    expected::rotate(expected::Pairing::Halves, &[0.0], &[1.0], &mut mean, &mut covariance);
    assert_eq!(mean, [0.0, 1.0, 5.0]);
    assert_eq!(covariance, [3.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 7.0]);
    // Two pairs: halves turns (0, 2) and (1, 3), neighbours (0, 1) and (2, 3).
    let mut x = [1.0, 2.0, 3.0, 4.0];
    expected::rotate(expected::Pairing::Neighbours, &[0.0, 1.0], &[1.0, 0.0], &mut x, &mut []);
    assert_eq!(x, [-2.0, 1.0, 3.0, 4.0]);
    // Positions 0 to 3 of a quarter turn each cancel.
    expected::mean_rotation(&frequencies, 0, 4, &mut cos, &mut sin);
    assert!(cos[0].abs() < 1e-6 && sin[0].abs() < 1e-6);
}

/// By hand, chunks of two in one dimension: no sinks, entries 0..2 judged by 2..4, 2..4 by 4..6, the rest 1.
#[test]
fn lagkv_by_hand() {
    let mut l = Layer { n_kv_heads: 1, group: 1, head_dim: 2, scale: 1.0, n_layers: 1, ..Default::default() };
    // Ranges of chunk 1: channel 0 from 0 to 1, channel 1 from 0 to 2. Entry 0 scales to (1, 1): no deviation;
    // entry 1 to (3, 0).
    l.keys = vec![1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 2.0, 1.0, 9.0, 9.0];
    l.values = l.keys.clone();
    l.lens = vec![7];
    l.place();
    let p = Policy { importance: Importance::Lag { lag: 2 }, ..policy("full") };
    // Ranges of chunk 2: 0 to 2 and 0 to 1. Entry 2 scales to (0, 0), entry 3 to (0.5, 2).
    assert_eq!(scores(&p, 3, &l), [0.0, 0.5, 0.0, 0.5, 1.0, 1.0, 1.0]);
    // Too short for two chunks: recency.
    let p = Policy { importance: Importance::Lag { lag: 4 }, ..policy("full") };
    assert_eq!(evict(&p, 3, &l), [[4, 5, 6]]);
}

/// Head budgets of a mixed method come from attention alone, its ranking from the whole score.
#[test]
fn adaptive_mixkv_budgets_by_attention() {
    let floor = HeadBudget::Adaptive { floor: 0.2 };
    let (mix, snap) = (policy("mixkv").with_head_budget(floor), policy("snapkv").with_head_budget(floor));
    let mut differ = false;
    for l in layers(32) {
        let (mix, snap) = (evict(&mix, 45, &l), evict(&snap, 45, &l));
        assert!(mix.iter().map(Vec::len).eq(snap.iter().map(Vec::len)));
        differ |= mix != snap;
    }
    assert!(differ);
}

#[test]
fn pyramid_exact() {
    for (layers, budget, window, seq, beta) in
        [(28, 64, 32, 1000, 20), (32, 256, 8, 300, 20), (5, 17, 3, 40, 2), (1, 9, 2, 50, 20), (3, 7, 32, 100, 4)]
    {
        let mut out = vec![0; layers];
        LayerBudget::Pyramid { beta }.allocate(budget, window, seq, &mut out).unwrap();
        assert_eq!(out.iter().sum::<u32>(), budget * layers as u32);
        let w = window.min(budget - 1);
        let line = reference::pyramid_line(f64::from(budget - w), f64::from(seq - w), f64::from(beta), layers);
        // The running sum is rounded to the nearest whole entry.
        let mut sums = (0.0, 0.0);
        for (b, x) in out.iter().zip(line) {
            sums = (sums.0 + f64::from(*b), sums.1 + x + f64::from(w));
            assert!((sums.0 - sums.1).abs() <= 0.5 + 1e-6, "{out:?}");
        }
        assert!(out.windows(2).all(|w| w[0] + 1 >= w[1]), "{out:?}");
    }
}

/// By hand: base 32, min 32 / 20 = 1, max 63, step 62 / 27 = 2; the published code exceeds the budget by 4 per layer.
#[test]
fn pyramid_reference() {
    let mut out = [0; 28];
    LayerBudget::PyramidReference { beta: 20 }.allocate(64, 32, 1000, &mut out).unwrap();
    assert_eq!((out[0], out[1], out[27]), (63 + 32, 61 + 32, 9 + 32));
    assert_eq!(out.iter().sum::<u32>(), 28 * (36 + 32));
    // Shorter than twice the base: flat.
    LayerBudget::PyramidReference { beta: 20 }.allocate(64, 32, 63, &mut out).unwrap();
    assert_eq!(out, [64; 28]);
    // The line is cut at the entries there are: max = 100 - 32 = 68 >= 60, so min = 128 - 68.
    let mut out = [0; 3];
    LayerBudget::PyramidReference { beta: 20 }.allocate(96, 32, 132, &mut out).unwrap();
    assert_eq!(out, [100 + 32, 64 + 32, 28 + 32]);
    assert!(LayerBudget::Pyramid { beta: 0 }.allocate(96, 32, 132, &mut out).is_err());
}

// Five entries, two dimensions, checked by eye.

fn five(keys: [[f32; 2]; 5], values: [[f32; 2]; 5], query: [f32; 2]) -> Layer {
    let mut l = Layer {
        n_kv_heads: 1,
        group: 1,
        head_dim: 2,
        lens: vec![5],
        keys: keys.concat(),
        values: values.concat(),
        n_queries: 1,
        queries: query.to_vec(),
        scale: 1.0,
        n_layers: 1,
        ..Default::default()
    };
    l.place();
    l
}

const PLAIN: [[f32; 2]; 5] = [[1.0, 0.0]; 5];

#[test]
fn five_streaming() {
    let l = five(PLAIN, PLAIN, [0.0; 2]);
    let p = policy("streaming").with_sinks(1);
    assert_eq!(evict(&p, 3, &l), [[0, 3, 4]]);
    assert_eq!(evict(&p, 1, &l), [[0]]);
    assert_eq!(evict(&policy("full"), 2, &l), [[3, 4]]);
}

#[test]
fn five_knorm() {
    // Lengths 5, 1, 3, 1, 2.
    let l = five([[3.0, 4.0], [1.0, 0.0], [0.0, 3.0], [0.0, -1.0], [2.0, 0.0]], PLAIN, [0.0; 2]);
    assert_eq!(scores(&policy("knorm"), 2, &l), [-5.0, -1.0, -3.0, -1.0, -2.0]);
    assert_eq!(evict(&policy("knorm"), 1, &l), [[1]]); // a tie keeps the older
    assert_eq!(evict(&policy("knorm"), 3, &l), [[1, 3, 4]]);
}

#[test]
fn five_keydiff() {
    // Four keys point right whatever their length, one up: the mean direction is right.
    let l = five([[1.0, 0.0], [9.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.1, 0.0]], PLAIN, [0.0; 2]);
    assert_eq!(evict(&policy("keydiff"), 1, &l), [[2]]);
    let euclid = policy("keydiff").with_geometry(1.0, 0.0).unwrap();
    assert_eq!(evict(&euclid, 1, &l), [[1]]); // furthest from the mean (2.6, 0.4)
}

#[test]
fn five_attention() {
    // One query at the last entry; entry 2 has the largest logit. No pool, only the last entry protected.
    let keys = [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [-1.0, 0.0], [0.0, 0.0]];
    let l = five(keys, PLAIN, [1.0, 0.0]);
    let mut p = policy("snapkv").with_window(1);
    let Importance::Attention(mut a) = p.importance else { panic!() };
    a.pool = Pool::None;
    p.importance = Importance::Attention(a);
    assert_eq!(evict(&p, 2, &l), [[2, 4]]);
    // The last query sees all five: weights e^0, e^1, e^2, e^-1, e^0.
    let z = 1.0 + 1f32.exp() + 2f32.exp() + (-1f32).exp() + 1.0;
    for (s, x) in scores(&p, 2, &l).iter().zip([0.0, 1.0, 2.0, -1.0f32]) {
        assert!((s - x.exp() / z).abs() < 1e-6);
    }
    // A mean pool of 3 with zeros outside: entry 0 gets (0 + a0 + a1) / 3 and so on; entry 2 stays the best.
    a.pool = Pool::Mean { width: 3, edge: Edge::Zero };
    p.importance = Importance::Attention(a);
    let s = scores(&p, 2, &l);
    assert!((s[0] - (1.0 + 1f32.exp()) / z / 3.0).abs() < 1e-6);
    a.pool = Pool::Mean { width: 3, edge: Edge::Renormalise };
    p.importance = Importance::Attention(a);
    assert!((scores(&p, 2, &l)[0] - (1.0 + 1f32.exp()) / z / 2.0).abs() < 1e-6);
    a.pool = Pool::Max { width: 3 };
    p.importance = Importance::Attention(a);
    assert!((scores(&p, 2, &l)[3] - 2f32.exp() / z).abs() < 1e-6);
}

#[test]
fn five_given_and_tags() {
    let mut l = five(PLAIN, PLAIN, [0.0; 2]);
    l.given = vec![0.0, 5.0, -1.0, 5.0, 1.0];
    let p = Policy { importance: Importance::Given, ..policy("full") };
    assert_eq!(evict(&p, 1, &l), [[1]]);
    l.tags = vec![0, 0, tag::PROTECTED, 0, 0];
    assert_eq!(evict(&p, 2, &l), [[1, 2]]);
    assert_eq!(scores(&p, 2, &l)[2], f32::INFINITY);
    assert_eq!(evict(&p.with_keep_recent(1), 3, &l), [[1, 2, 4]]);
}

/// The window gives way to one scored entry; what the host asked for does not.
#[test]
fn windows_shrink_and_demands_do_not() {
    let mut l = five(PLAIN, PLAIN, [0.0; 2]);
    l.given = vec![0.0, 5.0, -1.0, 4.0, 1.0];
    let p = Policy { importance: Importance::Given, ..policy("full") };
    let run = |p: Policy, budget| evict_view(Dispatch::scalar(), &p, budget, &l.view());
    let (kept, report) = run(p.with_window(4), 3).unwrap();
    assert_eq!((kept, report.recent_kept), (vec![vec![1, 3, 4]], 2));
    assert_eq!(run(p.with_window(4), 1).unwrap().1.recent_kept, 0);
    assert_eq!(run(p.with_keep_recent(4), 3), Err(Error::BudgetTooSmall { protected: 4, budget: 3 }));
    assert_eq!(run(p.with_sinks(2).with_keep_recent(1), 2), Err(Error::BudgetTooSmall { protected: 3, budget: 2 }));
    assert_eq!(run(p, 0), Err(Error::BudgetTooSmall { protected: 1, budget: 0 }));
}

#[test]
fn random_is_seeded_and_fair() {
    let mut rng = Rng(1);
    let l = Layer::random(&mut rng, &[1000, 1000], 1, 2, 0, 0.0);
    let kept = evict(&policy("random"), 500, &l);
    assert_eq!(kept, evict(&policy("random"), 500, &l));
    assert_ne!(kept, evict(&policy("random").with_seed(1), 500, &l));
    assert_ne!(kept[0], kept[1]);
    assert_ne!(kept, evict(&policy("random"), 500, &Layer { layer: 2, ..l.clone() }));
    // Half of each half: 250 with a standard deviation of 11.
    for kept in kept {
        let early = kept.iter().filter(|&&i| i < 500).count();
        assert!(early.abs_diff(250) < 56, "{early}");
    }
}

#[test]
fn names_are_unique_and_found() {
    for (i, m) in methods::ALL.iter().enumerate() {
        assert_eq!(methods::by_name(m.name), Some(&methods::ALL[i]));
    }
    assert!(methods::by_name("nonsense").is_none());
}
