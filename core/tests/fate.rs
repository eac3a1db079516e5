//! Slots of evicted entries against naive double-precision versions, and the order of text and images.

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

/// Slots of a layer: `[head][slot]`.
type SlotRows = Vec<Vec<SlotRow>>;

#[derive(Debug)]
struct SlotRow {
    key: Vec<f32>,
    value: Vec<f32>,
    mass: f32,
    variance: Vec<f32>,
    covariance: Vec<f32>,
    radius: f32,
}

impl SlotRow {
    fn slot(&self) -> Slot<'_> {
        let Self { key, value, variance, covariance, .. } = self;
        Slot { key, value, mass: self.mass, variance, covariance, radius: self.radius }
    }
}

/// Kept lists, slots, and the slot of every entry.
fn retain(p: &Policy, budget: u32, l: &Layer) -> (Vec<Vec<u32>>, SlotRows, Vec<u32>) {
    let Evicted::Retain(Retain { slots, readout, .. }) = p.evicted else { panic!() };
    let kept = evict(p, budget, l);
    let (indices, counts) = flat(&kept, l);
    let len = p.workspace_len(l.shape(), l.rows()).unwrap();
    let (mut f32s, mut u32s) = (vec![f32::NAN; len.f32s], vec![0; len.u32s]);
    let (n, d) = (l.n_kv_heads * slots as usize, l.head_dim);
    let [mut keys, mut values, mut variance] = [(); 3].map(|()| vec![7.0; n * d]);
    let [mut mass, mut radius] = [(); 2].map(|()| vec![7.0; n]);
    let (mut covariance, mut members) = (vec![7.0; n * d * d], vec![7; l.rows()]);
    let w = Workspace { f32s: &mut f32s, u32s: &mut u32s };
    let list = Kept { indices: &indices, counts: &counts };
    let moments = Moments { variance: &mut variance, covariance: &mut covariance, radius: &mut radius };
    let moments = (readout == Readout::Tilt).then_some(moments);
    let out = Slots { keys: &mut keys, values: &mut values, mass: &mut mass, members: &mut members, moments };
    retain_layer(Dispatch::detect(), p, budget, &l.view(), w, list, out).unwrap();
    let row = |x: &[f32], i: usize, d: usize| x[i * d..][..d].to_vec();
    let slot = |i: usize| SlotRow {
        key: row(&keys, i, d),
        value: row(&values, i, d),
        mass: mass[i],
        variance: row(&variance, i, d),
        covariance: row(&covariance, i, d * d),
        radius: radius[i],
    };
    let slots = slots as usize;
    let of = |h: usize| (h * slots..(h + 1) * slots).map(slot).collect();
    (kept, (0..l.n_kv_heads).map(of).collect(), members)
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

/// The stretches that the evicted entries of a head are divided into, and the weights of their entries.
fn stretches(l: &Layer, h: usize, kept: &[u32], r: &Retain) -> Vec<Vec<(usize, f64)>> {
    let n = r.slots as usize;
    let entropy = entropies(l, h);
    let image = |i: &usize| l.tags[l.starts[h] as usize + i] & tag::IMAGE != 0;
    let gone = evicted(kept, l.lens[h]);
    let (images, text): (Vec<usize>, Vec<usize>) = gone.iter().partition(|i| image(i));
    let for_text = ((n * text.len()) as f64 / gone.len() as f64).round().clamp(1.0, n as f64 - 1.0) as usize;
    let mut out: Vec<Vec<(usize, f64)>> = Vec::new();
    for (entries, n) in [(&text, for_text), (&images, n - for_text)] {
        // Entry number e of N belongs to stretch floor(e n / N).
        for s in 0..n {
            let numbered = entries.iter().enumerate();
            let stretch: Vec<usize> = numbered.filter(|(e, _)| e * n / entries.len() == s).map(|(_, &i)| i).collect();
            let (tau, epsilon) = (f64::from(r.tau), f64::from(r.epsilon));
            let total: f64 = stretch.iter().map(|&i| epsilon + entropy[i]).sum();
            let decay: Vec<f64> = stretch.iter().map(|&i| (-tau * (epsilon + entropy[i]) / total).exp()).collect();
            // Weight (1 - g_i) prod_{j > i} g_j.
            let weight = |e: usize| (1.0 - decay[e]) * decay[e + 1..].iter().product::<f64>() / (1.0 - (-tau).exp());
            out.push(stretch.iter().enumerate().map(|(e, &i)| (i, weight(e))).collect());
        }
    }
    out
}

fn weighted(stretch: &[(usize, f64)], n: usize, x: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    (0..n).map(|j| stretch.iter().map(|&(i, w)| w * x(i, j)).sum()).collect()
}

#[test]
fn slots_are_entropy_weighted_means() {
    for l in layers() {
        for (tau, epsilon, mass) in [(1.0, 0.05, Mass::Count), (0.1, 0.001, Mass::Entropy), (4.0, 0.5, Mass::Count)] {
            let p = retaining(|r| (r.slots, r.tau, r.epsilon, r.mass) = (5, tau, epsilon, mass));
            let Evicted::Retain(r) = p.evicted else { panic!() };
            let (kept, slots, members) = retain(&p, 24, &l);
            for h in 0..l.n_kv_heads {
                assert_eq!(kept[h].len(), 24 - 5); // slots are paid for
                let entropy = entropies(&l, h);
                for (s, (slot, stretch)) in slots[h].iter().zip(stretches(&l, h, &kept[h], &r)).enumerate() {
                    let d = l.head_dim;
                    near(&slot.key, &weighted(&stretch, d, |i, j| l.key(h, i)[j].into()), 2e-4, "key");
                    near(&slot.value, &weighted(&stretch, d, |i, j| l.value(h, i)[j].into()), 2e-4, "value");
                    let expected = match mass {
                        Mass::Count => stretch.len() as f64,
                        Mass::Entropy => stretch.iter().map(|&(i, _)| entropy[i]).sum(),
                    };
                    near(&[slot.mass], &[expected], 1e-4, "mass");
                    assert!(stretch.iter().all(|(i, _)| members[l.starts[h] as usize + i] == s as u32));
                }
                assert!(kept[h].iter().all(|i| members[(l.starts[h] + i) as usize] == u32::MAX));
            }
        }
    }
}

/// Covariances with the weights of the means; paid for in entries.
#[test]
fn moments_of_slots() {
    for l in layers() {
        let d = l.head_dim;
        let p = retaining(|r| (r.slots, r.tau, r.readout) = (2, 2.0, Readout::Tilt));
        let Evicted::Retain(r) = p.evicted else { panic!() };
        // Bytes of a slot: key, value, variance, covariance; of an entry: key and value.
        let cost = 2 * (3 * d + d * d).div_ceil(2 * d);
        let (kept, slots, _) = retain(&p, (10 + W + cost) as u32, &l);
        for h in 0..l.n_kv_heads {
            assert_eq!(kept[h].len(), (10 + W).min(l.lens[h] as usize));
            if kept[h].len() == l.lens[h] as usize {
                continue;
            }
            for (slot, stretch) in slots[h].iter().zip(stretches(&l, h, &kept[h], &r)) {
                let (key, value) = (
                    weighted(&stretch, d, |i, j| l.key(h, i)[j].into()),
                    weighted(&stretch, d, |i, j| l.value(h, i)[j].into()),
                );
                let off = |i: usize, j: usize| f64::from(l.key(h, i)[j]) - key[j];
                near(&slot.variance, &weighted(&stretch, d, |i, j| off(i, j).powi(2)), 1e-3, "variance");
                let both = |i: usize, x: usize| (f64::from(l.value(h, i)[x / d]) - value[x / d]) * off(i, x % d);
                near(&slot.covariance, &weighted(&stretch, d * d, both), 1e-3, "covariance");
                let lengths = stretch.iter().map(|&(i, _)| (0..d).map(|j| off(i, j).powi(2)).sum::<f64>().sqrt());
                near(&[slot.radius], &[lengths.fold(0.0, f64::max)], 1e-3, "radius");
            }
        }
    }
}

/// Keys of independent normal elements and values that depend on them linearly: a tilted slot reads like all its entries,
/// and far better than its mean does.
#[test]
fn tilted_slots_read_normal_entries() {
    let (n, d) = (40_000, 4);
    let mut rng = Rng(8);
    let mut l = Layer::random(&mut rng, &[n], 1, d, W, 0.0);
    let scales = [0.3, 1.0, 0.7, 0.2];
    for i in 0..n as usize {
        for (k, scale) in l.keys[i * d..][..d].iter_mut().zip(scales) {
            *k = 0.5 + scale * *k;
        }
        let (k, v) = (&l.keys[i * d..][..d], &mut l.values[i * d..][..d]);
        for (j, v) in v.iter_mut().enumerate() {
            *v = 0.1 * *v + k[j] - 0.5 * k[(j + 1) % d] + 1.0;
        }
    }
    // One slot for everything but the newest, all entries alike.
    let p = retaining(|r| (r.slots, r.tau, r.epsilon, r.readout) = (1, 1e-3, 1e6, Readout::Tilt));
    let (_, slots, _) = retain(&p, (W + 1 + 4) as u32, &l);
    let slot = &slots[0][0];
    for query in [[1.0, 0.5, -1.0, 2.0], [0.0, 2.0, 1.0, 0.0], [-1.5, -1.5, 0.3, 0.3]] {
        let (mut sum, mut out) = (0.0, [0.0; 4]);
        for i in 0..n as usize - W - 1 {
            let weight = (reference::dot(&query, &reference::wide(l.key(0, i))) * f64::from(l.scale)).exp();
            sum += weight;
            out.iter_mut().zip(l.value(0, i)).for_each(|(o, v)| *o += weight * f64::from(*v));
        }
        let out = out.map(|o| o / sum);
        let narrow = query.map(|q| q as f32);
        let mut value = [9.0; 4];
        let logit = tilt(Dispatch::detect(), l.scale, &narrow, slot.slot(), &mut value).unwrap();
        assert!((f64::from(logit) - sum.ln()).abs() < 0.01, "{logit} {}", sum.ln());
        near(&value, &out, 0.03, "value");
        let shift = |v: &[f32]| v.iter().zip(&out).map(|(v, o)| (f64::from(*v) - o).powi(2)).sum::<f64>().sqrt();
        assert!(shift(&value) < 0.15 * shift(&slot.value), "{} {}", shift(&value), shift(&slot.value));
    }
    // Without scatter it is the mean; the radius bounds the gain; an empty slot takes no part.
    let (key, zero) = ([1.0, 2.0], [0.0; 4]);
    let of = |mass, variance, radius| {
        let slot = Slot { key: &key, value: &[3.0, 4.0], mass, variance, covariance: &zero, radius };
        let mut value = [9.0; 2];
        (tilt(Dispatch::detect(), 0.5, &[0.6, 0.8], slot, &mut value).unwrap(), value)
    };
    let (plain, value) = of(2.0, &[0.0; 2], 0.0);
    assert!((plain - (0.5 * 2.2 + 2f32.ln())).abs() < 1e-6 && value == [3.0, 4.0]);
    assert!((of(2.0, &[4.0, 0.0], 10.0).0 - plain - 0.5 * 0.25 * 1.44).abs() < 1e-6);
    assert!((of(2.0, &[4.0, 0.0], 0.1).0 - plain - 0.05).abs() < 1e-6);
    assert_eq!(of(0.0, &[0.0; 2], 0.0), (f32::NEG_INFINITY, [0.0; 2]));
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
    let (kept, slots, _) = retain(&retaining(|r| r.slots = 3), 20, &l);
    let query = reference::wide(&Rng(9).normals(8));
    let logit = |k: &[f32]| (reference::dot(&query, &reference::wide(k)) * f64::from(l.scale)).exp();
    let attend = |entries: Vec<(f64, &[f32])>| -> Vec<f64> {
        let z: f64 = entries.iter().map(|e| e.0).sum();
        (0..8).map(|j| entries.iter().map(|(w, v)| w / z * f64::from(v[j])).sum()).collect()
    };
    let full = attend((0..60).map(|i| (logit(l.key(0, i)), l.value(0, i))).collect());
    let mut entries: Vec<(f64, &[f32])> =
        kept[0].iter().map(|&i| (logit(l.key(0, i as usize)), l.value(0, i as usize))).collect();
    entries.extend(slots[0].iter().map(|s| (logit(&s.key) * f64::from(s.mass), &s.value[..])));
    let ours: Vec<f32> = attend(entries).iter().map(|&x| x as f32).collect();
    near(&ours, &full, 1e-5, "output");
}

/// A decay near 0 with certain entries counted in full is the arithmetic mean; nothing evicted leaves the slots empty;
/// a single slot holds text and images alike.
#[test]
fn slots_at_the_edges() {
    let l = &layers()[1];
    let (kept, slots, _) = retain(&retaining(|r| (r.slots, r.tau, r.epsilon) = (1, 1e-4, 1e6)), 20, l);
    let gone = evicted(&kept[0], l.lens[0]);
    let mean = |j: usize| gone.iter().map(|&i| f64::from(l.key(0, i)[j])).sum::<f64>() / gone.len() as f64;
    near(&slots[0][0].key, &(0..l.head_dim).map(mean).collect::<Vec<_>>(), 1e-3, "mean");
    assert_eq!(slots[0][0].mass, gone.len() as f32);

    // A lone image entry has a slot of its own, the last, however few of the five that leaves it by its share.
    let mut lone = l.clone();
    lone.tags.fill(0);
    let kept = evict(&retaining(|r| r.slots = 5), 24, &lone);
    let first_gone = evicted(&kept[0], lone.lens[0])[0];
    lone.tags[first_gone] = tag::IMAGE;
    let (_, slots, _) = retain(&retaining(|r| r.slots = 5), 24, &lone);
    assert_eq!(slots[0][4].mass, 1.0);
    near(&slots[0][4].key, &reference::wide(lone.key(0, first_gone)), 1e-5, "lone image");

    let (kept, slots, _) = retain(&retaining(|_| {}), 64, l);
    assert_eq!(kept[0].len(), 64);
    assert!(slots[0].iter().all(|s| s.mass == 0.0 && s.key.iter().all(|&x| x == 0.0)));
    // The gain raises entries of spread attention.
    let boosted = scores(&retaining(|r| r.gain = 0.5), 24, l);
    let plain = scores(&policy("snapkv").with_window(W as u32), 24, l);
    let entropy = entropies(l, 0);
    for i in 0..l.lens[0] as usize - W {
        let expected = f64::from(plain[i]) * (1.0 + 0.5 * entropy[i]);
        assert!((f64::from(boosted[i]) - expected).abs() <= 1e-5 * expected);
    }
}

#[test]
fn slots_refuse() {
    let l = &layers()[0];
    let view = l.view();
    let run = |p: &Policy, budget: u32, indices: &[u32], counts: &[u32], keys: usize| {
        let (mut f32s, mut u32s) = (vec![0.0; 1 << 14], vec![0; 1 << 10]);
        let (mut k, mut v, mut mass) = (vec![7.0; keys], vec![7.0; 8 * 2 * 16], vec![7.0; 16]);
        let w = Workspace { f32s: &mut f32s, u32s: &mut u32s };
        let out = Slots { keys: &mut k, values: &mut v, mass: &mut mass, members: &mut [], moments: None };
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
    // Moments are asked for and not given.
    let tilted = retaining(|r| (r.slots, r.readout) = (1, Readout::Tilt));
    assert!(matches!(run(&tilted, 20, &indices, &[9, 9], 32), Err(Error::Config(_))));
    let budget = run(&retaining(|_| {}), 8, &indices, &[9, 9], good);
    assert_eq!(budget, Err(Error::BudgetTooSmall { protected: 9, budget: 8 }));
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
