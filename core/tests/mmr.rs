//! Choosing one by one against a naive double-precision greedy choice.

mod reference;
mod support;

use ecokv_core::*;
use support::*;

const W: usize = 8;

fn layers() -> [Layer; 3] {
    let mut rng = Rng(5);
    [(vec![60, 45], 3, 16, 1.0), (vec![50], 2, 5, 4.0), (vec![40, 38, 44], 1, 33, 0.0)]
        .map(|(lens, group, d, bias): (Vec<u32>, usize, usize, f32)| Layer::random(&mut rng, &lens, group, d, W, bias))
}

fn mmr(change: impl Fn(&mut Mmr)) -> Policy {
    let mut p = policy("mmr").with_window(W as u32);
    if let Diversity::Mmr(m) = &mut p.diversity {
        change(m);
    }
    p
}

/// Compares every head's kept set with the greedy choice, up to the first choice that f32 cannot be sure of.
fn check(name: &str, p: &Policy, l: &Layer, base: impl Fn(usize) -> Vec<f64>) {
    let Diversity::Mmr(m) = p.diversity else { panic!() };
    let by_attention = matches!(m.similarity, Similarity::NearestAttention | Similarity::MeanAttention);
    let nearest = matches!(m.similarity, Similarity::NearestKey | Similarity::NearestAttention);
    let lambda = m.redundancy.at(l.layer, l.n_layers);
    let mut compared = 0;
    for count in [1, 2, 5, 14] {
        let kept = evict(p, (count + W) as u32, l);
        for (h, kept) in kept.iter().enumerate() {
            let n = l.lens[h] as usize;
            let seed: Vec<usize> = if m.seed_protected { (n - W..n).collect() } else { vec![] };
            let similar = reference::similarity(l, h, W, by_attention);
            let mut base = base(h);
            if let Search::Shortlist(each) = m.search {
                let list = reference::top(&base, (each as usize * count).min(base.len()));
                let listed = |i: usize| list.contains(&(i as u32));
                base.iter_mut().enumerate().filter(|(i, _)| !listed(*i)).for_each(|(_, s)| *s = f64::NEG_INFINITY);
            }
            let (mut chosen, margins) = reference::greedy(&base, lambda.into(), count, &seed, nearest, similar);
            if margins.iter().any(|&m| m < 1e-4) {
                continue;
            }
            compared += 1;
            chosen.extend(n - W..n);
            chosen.sort_unstable();
            assert!(kept.iter().map(|&i| i as usize).eq(chosen), "{name} head {h} count {count}");
        }
    }
    assert!(compared >= l.n_kv_heads, "{name}: {compared}");
}

fn snapkv(l: &Layer, h: usize) -> Vec<f64> {
    reference::snapkv(l, h, W, l.lens[h] as usize - W)
}

/// Mean 1.
fn matched(a: &[f64]) -> Vec<f64> {
    a.iter().map(|x| x / reference::mean(a)).collect()
}

#[test]
fn similarities_and_signs() {
    for l in layers() {
        let kinds =
            [Similarity::NearestKey, Similarity::MeanKey, Similarity::NearestAttention, Similarity::MeanAttention];
        for similarity in kinds {
            for lambda in [-0.5, -3.0, 0.7] {
                for seed_protected in [false, true] {
                    let p = mmr(|m| {
                        m.similarity = similarity;
                        m.redundancy = Depth::Constant(lambda);
                        m.seed_protected = seed_protected;
                    });
                    let name = format!("{similarity:?} {lambda} {seed_protected}");
                    check(&name, &p, &l, |h| matched(&snapkv(&l, h)));
                }
            }
        }
    }
}

/// A choice from the best by importance alone is not the whole choice, but the greedy one among them.
#[test]
fn shortlists() {
    let mut differ = false;
    for l in layers() {
        for similarity in
            [Similarity::NearestKey, Similarity::MeanKey, Similarity::NearestAttention, Similarity::MeanAttention]
        {
            for (each, seed_protected) in [(1, false), (2, false), (2, true)] {
                let with = |search| {
                    mmr(|m| {
                        m.redundancy = Depth::Constant(-3.0);
                        (m.similarity, m.seed_protected, m.search) = (similarity, seed_protected, search);
                    })
                };
                let p = with(Search::Shortlist(each));
                check(&format!("{similarity:?} {each}"), &p, &l, |h| matched(&snapkv(&l, h)));
                differ |= evict(&p, 17, &l) != evict(&with(Search::All), 17, &l);
            }
        }
    }
    assert!(differ);
}

#[test]
fn dispersion() {
    for l in layers() {
        for pooled in [false, true] {
            let p = mmr(|m| {
                m.dispersion = Depth::Constant(0.8);
                m.pool_dispersion = pooled;
            });
            let base = |h: usize| {
                let m = l.lens[h] as usize - W;
                let rows = reference::window(&l, h, W);
                let sigma: Vec<f64> = (0..m)
                    .map(|i| {
                        let column: Vec<f64> = rows.iter().map(|r| r[i]).collect();
                        let mean = reference::mean(&column);
                        reference::mean(&column.iter().map(|x| (x - mean).powi(2)).collect::<Vec<_>>()).sqrt()
                    })
                    .collect();
                let sigma = if pooled { reference::pool5(&sigma) } else { sigma };
                let a = snapkv(&l, h);
                let level = reference::mean(&a);
                (0..m).map(|i| (a[i] + 0.8 * sigma[i]) / level).collect()
            };
            check("dispersion", &p, &l, base);
        }
    }
}

/// Probabilities as they are, with weights as small.
#[test]
fn raw_scale() {
    for l in layers() {
        let p = mmr(|m| {
            m.mean_match = false;
            m.redundancy = Depth::Constant(-0.05);
        });
        check("raw", &p, &l, |h| snapkv(&l, h));
    }
}

/// Weights 0 leave the importance alone; a lazy choice and one from a list of all are the same choice.
#[test]
fn equalities() {
    for l in layers() {
        let snapkv = policy("snapkv").with_window(W as u32);
        assert_eq!(evict(&mmr(|m| m.redundancy = Depth::Constant(0.0)), 20, &l), evict(&snapkv, 20, &l));
        for similarity in [Similarity::NearestKey, Similarity::NearestAttention] {
            for (lambda, seed_protected) in [(-0.5, false), (-2.0, true), (-30.0, false), (0.0, true)] {
                let of = |search| {
                    mmr(|m| {
                        m.redundancy = Depth::Constant(lambda);
                        (m.similarity, m.seed_protected, m.search) = (similarity, seed_protected, search);
                    })
                };
                for (budget, search) in
                    [9, 10, 17, 30].into_iter().flat_map(|b| [(b, Search::Lazy), (b, Search::Shortlist(99))])
                {
                    let all = evict(&of(Search::All), budget, &l);
                    assert_eq!(evict(&of(search), budget, &l), all, "{similarity:?} {lambda} {search:?}");
                }
            }
        }
        // Adaptive head budgets come from the attention.
        let ada = HeadBudget::Adaptive { floor: 0.2 };
        let counts = |p: Policy| evict(&p.with_head_budget(ada), 20, &l).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(counts(mmr(|_| {})), counts(snapkv));
    }
}

/// Where text goes before images, an image is chosen only once no text is left, whatever the search.
#[test]
fn text_goes_first() {
    for mut l in layers() {
        l.tags = (0..l.rows()).map(|i| if i % 3 == 0 { 0 } else { tag::IMAGE }).collect();
        for search in [Search::All, Search::Lazy, Search::Shortlist(2)] {
            let mut p = mmr(|m| m.search = search);
            p.protect.text_first = true;
            for (budget, enough) in [(W + 4, false), (W + 25, true)] {
                for (h, kept) in evict(&p, budget as u32, &l).iter().enumerate() {
                    let early: Vec<u32> = kept.iter().copied().filter(|&i| i < l.lens[h] - W as u32).collect();
                    let text = |i: &u32| l.tags[(l.starts[h] + i) as usize] == 0;
                    let all = (0..l.lens[h] - W as u32).filter(text).count();
                    let expected = if enough { all } else { early.len() };
                    assert_eq!(early.iter().filter(|i| text(i)).count(), expected, "{search:?} {budget}");
                }
            }
        }
    }
}

#[test]
fn refusals() {
    let l = &layers()[0];
    let refused = |p: &Policy| matches!(evict_view(Dispatch::detect(), p, 20, &l.view()), Err(Error::Config(_)));
    assert!(refused(&mmr(|m| (m.search, m.redundancy) = (Search::Lazy, Depth::Constant(0.1)))));
    assert!(refused(&mmr(|m| (m.search, m.similarity) = (Search::Lazy, Similarity::MeanKey))));
    assert!(refused(&mmr(|m| m.search = Search::Shortlist(0))));
    assert!(refused(&Policy { mix: Mix::HeadRedundancy, ..mmr(|_| {}) }));
    assert!(refused(&Policy { importance: Importance::KeyNorm, ..mmr(|_| {}) }));
}

/// By hand: segments of 10 layers end after 4 and 7; quadratics pass through their knots.
#[test]
fn depth_profiles() {
    let at = |d: Depth| (0..10).map(|l| d.at(l, 10)).collect::<Vec<_>>();
    assert_eq!(at(Depth::ThreeSegment([1.0, 2.0, 3.0])), [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0]);
    assert_eq!(at(Depth::Linear { first: 1.0, last: 10.0 })[9], 10.0);
    let q = Depth::quadratic_through(-1.0, 4.0, 3.0);
    assert_eq!((q.at(0, 9), q.at(4, 9), q.at(8, 9)), (-1.0, 4.0, 3.0));
    assert_eq!(q.at(0, 1), -1.0); // a single layer is the first
    assert_eq!(sinh_weight(0.0, 0.01), 0.0);
    assert!((sinh_weight(2.0, 0.01) - 0.01 * 2f32.sinh()).abs() < 1e-8);
    assert_eq!(sinh_weight(-2.0, 0.01), -sinh_weight(2.0, 0.01));
}
