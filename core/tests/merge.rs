//! Merging evicted entries into kept ones, against naive double-precision versions.

mod reference;
mod support;

use ecokv_core::*;
use support::*;

const W: usize = 8;

fn layers() -> [Layer; 3] {
    let mut rng = Rng(31);
    [(vec![90, 70], 3, 16, 1.0), (vec![64], 2, 5, 4.0), (vec![50, 80, 44], 1, 33, 0.0)]
        .map(|(lens, group, d, bias): (Vec<u32>, usize, usize, f32)| Layer::random(&mut rng, &lens, group, d, W, bias))
}

fn merge(rule: Merge, kept: &[Vec<u32>], l: &Layer) -> Layer {
    let mut out = l.clone();
    let mut counts = vec![1.0; l.rows()];
    merge_counted(rule, kept, &mut out, &mut counts).unwrap();
    out.given = counts;
    out
}

fn merge_counted(rule: Merge, kept: &[Vec<u32>], l: &mut Layer, counts: &mut [f32]) -> Result<(), Error> {
    let (indices, keep) = flat(kept, l);
    let len = merge_workspace_len(l.shape(), l.rows()).unwrap();
    let (mut f32s, mut u32s) = (vec![f32::NAN; len.f32s], vec![0; len.u32s]);
    let layer = LayerMut {
        shape: l.shape(),
        starts: &l.starts,
        lens: &l.lens,
        keys: &mut l.keys,
        values: &mut l.values,
        counts,
        attention: &l.column_sums,
    };
    let list = Kept { indices: &indices, counts: &keep };
    merge_layer(Dispatch::detect(), rule, layer, list, Workspace { f32s: &mut f32s, u32s: &mut u32s })
}

#[test]
fn merges() {
    let rules = [
        MergeRule::Pivot,
        MergeRule::Average,
        MergeRule::Weighted,
        MergeRule::Proportional { threshold: 0.0, fraction: 1.0 },
        MergeRule::Proportional { threshold: 0.4, fraction: 1.0 },
        MergeRule::Proportional { threshold: 0.0, fraction: 0.75 },
        MergeRule::Proportional { threshold: 0.3, fraction: 0.5 },
    ];
    for l in layers() {
        let kept = evict(&policy("snapkv").with_window(W as u32), 20, &l);
        for (rule, values_only) in rules.into_iter().flat_map(|r| [(r, false), (r, true)]) {
            let merged = merge(Merge { rule, values_only }, &kept, &l);
            for (h, kept) in kept.iter().enumerate() {
                let (keys, values) = (reference::keys(&l, h), reference::values(&l, h));
                let cosine = |a: usize, b: usize| {
                    reference::dot(&keys[a], &keys[b]) / (reference::norm(&keys[a]) * reference::norm(&keys[b]))
                };
                let gone = evicted(kept, l.lens[h]);
                let target = |e: usize| {
                    let all = kept.iter().map(|&t| (cosine(e, t as usize), t as usize));
                    all.fold((f64::NEG_INFINITY, 0), |best, x| if x.0 > best.0 { x } else { best })
                };
                let matches: Vec<(usize, f64, usize)> = gone.iter().map(|&e| (e, target(e).0, target(e).1)).collect();
                let mean = matches.iter().map(|m| m.1).sum::<f64>() / matches.len() as f64;
                // The quantile of PyTorch: linear between the two nearest.
                let quantile = |threshold: f32, fraction: f32| {
                    let sunk = |c: f64| if c >= threshold.into() { c } else { -1e30 };
                    let mut sorted: Vec<f64> = matches.iter().map(|m| sunk(m.1)).collect();
                    sorted.sort_by(f64::total_cmp);
                    let at = (1.0 - f64::from(fraction)) * (sorted.len() - 1) as f64;
                    let (lo, hi) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
                    lo + (hi - lo) * at.fract()
                };
                for i in 0..l.lens[h] as usize {
                    let mine: Vec<_> = matches.iter().filter(|m| m.2 == i).collect();
                    let of = |x: &[Vec<f64>]| -> Vec<f64> {
                        let mut members = vec![(1.0, x[i].clone())];
                        let mut total = 1.0;
                        for &&(e, cos, _) in &mine {
                            let scaled = |by: f64| x[e].iter().map(|x| x * by).collect::<Vec<f64>>();
                            let norms = (reference::norm(&values[e]), reference::norm(&values[i]));
                            let (counted, member) = match rule {
                                MergeRule::Pivot => (1.0, x[e].iter().zip(&x[i]).map(|(a, b)| (a + b) / 2.0).collect()),
                                MergeRule::Average => (1.0, scaled(1.0)),
                                MergeRule::Weighted if cos >= mean => (1.0, scaled(cos)),
                                MergeRule::Proportional { threshold, fraction }
                                    if cos >= threshold.into() && cos >= quantile(threshold, fraction) - 1e-9 =>
                                {
                                    let w = cos.max(0.0) * norms.0 / (norms.0 + norms.1 + 1e-6);
                                    (w, scaled(w))
                                }
                                _ => continue,
                            };
                            total += counted;
                            members.push((1.0, member));
                        }
                        (0..l.head_dim).map(|j| members.iter().map(|m| m.1[j]).sum::<f64>() / total).collect()
                    };
                    near(merged.value(h, i), &of(&values), 2e-5, "value");
                    let key = if values_only { keys[i].clone() } else { of(&keys) };
                    near(merged.key(h, i), &key, 2e-4, "key");
                }
            }
        }
    }
}

/// Copies of one entry merged into it, counted: attention with the logarithm of the count is exact.
#[test]
fn merging_copies_is_exact() {
    let mut l = Layer::random(&mut Rng(3), &[6], 1, 4, 0, 0.0);
    for i in [1, 2, 5] {
        let (k, v) = (l.key(0, 0).to_vec(), l.value(0, 0).to_vec());
        l.keys[i * 4..][..4].copy_from_slice(&k);
        l.values[i * 4..][..4].copy_from_slice(&v);
    }
    let rule = Merge { rule: MergeRule::Average, values_only: false };
    let merged = merge(rule, &[vec![0, 3, 4]], &l);
    assert_eq!(merged.given, [4.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    near(merged.value(0, 0), &reference::wide(l.value(0, 0)), 1e-6, "value");
    // Of two equal targets the older one takes it.
    let merged = merge(rule, &[vec![1, 2, 3, 4]], &l);
    assert_eq!(merged.given, [1.0, 3.0, 1.0, 1.0, 1.0, 1.0]);
    // Nothing evicted changes nothing.
    let same = merge(rule, &[(0..6).collect()], &l);
    assert_eq!((same.keys, same.values), (l.keys.clone(), l.values.clone()));
    // Nobody to merge into changes nothing either.
    let none = merge(rule, &[vec![]], &l);
    assert_eq!((none.keys, none.values), (l.keys.clone(), l.values.clone()));
    let short = merge_counted(rule, &[vec![0]], &mut l, &mut [1.0; 5]);
    assert_eq!(short, Err(Error::LengthMismatch { what: "counts", need: 6, got: 5 }));
}

/// An evicted value is added in equal parts to the next kept ones: surely if it received more attention than they did,
/// never if it received none.
#[test]
fn following_entries_take_values() {
    for mut l in layers() {
        let kept = evict(&policy("snapkv").with_window(W as u32), 20, &l);
        for (h, kept) in kept.iter().enumerate() {
            for i in 0..l.lens[h] {
                let a = if kept.contains(&i) { 1.0 } else { [0.0, 1.5, 7.0][i as usize % 3] };
                l.column_sums[(l.starts[h] + i) as usize] = a;
            }
        }
        for neighbours in [1, 3, 1000] {
            let rule = MergeRule::Following { neighbours, seed: 4 };
            let merged = merge(Merge { rule, values_only: false }, &kept, &l);
            assert_eq!((&merged.keys, &merged.given), (&l.keys, &vec![1.0; l.rows()]));
            for (h, kept) in kept.iter().enumerate() {
                let mut expected = reference::values(&l, h);
                for e in evicted(kept, l.lens[h]).into_iter().filter(|e| e % 3 != 0) {
                    let after: Vec<usize> =
                        kept.iter().map(|&k| k as usize).filter(|&k| k > e).take(neighbours as usize).collect();
                    let value = reference::wide(l.value(h, e));
                    for &t in &after {
                        expected[t].iter_mut().zip(&value).for_each(|(x, v)| *x += v / after.len() as f64);
                    }
                }
                for (i, expected) in expected.iter().enumerate() {
                    near(merged.value(h, i), expected, 1e-5, "value");
                }
            }
        }
    }
}

/// Three evicted entries of four receive 0.3 of the attention that the kept one after them does: as many are merged.
#[test]
fn following_entries_take_chances() {
    let n = 4000u32;
    let mut l = Layer::random(&mut Rng(1), &[n], 1, 1, 0, 0.0);
    l.values.fill(1.0);
    l.column_sums = (0..n).map(|i| if i % 4 == 3 { 1.0 } else { 0.3 }).collect();
    let kept: Vec<Vec<u32>> = vec![(0..n).filter(|i| i % 4 == 3).collect()];
    let merged = |seed| {
        let rule = MergeRule::Following { neighbours: 1, seed };
        let l = merge(Merge { rule, values_only: true }, &kept, &l);
        kept[0].iter().map(|&i| l.value(0, i as usize)[0] - 1.0).collect::<Vec<_>>()
    };
    let (a, b) = (merged(1), merged(2));
    assert_ne!(a, b);
    assert_eq!(a, merged(1));
    for x in [a, b] {
        let share = x.iter().sum::<f32>() / 3000.0; // standard deviation 0.0084
        assert!((share - 0.3).abs() < 0.035, "{share}");
    }
}

#[test]
fn refusals() {
    let mut l = layers()[1].clone();
    let run = |rule: MergeRule, l: &mut Layer| merge_counted(Merge { rule, values_only: true }, &[vec![3]], l, &mut []);
    for fraction in [0.0, -1.0, 1.1, f32::NAN] {
        assert!(matches!(run(MergeRule::Proportional { threshold: 0.0, fraction }, &mut l), Err(Error::Config(_))));
    }
    assert!(matches!(run(MergeRule::Following { neighbours: 0, seed: 0 }, &mut l), Err(Error::Config(_))));
    let following = MergeRule::Following { neighbours: 2, seed: 0 };
    l.column_sums.pop();
    assert_eq!(run(following, &mut l), Err(Error::LengthMismatch { what: "attention", need: 64, got: 63 }));
    l.column_sums.clear();
    assert_eq!(run(following, &mut l), Err(Error::MissingObservation("attention received")));
    // A policy that merges so asks for the attention and is refused without it.
    let p = Policy { evicted: Evicted::Merge(Merge { rule: following, values_only: true }), ..policy("knorm") };
    assert!(p.needs().column_sums);
    let refused = evict_view(Dispatch::detect(), &p, 20, &l.view());
    assert_eq!(refused, Err(Error::MissingObservation("column sums")));
}

/// Entries that stood for several others hand all of them on: none is lost.
#[test]
fn counts_add_up() {
    for l in layers() {
        let kept = evict(&policy("snapkv").with_window(W as u32), 20, &l);
        let before: Vec<f32> = (1u8..).map(f32::from).take(l.rows()).collect();
        let (mut merged, mut counts) = (l.clone(), before.clone());
        let rule = Merge { rule: MergeRule::Average, values_only: false };
        merge_counted(rule, &kept, &mut merged, &mut counts).unwrap();
        for (h, kept) in kept.iter().enumerate() {
            let (start, len) = (l.starts[h] as usize, l.lens[h] as usize);
            let after: f32 = kept.iter().map(|&i| counts[start + i as usize]).sum();
            assert_eq!(after, before[start..start + len].iter().sum::<f32>());
        }
    }
}
