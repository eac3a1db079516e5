//! Eviction step by step while decoding, against naive double-precision bookkeeping.

mod reference;
mod support;

use ecokv_core::*;
use reference::{dot, mean, wide};
use support::*;

const HEADS: usize = 2;
const GROUP: usize = 2;
const D: usize = 6;
const PROMPT: usize = 30;
const TOTAL: usize = 80;

/// Everything that is ever cached or asked: `[head][token]`.
struct Tokens {
    keys: Vec<Vec<Vec<f32>>>,
    values: Vec<Vec<Vec<f32>>>,
    queries: Vec<Vec<Vec<f32>>>,
}

impl Tokens {
    fn random(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let mut rows = |heads: usize| -> Vec<Vec<Vec<f32>>> {
            (0..heads).map(|_| (0..TOTAL).map(|_| rng.normals(D)).collect()).collect()
        };
        Self { keys: rows(HEADS), values: rows(HEADS), queries: rows(HEADS * GROUP) }
    }

    /// The layer whose heads hold the tokens of these positions, with the queries of tokens `until - n .. until`.
    fn layer(&self, positions: &[Vec<u32>], n: usize, until: usize) -> Layer {
        let rows = |x: &[Vec<Vec<f32>>]| -> Vec<f32> {
            x.iter().zip(positions).flat_map(|(x, p)| p.iter().flat_map(|&p| x[p as usize].clone())).collect()
        };
        let mut l = Layer {
            n_kv_heads: HEADS,
            group: GROUP,
            head_dim: D,
            lens: positions.iter().map(|p| p.len() as u32).collect(),
            keys: rows(&self.keys),
            values: rows(&self.values),
            n_queries: n,
            queries: self.queries.iter().flat_map(|q| q[until - n..until].concat()).collect(),
            positions: positions.concat(),
            scale: 1.0 / (D as f32).sqrt(),
            n_layers: 1,
            ..Default::default()
        };
        l.place();
        l
    }

    /// Softmax of query `t` of query head `q` over the tokens at `positions`.
    fn attention(&self, q: usize, t: usize, positions: &[u32]) -> Vec<f64> {
        let query = wide(&self.queries[q][t]);
        let e: Vec<f64> = positions
            .iter()
            .map(|&p| (dot(&query, &wide(&self.keys[q / GROUP][p as usize])) / (D as f64).sqrt()).exp())
            .collect();
        let z: f64 = e.iter().sum();
        e.iter().map(|e| e / z).collect()
    }
}

fn run_accumulate(l: &Layer, sums: &mut [f32]) {
    let len = accumulate_workspace_len(l.shape(), l.rows()).unwrap();
    let mut f32s = vec![f32::NAN; len.f32s];
    let w = Workspace { f32s: &mut f32s, u32s: &mut [] };
    accumulate(Dispatch::detect(), &l.view(), w, sums).unwrap();
}

/// Evicts, carries positions and sums along, and returns them by head.
fn step(p: &Policy, budget: u32, l: &mut Layer) -> (Vec<Vec<u32>>, Vec<f32>) {
    let kept = evict(p, budget, l);
    let (indices, counts) = flat(&kept, l);
    let list = Kept { indices: &indices, counts: &counts };
    compact(&l.starts, &l.lens, list, 1, &mut l.positions).unwrap();
    if !l.column_sums.is_empty() {
        compact(&l.starts, &l.lens, list, 1, &mut l.column_sums).unwrap();
    }
    let of = |h: usize| l.starts[h] as usize..(l.starts[h] + counts[h]) as usize;
    let positions = (0..HEADS).map(|h| l.positions[of(h)].to_vec()).collect();
    let sums = (0..HEADS).flat_map(|h| l.column_sums.get(of(h)).unwrap_or_default().to_vec()).collect();
    (positions, sums)
}

/// Appends a token to every head.
fn grow(positions: &mut [Vec<u32>], sums: &mut Vec<f32>, token: u32) {
    let mut grown = Vec::new();
    let mut rest = &sums[..];
    for p in positions {
        let (own, after) = rest.split_at(p.len());
        grown.extend(own);
        grown.push(0.0);
        rest = after;
        p.push(token);
    }
    *sums = grown;
}

/// Both norms of H2O: the half of the budget that is not the newest goes to the greatest sums, or to the greatest sums per
/// query that could see the entry.
#[test]
fn h2o() {
    for (name, seed) in [("h2o", 1), ("observed", 2)] {
        let per_visible = name == "observed";
        let mut p = policy(name);
        p.protect.recent = Recent::Share(0.5);
        let tokens = Tokens::random(seed);
        let mut positions: Vec<Vec<u32>> = vec![(0..PROMPT as u32).collect(); HEADS];
        let mut sums = vec![0.0; HEADS * PROMPT];
        run_accumulate(&tokens.layer(&positions, PROMPT, PROMPT), &mut sums);

        let mut expected: Vec<Vec<(u32, f64)>> = (0..HEADS)
            .map(|h| {
                let mut entries: Vec<(u32, f64)> = (0..PROMPT as u32).map(|p| (p, 0.0)).collect();
                for (t, q) in (0..PROMPT).flat_map(|t| (0..GROUP).map(move |g| (t, h * GROUP + g))) {
                    let seen: Vec<u32> = (0..=t as u32).collect();
                    entries.iter_mut().zip(tokens.attention(q, t, &seen)).for_each(|(e, a)| e.1 += a);
                }
                entries
            })
            .collect();
        for t in PROMPT..TOTAL {
            grow(&mut positions, &mut sums, t as u32);
            let mut l = tokens.layer(&positions, 1, t + 1);
            run_accumulate(&l, &mut sums);
            l.column_sums = sums;
            (positions, sums) = step(&p, 16, &mut l);

            for (h, entries) in expected.iter_mut().enumerate() {
                entries.push((t as u32, 0.0));
                let seen: Vec<u32> = entries.iter().map(|e| e.0).collect();
                for g in 0..GROUP {
                    let a = tokens.attention(h * GROUP + g, t, &seen);
                    entries.iter_mut().zip(a).for_each(|(e, a)| e.1 += a);
                }
                let score = |e: &(u32, f64)| e.1 / if per_visible { (t as u32 - e.0 + 1) as f64 } else { 1.0 };
                while entries.len() > 16 {
                    let old = &entries[..entries.len() - 8];
                    let worst = (0..old.len()).min_by(|&a, &b| score(&old[a]).total_cmp(&score(&old[b]))).unwrap();
                    entries.remove(worst);
                }
                assert!(positions[h].iter().eq(entries.iter().map(|e| &e.0)), "{name} token {t}");
            }
            let all: Vec<f64> = expected.iter().flatten().map(|e| e.1).collect();
            near(&sums, &all, 1e-5, "sum");
        }
    }
}

/// The entry with the least attention of the newest query, over all heads, goes.
#[test]
fn tova() {
    let tokens = Tokens::random(3);
    let mut positions: Vec<Vec<u32>> = vec![(0..16).collect(); HEADS];
    let mut expected: Vec<u32> = (0..16).collect();
    for t in 16..TOTAL {
        positions.iter_mut().for_each(|p| p.push(t as u32));
        (positions, _) = step(&policy("tova"), 16, &mut tokens.layer(&positions, 1, t + 1));

        expected.push(t as u32);
        let heads: Vec<Vec<f64>> = (0..HEADS * GROUP).map(|q| tokens.attention(q, t, &expected)).collect();
        let score = |i: &usize| mean(&heads.iter().map(|a| a[*i]).collect::<Vec<_>>());
        let worst = (0..16).min_by(|a, b| score(a).total_cmp(&score(b))).unwrap();
        expected.remove(worst);
        assert_eq!(positions, vec![expected.clone(); HEADS], "token {t}");
    }
}

/// Every 8 tokens the cache is cut back to the budget by the last 8 queries.
#[test]
fn rkv() {
    let tokens = Tokens::random(4);
    let p = policy("rkv");
    let mut positions: Vec<Vec<u32>> = vec![(0..20).collect(); HEADS];
    let mut expected = positions.clone();
    for t in 20..TOTAL {
        positions.iter_mut().chain(&mut expected).for_each(|p| p.push(t as u32));
        if (t + 1) % 8 != 0 {
            continue;
        }
        (positions, _) = step(&p, 20, &mut tokens.layer(&positions, 8, t + 1));
        let l = tokens.layer(&expected, 8, t + 1);
        for (h, expected) in expected.iter_mut().enumerate() {
            let m = expected.len() - 8;
            let (a, r) = (reference::rkv_importance(&l, h, 8, m), reference::rkv_redundancy(&l, h, 0.5));
            let scores: Vec<f64> = (0..m).map(|i| 0.07 * a[i] - 0.93 * r[i]).collect();
            let mut kept: Vec<u32> = reference::top(&scores, 12).iter().map(|&i| expected[i as usize]).collect();
            kept.extend(&expected[m..]);
            *expected = kept;
        }
        assert_eq!(positions, expected, "token {t}");
    }
}

/// SnapKV drops an entry per token, which goes into the last of two slots, five to a slot.
#[test]
fn retentivekv() {
    const W: usize = 4;
    let tokens = Tokens::random(6);
    let retain = Retain { slots: 2, tau: 1.0, epsilon: 0.05, gain: 0.0, mass: Mass::Count, readout: Readout::Mean };
    let p = Policy { evicted: Evicted::Retain(retain), ..policy("snapkv").with_window(W as u32) };
    let mut positions: Vec<Vec<u32>> = vec![(0..14).collect(); HEADS];
    let mut kept = positions.clone();
    let (mut keys, mut values, mut mass) = (vec![0.0; HEADS * 2 * D], vec![0.0; HEADS * 2 * D], vec![0.0; HEADS * 2]);
    let mut seen = [(0.0f32, 0.0f32); HEADS];
    // Reference: key, value, mass of the two slots, and the entropies so far.
    let mut slots = vec![vec![(vec![0.0f64; D], vec![0.0f64; D], 0.0f64); 2]; HEADS];
    let mut history: Vec<Vec<f64>> = vec![vec![]; HEADS];
    for t in 14..TOTAL {
        positions.iter_mut().chain(&mut kept).for_each(|p| p.push(t as u32));
        let mut l = Layer { slots_in_use: true, ..tokens.layer(&positions, W, t + 1) };
        let len = p.workspace_len(l.shape(), l.rows()).unwrap();
        let (mut f32s, mut u32s, mut entropies) = (vec![0.0; len.f32s], vec![0; len.u32s], vec![9.0; l.rows()]);
        let w = Workspace { f32s: &mut f32s, u32s: &mut u32s };
        entropy_layer(Dispatch::detect(), &p, &l.view(), w, &mut entropies).unwrap();
        let before = (positions.clone(), l.clone());
        (positions, _) = step(&p, 16, &mut l); // 14 entries and two slots
        for h in 0..HEADS {
            for (i, _) in before.0[h].iter().enumerate().filter(|(_, p)| !positions[h].contains(p)) {
                let entropy = entropies[before.1.starts[h] as usize + i];
                seen[h] = (seen[h].0 + entropy, seen[h].1 + 1.0);
                let entry = Evictee {
                    key: before.1.key(h, i),
                    value: before.1.value(h, i),
                    entropy,
                    mean_entropy: seen[h].0 / seen[h].1,
                };
                let own = h * 2 * D..(h + 1) * 2 * D;
                let slots = plain(&mut keys[own.clone()], &mut values[own], &mut mass[h * 2..(h + 1) * 2]);
                absorb(&retain, 5, entry, slots).unwrap();
            }
        }

        let l = tokens.layer(&kept, W, t + 1);
        for (h, kept) in kept.iter_mut().enumerate() {
            let m = kept.len() - W;
            let best = reference::top(&reference::snapkv(&l, h, W, m), 14 - W);
            let Some(gone) = (0..m).find(|&i| !best.contains(&(i as u32))) else { continue };
            let rows = reference::window(&l, h, W);
            let total: f64 = rows.iter().map(|r| r[gone]).sum();
            let entropy = rows.iter().map(|r| r[gone] / total).map(|p| -p * p.ln()).sum::<f64>() / (W as f64).ln();
            history[h].push(entropy);
            let (s, token) = (&mut slots[h], kept.remove(gone) as usize);
            if s[1].2 >= 5.0 {
                let (a, b) = (s[0].clone(), s[1].clone());
                let share = b.2 / (a.2 + b.2);
                let mix = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + (b - a) * share).collect::<Vec<_>>();
                s[0] = (mix(&a.0, &b.0), mix(&a.1, &b.1), a.2 + b.2);
                s[1] = (vec![0.0; D], vec![0.0; D], 0.0);
            }
            // The integrator, with the weight that entries of mean entropy would have filled so far.
            let g = (-(0.05 + entropy) / (5.0 * (0.05 + mean(&history[h])))).exp();
            let (keep, write) = (g * (1.0 - (-s[1].2 / 5.0).exp()), 1.0 - g);
            let add = |x: &mut [f64], u: &[f32]| {
                x.iter_mut().zip(u).for_each(|(x, u)| *x = (keep * *x + write * f64::from(*u)) / (keep + write));
            };
            add(&mut s[1].0, &tokens.keys[h][token]);
            add(&mut s[1].1, &tokens.values[h][token]);
            s[1].2 += 1.0;
        }
        assert_eq!(positions, kept, "token {t}");
        let all = || slots.iter().flatten();
        near(&keys, &all().flat_map(|s| s.0.clone()).collect::<Vec<_>>(), 1e-4, "slot key");
        near(&values, &all().flat_map(|s| s.1.clone()).collect::<Vec<_>>(), 1e-4, "slot value");
        near(&mass, &all().map(|s| s.2).collect::<Vec<_>>(), 1e-6, "slot mass");
    }
    assert!(mass.iter().all(|&m| m >= 1.0));
}

fn plain<'a>(keys: &'a mut [f32], values: &'a mut [f32], mass: &'a mut [f32]) -> Slots<'a> {
    Slots { keys, values, mass, members: &mut [], moments: None }
}

/// A whole stretch absorbed one by one, at the entropies it was announced with, is what a stretch written at once is.
#[test]
fn absorbing_a_stretch() {
    let rows: Vec<Vec<f32>> = (0..12).map(|i| Rng(i).normals(3)).collect();
    let retain = Retain { slots: 3, tau: 1.3, epsilon: 0.05, gain: 0.0, mass: Mass::Count, readout: Readout::Mean };
    let (mut keys, mut values, mut mass) = (vec![0.0; 9], vec![0.0; 9], vec![0.0; 3]);
    let mut put = |i: usize, stretch: u32, entropy: f32| {
        let entry = Evictee { key: &rows[i], value: &rows[11 - i], entropy, mean_entropy: 0.4 };
        let slots = plain(&mut keys, &mut values, &mut mass);
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
    let (mut few, mut three, mut one) = ([0.0; 2], [0.0; 3], [0.0]);
    let slots = plain(&mut few, &mut three, &mut one);
    assert_eq!(absorb(&retain, 4, entry, slots), Err(Error::LengthMismatch { what: "slot keys", need: 3, got: 2 }));
    let none = plain(&mut [], &mut [], &mut []);
    assert!(matches!(absorb(&retain, 4, entry, none), Err(Error::Config(_))));
}

/// Second moments of what was absorbed, before and after two slots became one.
#[test]
fn absorbing_moments() {
    let rows: Vec<Vec<f32>> = (0..7).map(|i| Rng(i + 40).normals(3)).collect();
    let retain = Retain { slots: 2, tau: 0.8, epsilon: 0.05, gain: 0.0, mass: Mass::Count, readout: Readout::Tilt };
    let (mut keys, mut values, mut mass) = ([0.0; 6], [0.0; 6], [0.0; 2]);
    let (mut variance, mut covariance, mut radius) = ([0.0; 6], [0.0; 18], [0.0; 2]);
    let g = (-0.8f64 / 3.0).exp(); // equal entropies, three to a slot
    let weights = |n: i32| (0..n).map(|e| (1.0 - g) * g.powi(n - 1 - e) / (1.0 - g.powi(n))).collect::<Vec<f64>>();
    for i in 0..7 {
        let entry = Evictee { key: &rows[i], value: &rows[6 - i], entropy: 0.4, mean_entropy: 0.4 };
        let moments = Moments { variance: &mut variance, covariance: &mut covariance, radius: &mut radius };
        let slots = Slots { moments: Some(moments), ..plain(&mut keys, &mut values, &mut mass) };
        let closed = absorb(&retain, 3, entry, slots).unwrap();
        assert_eq!(closed, [None, Some(0)][usize::from(i == 3 || i == 6)]);
        let last = weights((i % 3 + 1) as i32);
        let mut members = vec![(1, (i / 3 * 3..=i).zip(last).collect::<Vec<_>>())];
        if i == 6 {
            let half = weights(3).into_iter().map(|w| w / 2.0);
            members.push((0, (0..6).zip(half.clone().chain(half)).collect()));
        } else if i >= 3 {
            members.push((0, (0..3).zip(weights(3)).collect()));
        }
        for (slot, members) in members {
            let (key, value) =
                (|i: usize, j: usize| f64::from(rows[i][j]), |i: usize, j: usize| f64::from(rows[6 - i][j]));
            let average = |x: &dyn Fn(usize) -> f64| members.iter().map(|&(i, w)| w * x(i)).sum::<f64>();
            let k: Vec<f64> = (0..3).map(|j| average(&|i| key(i, j))).collect();
            let v: Vec<f64> = (0..3).map(|j| average(&|i| value(i, j))).collect();
            let spread: Vec<f64> = (0..3).map(|j| average(&|i| (key(i, j) - k[j]).powi(2))).collect();
            let both: Vec<f64> =
                (0..9).map(|x| average(&|i| (value(i, x / 3) - v[x / 3]) * (key(i, x % 3) - k[x % 3]))).collect();
            near(&keys[slot * 3..], &k, 1e-5, "key");
            near(&variance[slot * 3..], &spread, 1e-5, "variance");
            near(&covariance[slot * 9..], &both, 1e-5, "covariance");
            let reach = |i: usize| (0..3).map(|j| (key(i, j) - k[j]).powi(2)).sum::<f64>().sqrt();
            let furthest = members.iter().map(|&(i, _)| reach(i)).fold(0.0, f64::max);
            let r = f64::from(radius[slot]);
            assert!(r >= furthest - 1e-6 && r <= 2.0 * furthest + 1e-6, "{r} {furthest}");
        }
    }
    assert_eq!(mass, [6.0, 1.0]);
    let entry = Evictee { key: &rows[0], value: &rows[1], entropy: 0.4, mean_entropy: 0.4 };
    assert!(matches!(absorb(&retain, 3, entry, plain(&mut keys, &mut values, &mut mass)), Err(Error::Config(_))));
}

/// A mass of entropies is closed after as many entries, as far as they were of mean entropy.
#[test]
fn absorbing_by_entropy() {
    let retain = Retain { slots: 2, tau: 1.0, epsilon: 0.05, gain: 0.0, mass: Mass::Entropy, readout: Readout::Mean };
    let (mut keys, mut values, mut mass) = ([0.0; 2], [0.0; 2], [0.0; 2]);
    for i in 0..5 {
        let entry = Evictee { key: &[1.0], value: &[1.0], entropy: 0.25, mean_entropy: 0.25 };
        let closed = absorb(&retain, 4, entry, plain(&mut keys, &mut values, &mut mass)).unwrap();
        assert_eq!(closed.is_some(), i == 4);
    }
    assert_eq!(mass, [1.0, 0.25]);
}

/// A slot is due when its share was high twice in a row; the entries that the queries look at most come back.
#[test]
fn reactivation() {
    let rule = Recall { threshold: 0.1, steps: 2, entries: 2 };
    let mut streaks = [0; 3];
    assert_eq!(rule.due(&[0.2, 0.1, 0.3], &mut streaks), None);
    assert_eq!(rule.due(&[0.2, 0.5, 0.05], &mut streaks), Some(0));
    assert_eq!(streaks, [0, 1, 0]);
    assert_eq!(rule.due(&[0.2, 0.5, 0.4], &mut streaks), Some(1));
    assert_eq!(rule.due(&[0.9, f32::NAN, 0.95], &mut streaks), Some(2)); // of two the greater share
    assert_eq!(rule.due(&[0.0; 3], &mut streaks), None);
    assert_eq!(streaks, [0; 3]);

    // Two queries; products summed: 1, 5, 3, 4, 5, -1.
    let keys = [1.0, 0.0, 0.0, 5.0, 3.0, 0.0, 2.0, 2.0, 5.0, 0.0, 0.0, -1.0];
    let members = [0, 1, 1, 1, 1, 0];
    let run = |slot, n: usize| {
        let (mut f32s, mut u32s, mut out) = ([0.0; 12], [0; 6], [99; 6]);
        let w = Workspace { f32s: &mut f32s, u32s: &mut u32s };
        let count =
            recall(Dispatch::detect(), &[1.0, 0.0, 0.0, 1.0], (&keys, &members), slot, w, &mut out[..n]).unwrap();
        out[..count].to_vec()
    };
    assert_eq!(run(1, 2), [1, 4]);
    assert_eq!(run(1, 3), [1, 3, 4]);
    assert_eq!(run(1, 1), [1]); // of equals the older
    assert_eq!(run(0, 6), [0, 5]);
    assert_eq!(run(7, 6), [0; 0]);
    let mut out = [0];
    let mut call = |queries: &[f32], keys: &[f32], f32s: usize| {
        let w = Workspace { f32s: &mut vec![0.0; f32s], u32s: &mut [0; 6] };
        recall(Dispatch::detect(), queries, (keys, &members), 1, w, &mut out)
    };
    assert!(matches!(call(&[1.0; 3], &keys, 12), Err(Error::LengthMismatch { .. })));
    assert!(matches!(call(&[1.0; 2], &keys[1..], 12), Err(Error::LengthMismatch { .. })));
    assert!(matches!(call(&[1.0; 2], &keys, 11), Err(Error::WorkspaceTooSmall { .. })));
}

#[test]
fn what_decoding_refuses() {
    let tokens = Tokens::random(9);
    let l = tokens.layer(&[vec![0, 1, 2], vec![3, 4]], 1, 5);
    let run = |l: &Layer, f32s: usize, n: usize| {
        let mut sums = vec![3.0; n];
        let w = Workspace { f32s: &mut vec![0.0; f32s], u32s: &mut [] };
        let result = accumulate(Dispatch::detect(), &l.view(), w, &mut sums);
        assert!(result.is_ok() || sums.iter().all(|&s| s == 3.0));
        result
    };
    let need = accumulate_workspace_len(l.shape(), 5).unwrap().f32s;
    assert_eq!(run(&l, need, 5), Ok(()));
    assert_eq!(run(&l, need - 1, 5), Err(Error::WorkspaceTooSmall { what: "f32s", need, got: need - 1 }));
    assert_eq!(run(&l, need, 4), Err(Error::LengthMismatch { what: "column_sums", need: 5, got: 4 }));
    let blind = Layer { n_queries: 0, queries: vec![], ..l.clone() };
    assert_eq!(run(&blind, need, 5), Err(Error::MissingObservation("the last queries")));

    let (indices, counts) = ([1, 2, 0, 1, 0], [2, 1]);
    let kept = Kept { indices: &indices, counts: &counts };
    let mut rows: Vec<u32> = (0..10).collect();
    compact(&[0, 3], &[3, 2], kept, 2, &mut rows).unwrap();
    assert_eq!(rows[..4], [2, 3, 4, 5]);
    assert_eq!(rows[6..8], [8, 9]);
    let refused = |starts: &[u32], lens: &[u32], n: usize| compact(starts, lens, kept, 2, &mut vec![0u8; n]).is_err();
    assert!(refused(&[0, 3], &[3], 10) && refused(&[0, 3], &[3, 2], 9) && refused(&[0, 3], &[3, 3], 10));
    assert!(refused(&[0, u32::MAX], &[3, 2], 10) && refused(&[0, 3], &[1, 2], 10));
}
