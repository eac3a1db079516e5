//! Random policies over every combination of axes, and random layers that suit them.

use ecokv_core::*;
use proptest::prelude::*;

use super::{Layer, Rng};

/// A policy and a layer it can be applied to.
pub fn cases() -> impl Strategy<Value = (Policy, Layer)> {
    (policies(), layers()).prop_map(|(p, mut l)| {
        let shared = matches!(p.importance, Importance::Attention(Attention { share_heads: true, .. }));
        if shared && l.lens.iter().any(|&n| n != l.lens[0]) {
            let mut rng = Rng(l.lens.iter().map(|&n| u64::from(n)).sum());
            let mut even =
                Layer::random(&mut rng, &vec![l.lens[0]; l.n_kv_heads], l.group, l.head_dim, l.n_queries, 0.0);
            (even.layer, even.n_layers) = (l.layer, l.n_layers);
            even.tags = (0..even.rows()).map(|i| l.tags.get(i).copied().unwrap_or(0)).collect();
            even.head_budgets = std::mem::take(&mut l.head_budgets);
            l = even;
        }
        (p, l)
    })
}

/// Ragged heads, odd and even sizes, keys with and without a common part, tags on most, any depth.
pub fn layers() -> impl Strategy<Value = Layer> {
    let heads = prop::collection::vec((0..70u32, 1..80u32), 1..5);
    let depth = (0..5u32, 1..5u32);
    (any::<u64>(), heads, 1..5usize, 1..40usize, 1..24usize, 0..3u32, depth).prop_map(
        |(seed, heads, group, head_dim, n_queries, bias, (layer, more))| {
            let (lens, budgets): (Vec<u32>, Vec<u32>) = heads.into_iter().unzip();
            let mut rng = Rng(seed);
            let mut l = Layer::random(&mut rng, &lens, group, head_dim, n_queries, bias as f32 * 4.0);
            (l.layer, l.n_layers, l.head_budgets) = (layer, layer + more, budgets);
            if seed % 3 != 0 {
                let kinds = if seed % 3 == 1 { tag::IMAGE } else { tag::IMAGE | tag::PROTECTED };
                let mut flag = |one_in: usize, flag: u8| if rng.below(one_in) == 0 { flag & kinds } else { 0 };
                l.tags = (0..l.rows()).map(|_| flag(20, tag::PROTECTED) | flag(2, tag::IMAGE)).collect();
            }
            l
        },
    )
}

pub fn policies() -> impl Strategy<Value = Policy> {
    let terms = prop_oneof![
        3 => (importances(), diversities()).prop_map(|(i, (d, m))| (i, d, m)),
        1 => (windows(), mmrs()).prop_map(|(i, m)| (Importance::Attention(i), Diversity::Mmr(m), Mix::Importance)),
    ];
    (terms, protections(), head_budgets(), fates()).prop_map(
        |((importance, diversity, mix), protect, head_budget, fate)| {
            let windowed = matches!(importance, Importance::Attention(Attention { queries: Queries::Last(_), .. }));
            let evicted = match fate {
                Evicted::Retain(_) if !windowed => Evicted::Drop, // slots need a window's attention
                fate => fate,
            };
            Policy { importance, diversity, mix, protect, head_budget, evicted }
        },
    )
}

fn importances() -> impl Strategy<Value = Importance> {
    let other = prop_oneof![
        Just(Importance::None),
        Just(Importance::Recency),
        any::<u64>().prop_map(|seed| Importance::Random { seed }),
        Just(Importance::KeyNorm),
        (1..20u32).prop_map(|lag| Importance::Lag { lag }),
        (1..20u32).prop_map(|window| Importance::Leverage { window }),
        Just(Importance::Given),
    ];
    let queries = prop_oneof![
        (1..20u32).prop_map(Queries::Peak),
        any::<bool>().prop_map(|per_visible| Queries::All { per_visible }),
        any::<bool>().prop_map(|covariance| Queries::Expected { covariance }),
    ];
    let attention = (windows(), prop::option::of(queries))
        .prop_map(|(a, q)| Importance::Attention(Attention { queries: q.unwrap_or(a.queries), ..a }));
    prop_oneof![1 => other, 2 => attention]
}

/// Attention of a window.
fn windows() -> impl Strategy<Value = Attention> {
    let pool = prop_oneof![
        Just(Pool::None),
        Just(Pool::Mean { width: 5, edge: Edge::Zero }),
        Just(Pool::Mean { width: 3, edge: Edge::Renormalise }),
        Just(Pool::Max { width: 7 }),
    ];
    let value_norm = prop_oneof![
        Just(ValueNorm::None),
        Just(ValueNorm::Add),
        Just(ValueNorm::Times { norm: Norm::L1, epsilon: 0.0 }),
        Just(ValueNorm::Times { norm: Norm::L2, epsilon: 0.01 }),
        (0..=10u32).prop_map(|x| ValueNorm::Output { epsilon: 1e-4, first_stage: x as f32 / 10.0 }),
    ];
    (1..20u32, pool, value_norm, prop::bool::weighted(0.2)).prop_map(|(w, pool, value_norm, share_heads)| Attention {
        queries: Queries::Last(w),
        pool,
        share_heads,
        value_norm,
    })
}

fn diversities() -> impl Strategy<Value = (Diversity, Mix)> {
    let some = prop_oneof![5 => geometries(), 1 => Just(Diversity::Repetition { threshold: 0.5 })];
    prop_oneof![1 => Just((Diversity::None, Mix::Importance)), 4 => (some, mixes())]
}

fn geometries() -> impl Strategy<Value = Diversity> {
    let weights = prop_oneof![Just((0.5, 0.5)), Just((0.0, 1.0)), Just((1.0, 0.0)), Just((0.3, 0.9))];
    let combine = prop_oneof![Just(Combine::Sum), Just(Combine::Product), Just(Combine::RankSum)];
    let scaling = prop_oneof![3 => Just(Scaling::MinMax), 1 => Just(Scaling::ZScore), 1 => Just(Scaling::Rank)];
    let reference = prop_oneof![
        2 => Just(Reference::Mean),
        1 => Just(Reference::Modality),
        1 => (1..30u32).prop_map(Reference::Window),
        1 => Just(Reference::FarthestFirst),
    ];
    let redundancy = prop_oneof![
        Just(Redundancy::MeanOfRange),
        Just(Redundancy::Energy),
        Just(Redundancy::Pairs),
        Just(Redundancy::Layer)
    ];
    (weights, combine, scaling, reference, redundancy).prop_map(
        |((alpha, beta), combine, scaling, reference, redundancy)| {
            // A product of scores that may be negative means nothing.
            let nothing = scaling == Scaling::ZScore && combine == Combine::Product;
            let combine = if nothing { Combine::Sum } else { combine };
            Diversity::Geometry(Geometry { alpha, beta, combine, scaling, reference, redundancy })
        },
    )
}

fn mixes() -> impl Strategy<Value = Mix> {
    prop_oneof![
        Just(Mix::Importance),
        Just(Mix::Diversity),
        Just(Mix::HeadRedundancy),
        Just(Mix::HardRedundancy { threshold: 0.5 }),
        (1..9u32).prop_map(|t| Mix::SoftRedundancy { diversity: t as f32 / 5.0, importance: 0.7 }),
        Just(Mix::HeadTable),
        Just(Mix::Thirds),
        depths(1.0).prop_map(Mix::Raw),
        depths(1.0).prop_map(Mix::Weight),
    ]
}

/// Depth profiles of values between `-to` and `to`.
fn depths(to: f32) -> impl Strategy<Value = Depth> {
    let values = || prop::array::uniform3(-to..to);
    prop_oneof![
        (-to..to).prop_map(Depth::Constant),
        values().prop_map(|[first, last, _]| Depth::Linear { first, last }),
        values().prop_map(Depth::ThreeSegment),
        values().prop_map(|[a, b, c]| Depth::quadratic_through(a, b, c)),
    ]
}

fn mmrs() -> impl Strategy<Value = Mmr> {
    let similarity = prop_oneof![
        Just(Similarity::NearestKey),
        Just(Similarity::MeanKey),
        Just(Similarity::NearestAttention),
        Just(Similarity::MeanAttention),
    ];
    let search = prop_oneof![Just(Search::All), Just(Search::Lazy), (1..9u32).prop_map(Search::Shortlist)];
    let dispersion = prop_oneof![Just(Depth::Constant(0.0)), depths(1.0)];
    (similarity, dispersion, depths(2.0), search, any::<[bool; 3]>()).prop_map(
        |(similarity, dispersion, redundancy, search, [mean_match, pool_dispersion, seed_protected])| {
            let nearest = matches!(similarity, Similarity::NearestKey | Similarity::NearestAttention);
            // A lazy choice is defined for weights that are negative at every depth.
            let negative = matches!(redundancy, Depth::Constant(x) if x <= 0.0);
            let search = if search == Search::Lazy && !(nearest && negative) { Search::All } else { search };
            Mmr { dispersion, redundancy, similarity, mean_match, pool_dispersion, seed_protected, search }
        },
    )
}

fn protections() -> impl Strategy<Value = Protect> {
    let recent =
        prop_oneof![(0..12u32).prop_map(Recent::Window), (0..4u32).prop_map(Recent::Exact), Just(Recent::Share(0.5))];
    (0..4u32, recent, prop::bool::weighted(0.25)).prop_map(|(sinks, recent, text_first)| Protect {
        sinks,
        recent,
        text_first,
    })
}

fn head_budgets() -> impl Strategy<Value = HeadBudget> {
    let share = || (0..=10u32).prop_map(|x| x as f32 / 10.0);
    prop_oneof![
        Just(HeadBudget::Uniform),
        (share(), any::<bool>()).prop_map(|(floor, normalise)| HeadBudget::AdaptivePaper { floor, normalise }),
        share().prop_map(|floor| HeadBudget::Adaptive { floor }),
        Just(HeadBudget::Table),
    ]
}

fn fates() -> impl Strategy<Value = Evicted> {
    let rule = prop_oneof![
        Just(MergeRule::Pivot),
        Just(MergeRule::Average),
        Just(MergeRule::Weighted),
        (0..=5u32).prop_map(|x| MergeRule::Proportional { threshold: 0.1, fraction: 0.5 + x as f32 / 10.0 }),
        (1..9u32, any::<u64>()).prop_map(|(neighbours, seed)| MergeRule::Following { neighbours, seed }),
    ];
    let merge = (rule, any::<bool>()).prop_map(|(rule, values_only)| Evicted::Merge(Merge { rule, values_only }));
    prop_oneof![2 => Just(Evicted::Drop), 1 => merge, 1 => retains().prop_map(Evicted::Retain)]
}

pub fn retains() -> impl Strategy<Value = Retain> {
    let mass = prop_oneof![Just(Mass::Count), Just(Mass::Entropy)];
    let readout = prop_oneof![3 => Just(Readout::Mean), 1 => Just(Readout::Tilt)];
    (1..6u32, 0.1..3.0f32, prop_oneof![Just(0.0f32), Just(0.5)], mass, readout)
        .prop_map(|(slots, tau, gain, mass, readout)| Retain { slots, tau, epsilon: 0.05, gain, mass, readout })
}
