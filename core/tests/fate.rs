//! What becomes of evicted entries: slots and merging, against naive double-precision versions.

mod reference;
mod support;

use ecokv_core::*;
use support::*;

const W: usize = 8;

fn layers() -> [Layer; 3] {
    let mut rng = Rng(31);
    [(vec![90, 70], 3, 16, 1.0), (vec![64], 2, 5, 4.0), (vec![50, 80, 44], 1, 33, 0.0)].map(
        |(lens, group, d, bias): (Vec<u32>, usize, usize, f32)| {
            let mut l = Layer::random(&mut rng, &lens, group, d, W, bias);
            l.tags = (0..l.rows()).map(|i| if i % 40 > 25 { tag::IMAGE } else { 0 }).collect();
            l
        },
    )
}

fn retaining(change: impl Fn(&mut Retain)) -> Policy {
    let mut p = policy("retentivekv").with_window(W as u32);
    if let Evicted::Retain(r) = &mut p.evicted {
        change(r);
    }
    p
}

/// Slots of a layer: `[head][slot]` of key, value, mass.
type SlotRows = Vec<Vec<(Vec<f32>, Vec<f32>, f32)>>;

fn retain(p: &Policy, budget: u32, l: &Layer) -> (Vec<Vec<u32>>, SlotRows) {
    let Evicted::Retain(Retain { slots, .. }) = p.evicted else { panic!() };
    let kept = evict(p, budget, l);
    let (indices, counts) = flat(&kept, l);
    let len = p.workspace_len(l.shape(), l.rows()).unwrap();
    let (mut f32s, mut u32s) = (vec![f32::NAN; len.f32s], vec![0; len.u32s]);
    let n = l.n_kv_heads * slots as usize;
    let (mut keys, mut values, mut mass) = (vec![7.0; n * l.head_dim], vec![7.0; n * l.head_dim], vec![7.0; n]);
    let w = Workspace { f32s: &mut f32s, u32s: &mut u32s };
    let list = Kept { indices: &indices, counts: &counts };
    let out = Slots { keys: &mut keys, values: &mut values, mass: &mut mass };
    retain_layer(Dispatch::detect(), p, budget, &l.view(), w, list, out).unwrap();
    let row = |x: &[f32], i: usize| x[i * l.head_dim..][..l.head_dim].to_vec();
    let slots = slots as usize;
    let of = |h: usize| (h * slots..(h + 1) * slots).map(|i| (row(&keys, i), row(&values, i), mass[i])).collect();
    (kept, (0..l.n_kv_heads).map(of).collect())
}

fn flat(kept: &[Vec<u32>], l: &Layer) -> (Vec<u32>, Vec<u32>) {
    let mut indices = vec![0; l.rows()];
    for (k, &s) in kept.iter().zip(&l.starts) {
        indices[s as usize..][..k.len()].copy_from_slice(k);
    }
    (indices, kept.iter().map(|k| k.len() as u32).collect())
}

fn evicted(kept: &[u32], n: u32) -> Vec<usize> {
    (0..n).filter(|i| !kept.contains(i)).map(|i| i as usize).collect()
}

/// Entropy of each entry's attention over the window.
fn entropies(l: &Layer, h: usize) -> Vec<f64> {
    let rows = reference::window(l, h, W);
    (0..rows[0].len())
        .map(|i| {
            let total: f64 = rows.iter().map(|r| r[i]).sum();
            let terms = rows.iter().map(|r| r[i] / total).filter(|&p| p > 0.0);
            terms.map(|p| -p * p.ln()).sum::<f64>() / (W as f64).ln()
        })
        .collect()
}

fn near(a: &[f32], b: &[f64], limit: f64, what: &str) {
    for (a, b) in a.iter().zip(b) {
        assert!((f64::from(*a) - b).abs() <= limit, "{what}: {a} {b}");
    }
}

#[test]
fn slots_are_entropy_weighted_means() {
    for l in layers() {
        for (tau, epsilon, mass) in [(1.0, 0.05, Mass::Count), (0.1, 0.001, Mass::Entropy), (4.0, 0.5, Mass::Count)] {
            let p = retaining(|r| (r.slots, r.tau, r.epsilon, r.mass) = (5, tau, epsilon, mass));
            let (kept, slots) = retain(&p, 24, &l);
            for h in 0..l.n_kv_heads {
                assert_eq!(kept[h].len(), 24 - 5); // slots are paid for
                let entropy = entropies(&l, h);
                let image = |i: &usize| l.tags[l.starts[h] as usize + i] & tag::IMAGE != 0;
                let gone = evicted(&kept[h], l.lens[h]);
                let (images, text): (Vec<usize>, Vec<usize>) = gone.iter().partition(|i| image(i));
                let for_text = ((5 * text.len()) as f64 / gone.len() as f64).round().clamp(1.0, 4.0) as usize;
                let mut stretches: Vec<Vec<usize>> = Vec::new();
                for (entries, n) in [(&text, for_text), (&images, 5 - for_text)] {
                    // Entry number e of N belongs to stretch floor(e n / N).
                    let of = |s: usize| {
                        let numbered = entries.iter().enumerate();
                        numbered.filter(|(e, _)| e * n / entries.len() == s).map(|(_, &i)| i).collect()
                    };
                    stretches.extend((0..n).map(of));
                }
                for (slot, stretch) in slots[h].iter().zip(&stretches) {
                    let (tau, epsilon) = (f64::from(tau), f64::from(epsilon));
                    let total: f64 = stretch.iter().map(|&i| epsilon + entropy[i]).sum();
                    let decay: Vec<f64> =
                        stretch.iter().map(|&i| (-tau * (epsilon + entropy[i]) / total).exp()).collect();
                    // Weight (1 - g_i) prod_{j > i} g_j.
                    let weight =
                        |e: usize| (1.0 - decay[e]) * decay[e + 1..].iter().product::<f64>() / (1.0 - (-tau).exp());
                    let mean = |row: &dyn Fn(usize) -> Vec<f64>| -> Vec<f64> {
                        let mut out = vec![0.0; l.head_dim];
                        for (e, &i) in stretch.iter().enumerate() {
                            out.iter_mut().zip(row(i)).for_each(|(o, x)| *o += weight(e) * x);
                        }
                        out
                    };
                    near(&slot.0, &mean(&|i| reference::wide(l.key(h, i))), 2e-4, "key");
                    near(&slot.1, &mean(&|i| reference::wide(l.value(h, i))), 2e-4, "value");
                    let expected = match mass {
                        Mass::Count => stretch.len() as f64,
                        Mass::Entropy => stretch.iter().map(|&i| entropy[i]).sum(),
                    };
                    near(&[slot.2], &[expected], 1e-4, "mass");
                }
            }
        }
    }
}

/// Entries of a slot that are all the same: attention over kept entries and slots is attention over everything.
#[test]
fn slots_of_equal_entries_are_exact() {
    let mut l = Layer::random(&mut Rng(3), &[60], 2, 8, W, 0.0);
    let (key, value) = (l.key(0, 0).to_vec(), l.value(0, 0).to_vec());
    for i in 0..60 - W {
        l.keys[i * 8..][..8].copy_from_slice(&key);
        l.values[i * 8..][..8].copy_from_slice(&value);
    }
    let (kept, slots) = retain(&retaining(|r| r.slots = 3), 20, &l);
    let query = reference::wide(&Rng(9).normals(8));
    let logit = |k: &[f32]| (reference::dot(&query, &reference::wide(k)) * f64::from(l.scale)).exp();
    let attend = |entries: Vec<(f64, &[f32])>| -> Vec<f64> {
        let z: f64 = entries.iter().map(|e| e.0).sum();
        (0..8).map(|j| entries.iter().map(|(w, v)| w / z * f64::from(v[j])).sum()).collect()
    };
    let full = attend((0..60).map(|i| (logit(l.key(0, i)), l.value(0, i))).collect());
    let mut entries: Vec<(f64, &[f32])> =
        kept[0].iter().map(|&i| (logit(l.key(0, i as usize)), l.value(0, i as usize))).collect();
    entries.extend(slots[0].iter().map(|(k, v, mass)| (logit(k) * f64::from(*mass), &v[..])));
    let ours: Vec<f32> = attend(entries).iter().map(|&x| x as f32).collect();
    near(&ours, &full, 1e-5, "output");
}

/// A decay near 0 with certain entries counted in full is the arithmetic mean; nothing evicted leaves the slots empty;
/// a single slot holds text and images alike.
#[test]
fn slots_at_the_edges() {
    let l = &layers()[1];
    let (kept, slots) = retain(&retaining(|r| (r.slots, r.tau, r.epsilon) = (1, 1e-4, 1e6)), 20, l);
    let gone = evicted(&kept[0], l.lens[0]);
    let mean = |j: usize| gone.iter().map(|&i| f64::from(l.key(0, i)[j])).sum::<f64>() / gone.len() as f64;
    near(&slots[0][0].0, &(0..l.head_dim).map(mean).collect::<Vec<_>>(), 1e-3, "mean");
    assert_eq!(slots[0][0].2, gone.len() as f32);

    // A lone image entry has a slot of its own, the last, however few of the five that leaves it by its share.
    let mut lone = l.clone();
    lone.tags.fill(0);
    let kept = evict(&retaining(|r| r.slots = 5), 24, &lone);
    let first_gone = evicted(&kept[0], lone.lens[0])[0];
    lone.tags[first_gone] = tag::IMAGE;
    let (_, slots) = retain(&retaining(|r| r.slots = 5), 24, &lone);
    assert_eq!(slots[0][4].2, 1.0);
    near(&slots[0][4].0, &reference::wide(lone.key(0, first_gone)), 1e-5, "lone image");

    let (kept, slots) = retain(&retaining(|_| {}), 64, l);
    assert_eq!(kept[0].len(), 64);
    assert!(slots[0].iter().all(|s| s.2 == 0.0 && s.0.iter().all(|&x| x == 0.0)));
    // The gain raises entries of spread attention.
    let boosted = scores(&retaining(|r| r.gain = 0.5), 24, l);
    let plain = scores(&policy("snapkv").with_window(W as u32), 24, l);
    let entropy = entropies(l, 0);
    for i in 0..l.lens[0] as usize - W {
        let expected = f64::from(plain[i]) * (1.0 + 0.5 * entropy[i]);
        assert!((f64::from(boosted[i]) - expected).abs() <= 1e-5 * expected);
    }
}

/// A whole stretch absorbed one by one, at the entropies it was announced with, is what a stretch written at once is.
#[test]
fn absorbing_a_stretch() {
    let rows: Vec<Vec<f32>> = (0..12).map(|i| Rng(i).normals(3)).collect();
    let retain = Retain { slots: 3, tau: 1.3, epsilon: 0.05, gain: 0.0, mass: Mass::Count };
    let (mut keys, mut values, mut mass) = (vec![0.0; 9], vec![0.0; 9], vec![0.0; 3]);
    let mut put = |i: usize, stretch: u32, entropy: f32| {
        let entry = Evictee { key: &rows[i], value: &rows[11 - i], entropy, mean_entropy: 0.4 };
        let slots = Slots { keys: &mut keys, values: &mut values, mass: &mut mass };
        absorb(&retain, stretch, entry, slots).unwrap();
        (keys.clone(), values.clone(), mass.clone())
    };
    // Four entries of equal entropy: decay exp(-tau / 4) each.
    let after = (0..4).map(|i| put(i, 4, 0.4)).last().unwrap();
    let decay = (-1.3f64 / 4.0).exp();
    let weight = |e: i32| (1.0 - decay) * decay.powi(3 - e) / (1.0 - (-1.3f64).exp());
    let mean = |rows: &[Vec<f32>], j: usize| (0..4).map(|e| weight(e as i32) * f64::from(rows[e][j])).sum::<f64>();
    near(&after.0[6..], &(0..3).map(|j| mean(&rows, j)).collect::<Vec<_>>(), 1e-5, "key");
    let back: Vec<Vec<f32>> = rows.iter().rev().cloned().collect();
    near(&after.1[6..], &(0..3).map(|j| mean(&back, j)).collect::<Vec<_>>(), 1e-5, "value");
    assert_eq!(after.2, [0.0, 0.0, 4.0]);
    // The slot is full: the two empty ones become one, and the next entry is alone in the last.
    let next = put(4, 4, 0.9);
    assert_eq!(next.2, [0.0, 4.0, 1.0]);
    near(&next.0[6..], &reference::wide(&rows[4]), 1e-6, "first of its slot");
    assert_eq!(next.0[3..6], after.0[6..]);
    let next = (5..8).map(|i| put(i, 4, 0.4)).last().unwrap();
    assert_eq!(next.2, [0.0, 4.0, 4.0]);
    // A stretch later the least neighbours are the empty slot and the first full one; then two of four merge by mass.
    assert_eq!(put(8, 4, 0.4).2, [4.0, 4.0, 1.0]);
    let before = (9..12).map(|i| put(i, 4, 0.4)).last().unwrap();
    let merged = put(0, 4, 0.4);
    assert_eq!(merged.2, [8.0, 4.0, 1.0]);
    let mean: Vec<f64> = (0..3).map(|j| (f64::from(before.0[j]) + f64::from(before.0[j + 3])) / 2.0).collect();
    near(&merged.0[..3], &mean, 1e-6, "merged");

    let entry = Evictee { key: &rows[0], value: &rows[1], entropy: 0.0, mean_entropy: 0.0 };
    let mut few = [0.0; 2];
    let slots = Slots { keys: &mut few, values: &mut [0.0; 3], mass: &mut [0.0] };
    assert_eq!(absorb(&retain, 4, entry, slots), Err(Error::LengthMismatch { what: "slot keys", need: 3, got: 2 }));
    let none = Slots { keys: &mut [], values: &mut [], mass: &mut [] };
    assert!(matches!(absorb(&retain, 4, entry, none), Err(Error::Config(_))));
}

#[test]
fn slots_refuse() {
    let l = &layers()[0];
    let view = l.view();
    let run = |p: &Policy, budget: u32, indices: &[u32], counts: &[u32], keys: usize| {
        let (mut f32s, mut u32s) = (vec![0.0; 1 << 14], vec![0; 1 << 10]);
        let (mut k, mut v, mut mass) = (vec![7.0; keys], vec![7.0; 8 * 2 * 16], vec![7.0; 16]);
        let w = Workspace { f32s: &mut f32s, u32s: &mut u32s };
        let out = Slots { keys: &mut k, values: &mut v, mass: &mut mass };
        let result = retain_layer(Dispatch::detect(), p, budget, &view, w, Kept { indices, counts }, out);
        assert!(result.is_ok() || k.iter().chain(&v).chain(&mass).all(|&x| x == 7.0));
        result
    };
    let indices: Vec<u32> = (0..160).map(|i| i % 90).collect();
    let good = 8 * 2 * 16;
    assert_eq!(run(&retaining(|_| {}), 20, &indices, &[9, 9], good), Ok(()));
    let range = |r| matches!(r, Err(Error::HeadRange { .. }));
    assert!(range(run(&retaining(|_| {}), 20, &indices, &[91, 9], good)));
    assert!(range(run(&retaining(|_| {}), 20, &[3; 160], &[2, 1], good)));
    assert!(range(run(&retaining(|_| {}), 20, &[99; 160], &[1, 1], good)));
    assert!(matches!(run(&retaining(|_| {}), 20, &indices, &[9, 9], good - 1), Err(Error::LengthMismatch { .. })));
    assert!(matches!(run(&policy("snapkv"), 20, &indices, &[9, 9], good), Err(Error::Config(_))));
    assert!(matches!(run(&retaining(|r| r.tau = 0.0), 20, &indices, &[9, 9], good), Err(Error::Config(_))));
    assert!(matches!(run(&retaining(|r| r.epsilon = 0.0), 20, &indices, &[9, 9], good), Err(Error::Config(_))));
    let budget = run(&retaining(|_| {}), 8, &indices, &[9, 9], good);
    assert_eq!(budget, Err(Error::BudgetTooSmall { protected: 9, budget: 8 }));
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
        MergeRule::Proportional { threshold: 0.0 },
        MergeRule::Proportional { threshold: 0.4 },
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
                                MergeRule::Proportional { threshold } if cos >= threshold.into() => {
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

/// Text goes first: if all of it fits it stays, and the rest is filled by score; if not, only text stays.
#[test]
fn text_first() {
    let mut l = Layer::random(&mut Rng(3), &[6], 1, 4, 0, 0.0);
    l.given = vec![9.0, 1.0, 8.0, 2.0, 7.0, 3.0];
    l.tags = vec![2, 0, 2, 0, 2, 0];
    let mut p = Policy { importance: Importance::Given, ..policy("full") };
    p.protect.text_first = true;
    assert_eq!(evict(&p, 4, &l), [[0, 1, 3, 5]]);
    assert_eq!(evict(&p, 2, &l), [[3, 5]]);
    assert_eq!(evict(&p.with_sinks(1), 2, &l), [[0, 5]]);
    assert_eq!(evict(&p.with_sinks(1), 4, &l), [[0, 1, 3, 5]]);
    assert_eq!(evict(&p.with_sinks(1), 5, &l), [[0, 1, 2, 3, 5]]);
    l.tags.fill(0);
    assert_eq!(evict(&p, 2, &l), [[0, 2]]);
}
