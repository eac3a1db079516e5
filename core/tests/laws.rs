//! Equations between policies that must hold for every layer, over random shapes and every combination of axes.

mod support;

use ecokv_core::*;
use proptest::prelude::*;
use support::*;

fn importances() -> impl Strategy<Value = Importance> {
    let pool = prop_oneof![
        Just(Pool::None),
        Just(Pool::Mean { width: 5, edge: Edge::Zero }),
        Just(Pool::Mean { width: 3, edge: Edge::Renormalise }),
        Just(Pool::Max { width: 7 }),
    ];
    let queries = prop_oneof![
        4 => (1..20u32).prop_map(Queries::Last),
        1 => (1..20u32).prop_map(Queries::Peak),
        1 => any::<bool>().prop_map(|per_visible| Queries::All { per_visible }),
        1 => any::<bool>().prop_map(|covariance| Queries::Expected { covariance }),
    ];
    let values = prop_oneof![
        Just(ValueNorm::None),
        Just(ValueNorm::Add),
        Just(ValueNorm::Times { norm: Norm::L1, epsilon: 0.0 }),
        Just(ValueNorm::Times { norm: Norm::L2, epsilon: 0.01 }),
    ];
    prop_oneof![
        Just(Importance::None),
        Just(Importance::Recency),
        any::<u64>().prop_map(|seed| Importance::Random { seed }),
        Just(Importance::KeyNorm),
        (1..20u32).prop_map(|lag| Importance::Lag { lag }),
        Just(Importance::Given),
        (queries, pool, values).prop_map(|(queries, pool, value_norm)| {
            Importance::Attention(Attention { queries, pool, share_heads: false, value_norm })
        }),
    ]
}

fn diversities() -> impl Strategy<Value = (Diversity, Mix)> {
    let weights = prop_oneof![Just((0.5, 0.5)), Just((0.0, 1.0)), Just((1.0, 0.0)), Just((0.3, 0.9))];
    let combine = prop_oneof![Just(Combine::Sum), Just(Combine::Product)];
    let scaling = prop_oneof![4 => Just(Scaling::MinMax), 1 => Just(Scaling::ZScore), 1 => Just(Scaling::Rank)];
    let reference = prop_oneof![4 => Just(Reference::Mean), 1 => Just(Reference::Modality), 1 => (1..30u32).prop_map(Reference::Window)];
    let redundancy = prop_oneof![
        Just(Redundancy::MeanOfRange),
        Just(Redundancy::Energy),
        Just(Redundancy::Pairs),
        Just(Redundancy::Layer)
    ];
    let geometry = (weights, combine, scaling, reference, redundancy).prop_map(
        |((alpha, beta), combine, scaling, reference, redundancy)| {
            // A product of scores that may be negative means nothing.
            let combine = if scaling == Scaling::ZScore { Combine::Sum } else { combine };
            Diversity::Geometry(Geometry { alpha, beta, combine, scaling, reference, redundancy })
        },
    );
    let mix = prop_oneof![
        Just(Mix::Importance),
        Just(Mix::Diversity),
        Just(Mix::HeadRedundancy),
        Just(Mix::HardRedundancy { threshold: 0.5 }),
        Just(Mix::HeadTable),
        Just(Mix::Thirds),
        Just(Mix::Raw(Depth::Constant(0.4))),
        Just(Mix::Weight(Depth::Constant(0.3))),
        Just(Mix::Weight(Depth::Linear { first: 0.9, last: 0.1 })),
    ];
    let other = prop_oneof![4 => geometry, 1 => Just(Diversity::Repetition { threshold: 0.5 })];
    prop_oneof![1 => Just((Diversity::None, Mix::Importance)), 4 => (other, mix)]
}

fn policies() -> impl Strategy<Value = Policy> {
    let recent =
        prop_oneof![(0..12u32).prop_map(Recent::Window), (0..4u32).prop_map(Recent::Exact), Just(Recent::Share(0.5))];
    let heads = prop_oneof![
        Just(HeadBudget::Uniform),
        (0..=10u32, any::<bool>())
            .prop_map(|(f, normalise)| HeadBudget::AdaptivePaper { floor: f as f32 / 10.0, normalise }),
        (0..=10u32).prop_map(|f| HeadBudget::Adaptive { floor: f as f32 / 10.0 })
    ];
    let static_ones = (importances(), diversities(), 0..4u32, recent.clone(), heads.clone()).prop_map(
        |(importance, (diversity, mix), sinks, recent, head_budget)| Policy {
            importance,
            diversity,
            mix,
            protect: Protect { sinks, recent },
            head_budget,
            evicted: Evicted::Drop,
        },
    );
    let one_by_one =
        (mmrs(), 1..20u32, 0..4u32, recent, heads).prop_map(|(mmr, window, sinks, recent, head_budget)| {
            let p = policy("mmr").with_window(window).with_head_budget(head_budget);
            Policy { diversity: Diversity::Mmr(mmr), protect: Protect { sinks, recent }, ..p }
        });
    prop_oneof![6 => static_ones, 1 => one_by_one]
}

fn mmrs() -> impl Strategy<Value = Mmr> {
    let similarity = prop_oneof![
        Just(Similarity::NearestKey),
        Just(Similarity::MeanKey),
        Just(Similarity::NearestAttention),
        Just(Similarity::MeanAttention),
    ];
    (similarity, prop_oneof![Just(0.0f32), Just(0.7)], -2.0..2.0f32, any::<[bool; 4]>()).prop_map(
        |(similarity, dispersion, redundancy, [mean_match, pool_dispersion, seed_protected, lazy])| {
            let nearest = matches!(similarity, Similarity::NearestKey | Similarity::NearestAttention);
            Mmr {
                dispersion: Depth::Constant(dispersion),
                redundancy: Depth::Constant(redundancy),
                similarity,
                mean_match,
                pool_dispersion,
                seed_protected,
                lazy: lazy && nearest && redundancy <= 0.0,
            }
        },
    )
}

fn layers() -> impl Strategy<Value = Layer> {
    (any::<u64>(), prop::collection::vec(0..60u32, 1..4), 1..4usize, 1..20usize, 1..20usize, 0..3u32).prop_map(
        |(seed, lens, group, head_dim, n_queries, bias)| {
            let mut rng = Rng(seed);
            let mut l = Layer::random(&mut rng, &lens, group, head_dim, n_queries, bias as f32 * 4.0);
            if seed % 3 == 0 {
                l.tags = (0..l.rows()).map(|_| u8::from(rng.below(20) == 0) * tag::PROTECTED).collect();
            }
            l
        },
    )
}

/// The strict part of the protection: what may not shrink.
fn demanded(p: &Policy, l: &Layer, h: usize, i: usize, recent: u32) -> bool {
    let n = l.lens[h] as usize;
    i < p.protect.sinks as usize
        || i + recent as usize >= n
        || l.tags.get(l.starts[h] as usize + i).is_some_and(|t| t & tag::PROTECTED != 0)
}

fn relabel(l: &Layer, order: &[usize]) -> Layer {
    let mut out = Layer { group: l.group, head_dim: l.head_dim, n_queries: l.n_queries, ..Default::default() };
    (out.n_kv_heads, out.scale, out.layer, out.n_layers) = (l.n_kv_heads, l.scale, l.layer, l.n_layers);
    for &h in order {
        let (s, n, d) = (l.starts[h] as usize, l.lens[h] as usize, l.head_dim);
        out.lens.push(l.lens[h]);
        out.keys.extend(&l.keys[s * d..(s + n) * d]);
        out.values.extend(&l.values[s * d..(s + n) * d]);
        out.given.extend(&l.given[s..s + n]);
        out.column_sums.extend(&l.column_sums[s..s + n]);
        out.output_norms.extend(&l.output_norms[s..s + n]);
        let g = l.group * d;
        out.query_mean.extend(&l.query_mean[h * g..(h + 1) * g]);
        out.query_covariance.extend(&l.query_covariance[h * g * d..(h + 1) * g * d]);
        if !l.tags.is_empty() {
            out.tags.extend(&l.tags[s..s + n]);
        }
        let q = l.group * l.n_queries * d;
        out.queries.extend(&l.queries[h * q..(h + 1) * q]);
    }
    out.head_weights = order.iter().map(|&h| l.head_weights[h]).collect();
    out.place();
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..Default::default() })]

    #[test]
    fn lists_counts_and_protection(p in policies(), l in layers(), budget in 0..70u32) {
        let result = evict_view(Dispatch::detect(), &p, budget, &l.view());
        let exact = if let Recent::Exact(n) = p.protect.recent { n } else { 0 };
        let strict = |h: usize| (0..l.lens[h] as usize).filter(|&i| demanded(&p, &l, h, i, exact)).count();
        let most = (0..l.n_kv_heads).map(strict).max().unwrap().max(1) as u32;
        let fits = l.lens.iter().all(|&n| n <= budget);
        let (kept, report) = match result {
            Err(e) => {
                prop_assert_eq!(e, Error::BudgetTooSmall { protected: most, budget });
                prop_assert!(!fits && most > budget);
                return Ok(());
            }
            Ok(ok) => ok,
        };
        prop_assert!(fits || most <= budget);
        for (h, kept) in kept.iter().enumerate() {
            prop_assert!(kept.windows(2).all(|w| w[0] < w[1]));
            prop_assert!(kept.iter().all(|&i| i < l.lens[h]));
            for i in (0..l.lens[h] as usize).filter(|&i| demanded(&p, &l, h, i, report.recent_kept)) {
                prop_assert!(kept.contains(&(i as u32)), "head {} lost protected {}", h, i);
            }
        }
        let total: u32 = l.lens.iter().sum();
        let counts: Vec<u32> = kept.iter().map(|k| k.len() as u32).collect();
        if fits {
            prop_assert_eq!(&counts, &l.lens);
        } else if let HeadBudget::Uniform = p.head_budget {
            prop_assert!(counts.iter().zip(&l.lens).all(|(c, n)| *c == budget.min(*n)));
        } else if let HeadBudget::Adaptive { .. } = p.head_budget {
            prop_assert_eq!(counts.iter().sum::<u32>(), total.min(budget * l.n_kv_heads as u32));
        }
    }

    /// The kept set is the top set of the scores.
    #[test]
    fn kept_is_the_top_of_the_scores(p in policies(), l in layers(), budget in 1..70u32) {
        prop_assume!(!matches!(p.diversity, Diversity::Mmr(_)));
        let Ok((kept, _)) = evict_view(Dispatch::detect(), &p, budget, &l.view()) else { return Ok(()) };
        let scores = scores(&p, budget, &l);
        for (h, kept) in kept.iter().enumerate() {
            let s = &scores[l.starts[h] as usize..][..l.lens[h] as usize];
            let mut order: Vec<u32> = (0..l.lens[h]).collect();
            order.sort_by(|&a, &b| s[b as usize].partial_cmp(&s[a as usize]).unwrap().then(a.cmp(&b)));
            let mut top = order[..kept.len()].to_vec();
            top.sort_unstable();
            prop_assert_eq!(kept, &top);
        }
    }

    /// Every instruction set gives the same bits.
    #[test]
    fn levels_agree(p in policies(), l in layers(), budget in 1..70u32) {
        let run = |d| evict_view(d, &p, budget, &l.view());
        let expected = run(Dispatch::scalar());
        let bits = |d| scores_on(d, &p, budget, &l).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for d in Dispatch::available() {
            prop_assert_eq!(&run(d), &expected, "{}", d.name());
            if expected.is_ok() {
                prop_assert_eq!(bits(d), bits(Dispatch::scalar()), "{}", d.name());
            }
        }
    }

    #[test]
    fn equal_policies(p in policies(), l in layers(), budget in 1..70u32) {
        let run = |p: &Policy| evict_view(Dispatch::detect(), p, budget, &l.view()).map(|r| r.0);
        let sure = p.with_head_budget(HeadBudget::Adaptive { floor: 1.0 });
        let uniform = p.with_head_budget(HeadBudget::Uniform);
        if l.lens.iter().all(|&n| n >= budget) {
            prop_assert_eq!(run(&sure), run(&uniform));
        }
        let plain = Policy { diversity: Diversity::None, mix: Mix::Importance, ..p };
        let unweighted = Policy { mix: Mix::Weight(Depth::Constant(0.0)), diversity: Diversity::Geometry(Geometry::new(0.5, 0.5)), ..p };
        if matches!(p.importance, Importance::Attention(_)) {
            prop_assert_eq!(run(&unweighted), run(&plain));
        }
    }

    /// A larger budget keeps what a smaller one kept, as long as both protect the same window.
    #[test]
    fn budgets_nest(p in policies(), l in layers(), budget in 14..60u32) {
        let p = p.with_head_budget(HeadBudget::Uniform);
        let Ok((less, a)) = evict_view(Dispatch::detect(), &p, budget, &l.view()) else { return Ok(()) };
        let (more, b) = evict_view(Dispatch::detect(), &p, budget + 1, &l.view()).unwrap();
        prop_assume!(a.recent_kept == b.recent_kept);
        for (less, more) in less.iter().zip(&more) {
            prop_assert!(less.iter().all(|i| more.contains(i)));
        }
    }

    #[test]
    fn heads_may_be_relabelled(p in policies(), l in layers(), budget in 1..70u32) {
        // A random choice depends on the head's number.
        prop_assume!(!matches!(p.importance, Importance::Random { .. }));
        let order: Vec<usize> = (0..l.n_kv_heads).rev().collect();
        let run = |l: &Layer| evict_view(Dispatch::detect(), &p, budget, &l.view()).map(|r| r.0);
        // Between heads, equal scores are told apart by age first, then by the head's number.
        prop_assume!(p.head_budget == HeadBudget::Uniform || matches!(p.importance, Importance::Attention(_)));
        let turned = run(&relabel(&l, &order)).map(|kept| order.iter().map(|&h| kept[h].clone()).collect::<Kept>());
        prop_assert_eq!(run(&l), turned);
    }

    #[test]
    fn powers_of_two_change_nothing(l in layers(), budget in 1..70u32, exponent in -20..20i32, floor in 0..=10u32) {
        let p = Policy { importance: Importance::Given, ..policy("full") }
            .with_head_budget(HeadBudget::Adaptive { floor: floor as f32 / 10.0 });
        let mut scaled = l.clone();
        scaled.given.iter_mut().for_each(|x| *x *= 2f32.powi(exponent));
        let run = |l: &Layer| evict_view(Dispatch::detect(), &p, budget, &l.view()).map(|r| r.0);
        prop_assert_eq!(run(&l), run(&scaled));
    }

    /// Gaps between the heads of the arena, filled with garbage, do not matter.
    #[test]
    fn gaps_do_not_matter(p in policies(), l in layers(), budget in 1..70u32, gap in 1..4u32) {
        let mut wide = Layer { keys: vec![], values: vec![], given: vec![], column_sums: vec![], output_norms: vec![], ..l.clone() };
        wide.tags.clear();
        let (d, mut at) = (l.head_dim, 0);
        for h in 0..l.n_kv_heads {
            let (s, n) = (l.starts[h] as usize, l.lens[h] as usize);
            wide.starts[h] = at;
            at += l.lens[h] + gap;
            for (to, from) in [(&mut wide.keys, &l.keys), (&mut wide.values, &l.values)] {
                to.extend(&from[s * d..(s + n) * d]);
                to.extend(vec![f32::NAN; gap as usize * d]);
            }
            for (to, from) in [
                (&mut wide.given, &l.given),
                (&mut wide.column_sums, &l.column_sums),
                (&mut wide.output_norms, &l.output_norms),
            ] {
                to.extend(&from[s..s + n]);
                to.extend(vec![f32::INFINITY; gap as usize]);
            }
            if !l.tags.is_empty() {
                wide.tags.extend(&l.tags[s..s + n]);
                wide.tags.extend(vec![tag::PROTECTED; gap as usize]);
            }
        }
        let run = |l: &Layer| evict_view(Dispatch::detect(), &p, budget, &l.view());
        prop_assert_eq!(run(&l), run(&wide));
    }

    #[test]
    fn layer_budgets_add_up(
        layers in 1..100usize, budget in 0..5000u32, window in 0..64u32, seq in 0..20000u32, beta in 1..40u32
    ) {
        let mut out = vec![0; layers];
        LayerBudget::Pyramid { beta }.allocate(budget, window, seq, &mut out).unwrap();
        prop_assert_eq!(out.iter().sum::<u32>(), budget * layers as u32);
        if beta == 1 {
            prop_assert!(out.iter().all(|&b| b == budget));
        }
        LayerBudget::Uniform.allocate(budget, window, seq, &mut out).unwrap();
        prop_assert!(out.iter().all(|&b| b == budget));
    }
}

/// Adding one vector to every key changes no distance to the mean key, so Euclidean diversity ignores it.
#[test]
fn euclidean_diversity_ignores_a_common_vector() {
    let l = Layer::random(&mut Rng(5), &[80], 1, 16, 8, 0.0);
    let mut moved = l.clone();
    moved.keys.iter_mut().for_each(|k| *k += 0.5);
    let euclid = policy("keydiff").with_geometry(1.0, 0.0).unwrap();
    assert_eq!(evict(&euclid, 20, &l), evict(&euclid, 20, &moved));
    assert_ne!(evict(&policy("keydiff"), 20, &l), evict(&policy("keydiff"), 20, &moved));
}
