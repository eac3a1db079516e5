//! The switchable variants of the axes against independent double-precision versions.

mod reference;
mod support;

use ecokv_core::*;
use support::*;

fn layers() -> Vec<Layer> {
    let mut rng = Rng(21);
    [(vec![120, 90], 3, 16, 2.0), (vec![77], 2, 5, 8.0), (vec![60, 64, 70], 1, 33, 0.5)]
        .map(|(lens, group, d, bias): (Vec<u32>, usize, usize, f32)| {
            let mut l = Layer::random(&mut rng, &lens, group, d, 8, bias);
            l.tags = (0..l.rows()).map(|i| if i % 50 > 20 { tag::IMAGE } else { 0 }).collect();
            l
        })
        .to_vec()
}

fn eco(change: impl Fn(&mut Geometry)) -> Policy {
    let mut p = policy("ecokv").with_geometry(0.6, 0.3).unwrap();
    if let Diversity::Geometry(g) = &mut p.diversity {
        change(g);
    }
    p
}

/// Scores of every head within 2e-4 of the reference, relative to its largest.
fn check(name: &str, p: &Policy, l: &Layer, reference: impl Fn(usize) -> Vec<f64>) {
    check_within(2e-4, name, p, l, reference);
}

fn check_within(limit: f64, name: &str, p: &Policy, l: &Layer, reference: impl Fn(usize) -> Vec<f64>) {
    let scores = scores(p, 24, l);
    for h in 0..l.n_kv_heads {
        let expected = reference(h);
        let largest = expected.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        for (i, (s, e)) in scores[l.starts[h] as usize..].iter().zip(&expected).enumerate() {
            assert!((f64::from(*s) - e).abs() <= limit * largest, "{name} head {h} entry {i}: {s} {e}");
        }
    }
}

const WEIGHTS: (f64, f64) = (0.6, 0.3);

fn sum(e: f64, c: f64) -> f64 {
    WEIGHTS.0 * e + WEIGHTS.1 * c
}

#[test]
fn redundancies() {
    for l in layers() {
        let geometries: Vec<_> = (0..l.n_kv_heads).map(|h| reference::geometry(&l, h)).collect();
        let widest = geometries.iter().map(|g| reference::mean(&g.distances)).fold(0.0, f64::max);
        let rho = |kind: Redundancy, h: usize| {
            let (keys, e) = (reference::keys(&l, h), &geometries[h].distances);
            let n = keys.len() as f64;
            match kind {
                Redundancy::MeanOfRange => geometries[h].rho_e,
                Redundancy::Energy => {
                    let mean: Vec<f64> = (0..l.head_dim).map(|j| keys.iter().map(|k| k[j]).sum::<f64>() / n).collect();
                    reference::dot(&mean, &mean) / keys.iter().map(|k| reference::dot(k, k) / n).sum::<f64>()
                }
                Redundancy::Pairs => {
                    // The bracket is the mean squared distance of two different keys, pair by pair.
                    let mut pairs = 0.0;
                    for a in &keys {
                        for b in &keys {
                            pairs += a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
                        }
                    }
                    let furthest = e.iter().copied().fold(0.0, f64::max);
                    1.0 - pairs / (n * (n - 1.0)) / (2.0 * furthest).powi(2)
                }
                Redundancy::Layer => 1.0 - reference::mean(e) / widest,
            }
        };
        for kind in [Redundancy::MeanOfRange, Redundancy::Energy, Redundancy::Pairs, Redundancy::Layer] {
            let reference = |h: usize| {
                let e = geometries[h].distances.clone();
                reference::ecokv_of(&l, h, WEIGHTS, (8, 8), e, rho(kind, h), sum)
            };
            check(&format!("{kind:?}"), &eco(|g| g.redundancy = kind), &l, reference);
        }
    }
}

#[test]
fn references() {
    for l in layers() {
        let to_means = |h: usize, class: &dyn Fn(usize) -> usize| -> Vec<f64> {
            let keys = reference::keys(&l, h);
            let distance = |(i, k): (usize, &Vec<f64>)| {
                let same: Vec<_> = (0..keys.len()).filter(|&j| class(j) == class(i)).map(|j| &keys[j]).collect();
                let off = |j: usize| k[j] - same.iter().map(|s| s[j]).sum::<f64>() / same.len() as f64;
                (0..l.head_dim).map(|j| off(j).powi(2)).sum::<f64>().sqrt()
            };
            keys.iter().enumerate().map(distance).collect()
        };
        let check_with = |reference: Reference, class: &dyn Fn(usize, usize) -> usize| {
            let expected = |h: usize| {
                let e = to_means(h, &|i| class(h, i));
                let rho = 1.0 - reference::mean(&e) / e.iter().copied().fold(0.0, f64::max);
                reference::ecokv_of(&l, h, WEIGHTS, (8, 8), e, rho, sum)
            };
            check(&format!("{reference:?}"), &eco(|g| g.reference = reference), &l, expected);
        };
        check("farthest first", &eco(|g| g.reference = Reference::FarthestFirst), &l, |h| {
            let n = l.lens[h] as usize;
            let e = reference::farthest_first(&reference::keys(&l, h), &(n - 8..n).collect::<Vec<_>>());
            let rho = 1.0 - reference::mean(&e) / e.iter().copied().fold(0.0, f64::max);
            reference::ecokv_of(&l, h, WEIGHTS, (8, 8), e, rho, sum)
        });
        // Nothing to start from: the mean key. Alone, the first of the traversal are the kept.
        let alone = Policy {
            diversity: Diversity::Geometry(Geometry { reference: Reference::FarthestFirst, ..Geometry::new(1.0, 0.0) }),
            ..policy("manifoldkv")
        };
        check("farthest first alone", &alone, &l, |h| reference::farthest_first(&reference::keys(&l, h), &[]));
        check_with(Reference::Window(25), &|_, i| i / 25);
        check_with(Reference::Modality, &|h, i| usize::from(l.tags[l.starts[h] as usize + i]));
    }
}

#[test]
fn combinations_and_scalings() {
    for l in layers() {
        let product = |e: f64, c: f64| e.powf(WEIGHTS.0) * c.powf(WEIGHTS.1);
        let expected = |h: usize| {
            let g = reference::geometry(&l, h);
            reference::ecokv_of(&l, h, WEIGHTS, (8, 8), g.distances.clone(), g.rho_e, product)
        };
        check("product", &eco(|g| g.combine = Combine::Product), &l, expected);
        // Ranks of the two metrics under an importance that is not ranked.
        check_within(0.03, "rank sum", &eco(|g| g.combine = Combine::RankSum), &l, |h| {
            let g = reference::geometry(&l, h);
            let m = l.lens[h] as usize - 8;
            let share = |x: &[f64], i: usize| x[..m].iter().filter(|y| **y < x[i]).count() as f64 / m as f64;
            let opposite: Vec<f64> = g.cosines.iter().map(|c| -c).collect();
            let d: Vec<f64> = (0..m).map(|i| sum(share(&g.distances, i), share(&opposite, i))).collect();
            let a = reference::snapkv(&l, h, 8, m);
            let importance = reference::with_values(&l, h, &a);
            let rho = WEIGHTS.0 * g.rho_e + WEIGHTS.1 * g.rho_c;
            let level = reference::mean(&a) / reference::mean(&d);
            (0..m).map(|i| rho * d[i] * level + (1.0 - rho) * importance[i]).collect()
        });
        type Scale = fn(&[f64]) -> Vec<f64>;
        let z: Scale = |x| {
            let m = reference::mean(x);
            let sd = reference::mean(&x.iter().map(|x| (x - m).powi(2)).collect::<Vec<_>>()).sqrt();
            x.iter().map(|x| (x - m) / sd).collect()
        };
        let rank: Scale = |x| x.iter().map(|a| x.iter().filter(|b| *b < a).count() as f64 / x.len() as f64).collect();
        // Two scores closer than f32 resolves may exchange neighbouring ranks, each a share of about 1 / 52 at most.
        for (scaling, scale, limit) in [(Scaling::ZScore, z, 2e-4), (Scaling::Rank, rank, 0.03)] {
            let expected = |h: usize| {
                let m = l.lens[h] as usize - 8;
                let importance = scale(&reference::with_values(&l, h, &reference::snapkv(&l, h, 8, m)));
                let g = reference::geometry(&l, h);
                let c = scale(&g.cosines[..m].iter().map(|c| -c).collect::<Vec<_>>());
                let e = scale(&g.distances[..m]);
                let d = scale(&(0..m).map(|i| sum(e[i], c[i])).collect::<Vec<_>>());
                let rho = (WEIGHTS.0 * g.rho_e + WEIGHTS.1 * g.rho_c).clamp(0.0, 1.0);
                (0..m).map(|i| rho * d[i] + (1.0 - rho) * importance[i]).collect()
            };
            check_within(limit, &format!("{scaling:?}"), &eco(|g| g.scaling = scaling), &l, expected);
        }
    }
}

/// The mixes on one head, from its two unmixed terms.
#[test]
fn mixes() {
    for l in layers() {
        let with = |mix| Policy { mix, ..eco(|_| {}) };
        let rho: Vec<f64> = (0..l.n_kv_heads)
            .map(|h| {
                let g = reference::geometry(&l, h);
                WEIGHTS.0 * g.rho_e + WEIGHTS.1 * g.rho_c
            })
            .collect();
        let at = |weight: f64| {
            let l = &l;
            move |h: usize| {
                let m = l.lens[h] as usize - 8;
                let a = reference::snapkv(l, h, 8, m);
                let importance = reference::with_values(l, h, &a);
                let g = reference::geometry(l, h);
                // A composite redundancy of `weight`, whatever the head's own.
                let forced = (weight - WEIGHTS.1 * g.rho_c) / WEIGHTS.0;
                let mixed = reference::ecokv_of(l, h, WEIGHTS, (8, 8), g.distances.clone(), forced, sum);
                assert_eq!(mixed.len(), importance.len());
                mixed
            }
        };
        let mean = rho.iter().sum::<f64>() / rho.len() as f64;
        let hard = |h: usize| at(f64::from(u8::from(rho[h] >= mean)))(h);
        check("hard", &with(Mix::HardRedundancy { threshold: mean as f32 }), &l, hard);
        for (diversity, importance) in [(0.2f32, 0.5f32), (1.0, 1.0), (3.0, 0.1)] {
            let soft = |h: usize| {
                let (a, b) = ((rho[h] / f64::from(diversity)).exp(), ((1.0 - rho[h]) / f64::from(importance)).exp());
                at(a / (a + b))(h)
            };
            check("soft", &with(Mix::SoftRedundancy { diversity, importance }), &l, soft);
        }
        // Cold, it is the hard choice; hot, the mean.
        let (cut, t) = (mean as f32 - 0.01, 1e-4);
        let cold = Mix::SoftRedundancy { diversity: t * cut, importance: t * (1.0 - cut) };
        assert_eq!(evict(&with(cold), 24, &l), evict(&with(Mix::HardRedundancy { threshold: cut }), 24, &l));
        check("hot", &with(Mix::SoftRedundancy { diversity: 1e6, importance: 1e6 }), &l, at(0.5));
        check("table", &with(Mix::HeadTable), &l, |h| at(l.head_weights[h].into())(h));
        check("weight", &with(Mix::Weight(Depth::Constant(0.25))), &l, at(0.25));
        // Layer 1 of 4, from 0.9 to 0.3.
        check("linear", &with(Mix::Weight(Depth::Linear { first: 0.9, last: 0.3 })), &l, at(0.7));
    }
}

#[test]
fn rkv() {
    for l in layers() {
        let expected = |h: usize| {
            let m = l.lens[h] as usize - 8;
            let importance = reference::rkv_importance(&l, h, 8, m);
            let repetition = reference::rkv_redundancy(&l, h, 0.5);
            (0..m).map(|i| 0.07 * importance[i] - 0.93 * repetition[i]).collect()
        };
        check("rkv", &policy("rkv"), &l, expected);
    }
}

#[test]
fn adakv_paper() {
    for l in layers() {
        for (floor, normalise) in [(0.2, true), (0.2, false), (0.5, true), (0.0, true)] {
            let p = policy("snapkv").with_window(8);
            let kept = evict(&p.with_head_budget(HeadBudget::AdaptivePaper { floor, normalise }), 30, &l);
            let heads: Vec<_> =
                (0..l.n_kv_heads).map(|h| reference::snapkv(&l, h, 8, l.lens[h] as usize - 8)).collect();
            let counts = reference::adakv_paper(&heads, 22, floor.into(), normalise);
            for (kept, (scores, count)) in kept.iter().zip(heads.iter().zip(&counts)) {
                assert_eq!(kept.len(), count + 8);
                assert_eq!(kept[..*count], reference::top(scores, *count));
            }
        }
    }
}

#[test]
fn weights_that_add_up_to_1() {
    let g = Geometry::new(0.6, 0.2).normalised();
    assert!((g.alpha - 0.75).abs() < 1e-6 && (g.beta - 0.25).abs() < 1e-6);
    assert_eq!(Geometry::new(0.0, 0.0).normalised(), Geometry::new(0.0, 0.0));
}

/// Rates of the sequence; the largest remainders are rounded up.
#[test]
fn head_rates() {
    let mut out = [0; 4];
    from_rates(&[1.0, 0.0, 0.25, 0.5], 10, &mut out).unwrap();
    assert_eq!(out, [10, 0, 3, 5]); // 2.5 is rounded with the total, 17.5
    from_rates(&[0.14, 0.16, 0.13, 0.07], 10, &mut out).unwrap();
    assert_eq!(out, [1, 2, 1, 1]); // of 5, 1 + 1 + 1 + 0 at once, then the remainders .7 and .6
    assert!(from_rates(&[0.5, 1.1, 0.0, 0.0], 10, &mut out).is_err());
    assert!(from_rates(&[f32::NAN; 4], 10, &mut out).is_err());
    assert!(from_rates(&[0.5; 3], 10, &mut out).is_err());
    let mut heads = [0.0; 2];
    per_kv_head(&[1.0, 3.0, 0.0, 0.5, 0.0, 1.0], 3, &mut heads).unwrap();
    assert!((heads[0] - 4.0 / 3.0).abs() < 1e-6 && heads[1] == 0.5);
    assert!(per_kv_head(&[1.0; 5], 3, &mut heads).is_err());
    assert!(per_kv_head(&[], 0, &mut heads).is_err());
}

/// Profiles: the window and an even tenth for all, the rest in proportion; a short head hands its surplus on.
#[test]
fn head_tables() {
    let mut out = [0; 4];
    from_profile(&[1.0, 2.0, 0.0, 1.0], 132, 32, 0.1, &mut out).unwrap();
    // 100 scored entries: 10 for each, 360 left: 90, 180, 0, 90.
    assert_eq!(out, [132, 222, 42, 132]);
    from_profile(&[1.0, 1.0, 1.0, 0.0], 3, 2, 0.0, &mut out).unwrap();
    assert_eq!(out, [4, 3, 3, 2]); // 4 entries in three equal parts: the first of equal remainders
    // 8 of 1 : 2 : 4 : 3 are 0.8, 1.6, 3.2, 2.4: the remainders .8 and .6 are rounded up.
    from_profile(&[0.1, 0.2, 0.4, 0.3], 2, 0, 0.0, &mut out).unwrap();
    assert_eq!(out, [1, 2, 3, 2]);
    assert!(from_profile(&[1.0, f32::NAN, 0.0, 0.0], 3, 2, 0.0, &mut out).is_err());
    assert!(from_profile(&[0.0; 4], 3, 2, 0.0, &mut out).is_err());
    assert!(from_profile(&[1.0; 3], 3, 2, 0.0, &mut out).is_err());
    assert_eq!(from_profile(&[1.0; 4], 3, 4, 0.0, &mut out), Err(Error::BudgetTooSmall { protected: 4, budget: 3 }));

    let mut l = Layer::random(&mut Rng(2), &[30, 100, 100], 1, 8, 32, 0.0);
    l.head_budgets = vec![50, 40, 60];
    let counts: Vec<usize> = evict(&policy("sparsemm"), 7, &l).iter().map(Vec::len).collect();
    assert_eq!(counts, [30, 50, 70]);
    // Equal budgets are the uniform budget.
    l.head_budgets = vec![36; 3];
    l.lens = vec![30, 36, 100];
    l.starts = vec![0, 30, 130];
    let even = Layer { lens: vec![36; 3], starts: vec![0, 36, 72], ..l.clone() };
    assert_eq!(evict(&policy("sparsemm"), 7, &even), evict(&policy("snapkv"), 36, &even));
}

/// Two chunks of two: the first is judged by the range of the second, which is 0 to 1 in both channels, and the second by
/// nothing. An entry of (0, 10) spreads over its channels, one of (0.5, 0.5) does not; of equals the newer ranks higher.
#[test]
fn lag_of_two_chunks() {
    let p = Policy {
        importance: Importance::Lag { lag: 2 },
        protect: Protect { sinks: 0, recent: Recent::Window(0), text_first: false },
        ..policy("lagkv")
    };
    for (first, expected) in [([0.0, 10.0, 0.5, 0.5], [0.5, 0.0]), ([0.0, 3.0, 0.0, 3.0], [0.0, 0.5])] {
        let mut l = Layer::random(&mut Rng(1), &[4], 1, 2, 0, 0.0);
        l.keys = [first, [0.0, 0.0, 1.0, 1.0]].concat();
        l.values = l.keys.clone();
        assert_eq!(scores(&p, 4, &l), [&expected[..], &[1.0, 1.0]].concat());
    }
}
