//! Equations between policies that must hold for every layer, over random shapes and every combination of axes.
//! `PROPTEST_CASES` sets how many.

mod support;

use ecokv_core::*;
use proptest::prelude::*;
use support::sample::*;
use support::*;

/// Whether an entry is protected, given how many recent ones are.
fn protected(p: &Policy, l: &Layer, h: usize, i: usize, recent: u32) -> bool {
    let n = l.lens[h] as usize;
    i < p.protect.sinks as usize
        || i + recent as usize >= n
        || l.tags.get(l.starts[h] as usize + i).is_some_and(|t| t & tag::PROTECTED != 0)
}

/// Entries that the slots of a head are paid for with: a slot is two rows, or three and a matrix.
fn slot_cost(p: &Policy, l: &Layer) -> u32 {
    let Evicted::Retain(r) = p.evicted else { return 0 };
    let d = l.head_dim;
    let bytes = if r.readout == Readout::Tilt { 3 * d + d * d } else { 2 * d };
    r.slots * bytes.div_ceil(2 * d) as u32
}

fn table(p: &Policy) -> bool {
    p.head_budget == HeadBudget::Table
}

fn run(p: &Policy, budget: u32, l: &Layer) -> Result<Lists, Error> {
    evict_view(Dispatch::detect(), p, budget, &l.view()).map(|r| r.0)
}

fn is_attention(p: &Policy) -> bool {
    matches!(p.importance, Importance::Attention(_))
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
    out.head_budgets = order.iter().map(|&h| l.head_budgets[h]).collect();
    out.place();
    out
}

fn config() -> ProptestConfig {
    let given = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig::default();
    let cases = if given { default.cases } else { 600 };
    // Half of the cases are not a law's business.
    ProptestConfig { cases, max_global_rejects: 10 * cases, failure_persistence: None, ..default }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn heads_apart_can_be_evicted_apart((p, ragged) in cases(), seed in any::<u64>(), n in 1..60u32, budget in 0..60u32) {
        // Of one length, without protected entries.
        let heads = ragged.n_kv_heads + 1;
        let lens = vec![n; heads];
        let mut l = Layer::random(&mut Rng(seed), &lens, ragged.group, ragged.head_dim, ragged.n_queries, 1.0);
        (l.layer, l.n_layers) = (ragged.layer, ragged.n_layers);
        l.keys[..n as usize * l.head_dim].iter_mut().for_each(|k| *k *= 4.0); // heads that differ
        l.tags = (0..l.rows()).map(|i| ragged.tags.get(i).map_or(0, |t| t & !tag::PROTECTED)).collect();
        let whole = run(&p, budget, &l);
        let view = l.view();
        prop_assert!(view.head(l.n_kv_heads).is_none());
        let apart = (0..l.n_kv_heads).map(|h| {
            let head = view.head(h).unwrap();
            evict_view(Dispatch::detect(), &p, budget, &head).map(|(mut kept, _)| kept.remove(0))
        });
        let apart: Result<Lists, Error> = apart.collect();
        if p.heads_apart() {
            prop_assert_eq!(whole, apart);
        }
    }

    #[test]
    fn lists_counts_and_protection((p, l) in cases(), budget in 0..80u32) {
        let result = evict_view(Dispatch::detect(), &p, budget, &l.view());
        let exact = if let Recent::Exact(n) = p.protect.recent { n } else { 0 };
        let strict = |h: usize| (0..l.lens[h] as usize).filter(|&i| protected(&p, &l, h, i, exact)).count();
        let slots = slot_cost(&p, &l);
        let most = (0..l.n_kv_heads).map(strict).max().unwrap().max(1) as u32 + slots;
        let wanted = |h: usize| if table(&p) { l.head_budgets[h] } else { budget };
        let budget = (0..l.n_kv_heads).map(wanted).min().unwrap();
        let fits = (0..l.n_kv_heads).all(|h| l.lens[h] <= wanted(h));
        let (kept, report) = match result {
            Err(e) => {
                prop_assert_eq!(e, Error::BudgetTooSmall { protected: most, budget });
                prop_assert!(!fits && most > budget);
                return Ok(());
            }
            Ok(ok) => ok,
        };
        prop_assert!(fits || most <= budget);
        prop_assert_eq!(report.nan_scores, 0);
        for (h, kept) in kept.iter().enumerate() {
            prop_assert!(kept.windows(2).all(|w| w[0] < w[1]));
            prop_assert!(kept.iter().all(|&i| i < l.lens[h]));
            for i in (0..l.lens[h] as usize).filter(|&i| protected(&p, &l, h, i, report.recent_kept)) {
                prop_assert!(kept.contains(&(i as u32)), "head {} lost protected {}", h, i);
            }
        }
        let total: u32 = l.lens.iter().sum();
        let counts: Vec<u32> = kept.iter().map(|k| k.len() as u32).collect();
        let sum = counts.iter().sum::<u32>();
        let left = |h: usize| wanted(h) - slots;
        if fits {
            prop_assert_eq!(&counts, &l.lens);
            return Ok(());
        }
        match p.head_budget {
            HeadBudget::Uniform => prop_assert!((0..l.n_kv_heads).all(|h| counts[h] == left(h).min(l.lens[h]))),
            HeadBudget::Adaptive { .. } => prop_assert_eq!(sum, total.min(left(0) * l.n_kv_heads as u32)),
            HeadBudget::Table => {
                prop_assert_eq!(sum, total.min((0..l.n_kv_heads).map(left).sum()));
                prop_assert!((0..l.n_kv_heads).all(|h| counts[h] >= left(h).min(l.lens[h])));
            }
            _ => {}
        }
    }

    /// The kept set is the top set of the scores, text before images where the policy says so.
    #[test]
    fn kept_is_the_top_of_the_scores((p, l) in cases(), budget in 1..80u32) {
        let staged = matches!(
            p.importance,
            Importance::Attention(Attention { value_norm: ValueNorm::Output { .. }, .. })
        );
        prop_assume!(!staged && !matches!(p.diversity, Diversity::Mmr(_)));
        let Ok(kept) = run(&p, budget, &l) else { return Ok(()) };
        let scores = scores(&p, budget, &l);
        for (h, kept) in kept.iter().enumerate() {
            let s = &scores[l.starts[h] as usize..][..l.lens[h] as usize];
            let image = |i: u32| l.tags.get((l.starts[h] + i) as usize).is_some_and(|t| t & tag::IMAGE != 0);
            let first = |i: u32| u8::from(p.protect.text_first && (s[i as usize] == f32::INFINITY || !image(i)));
            let key = |i: u32| (first(i), s[i as usize]);
            let mut order: Vec<u32> = (0..l.lens[h]).collect();
            order.sort_by(|&a, &b| key(b).partial_cmp(&key(a)).unwrap().then(a.cmp(&b)));
            let mut top = order[..kept.len()].to_vec();
            top.sort_unstable();
            prop_assert_eq!(kept, &top);
        }
    }

    /// Every instruction set gives the same bits.
    #[test]
    fn levels_agree((p, l) in cases(), budget in 1..80u32) {
        let run = |d| evict_view(d, &p, budget, &l.view());
        let expected = run(Dispatch::scalar());
        let bits = |d| scores_on(d, &p, budget, &l).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for d in Dispatch::available() {
            prop_assert_eq!(&run(d), &expected, "{}", d.name());
            if let Ok((kept, _)) = &expected {
                prop_assert_eq!(bits(d), bits(Dispatch::scalar()), "{}", d.name());
                prop_assert_eq!(fate(d, &p, budget, &l, kept), fate(Dispatch::scalar(), &p, budget, &l, kept), "{}", d.name());
            }
        }
    }

    /// Slots are paid for in entries: retaining keeps what dropping keeps on a budget smaller by them.
    #[test]
    fn slots_cost_entries((p, l) in cases(), budget in 1..80u32, retain in retains()) {
        let windowed = matches!(p.importance, Importance::Attention(Attention { queries: Queries::Last(_), .. }));
        let share = matches!(p.protect.recent, Recent::Share(_)); // of another budget
        let importance = if windowed { p.importance } else { policy("snapkv").importance };
        let recent = if share { Recent::Window(7) } else { p.protect.recent };
        let evicted = Evicted::Retain(Retain { gain: 0.0, ..retain });
        let p = Policy { importance, protect: Protect { recent, ..p.protect }, evicted, ..p };
        let slots = slot_cost(&p, &l);
        let least = if table(&p) { *l.head_budgets.iter().min().unwrap() } else { budget };
        let fits = (0..l.n_kv_heads).all(|h| l.lens[h] <= if table(&p) { l.head_budgets[h] } else { budget });
        if least <= slots || fits {
            return Ok(());
        }
        let mut less = l.clone();
        less.head_budgets.iter_mut().for_each(|b| *b -= slots.min(*b));
        let dropped = evict_view(Dispatch::detect(), &Policy { evicted: Evicted::Drop, ..p }, budget - slots.min(budget), &less.view());
        let retained = evict_view(Dispatch::detect(), &p, budget, &l.view());
        prop_assert_eq!(retained.ok(), dropped.ok());
    }

    /// What is evicted is accounted for: slots hold as many as were evicted, counts of merged entries lose none.
    #[test]
    fn nobody_is_lost((p, l) in cases(), budget in 1..80u32) {
        let Ok(kept) = run(&p, budget, &l) else { return Ok(()) };
        let rest = fate(Dispatch::detect(), &p, budget, &l, &kept);
        let gone: usize = (0..l.n_kv_heads).map(|h| l.lens[h] as usize - kept[h].len()).sum();
        match p.evicted {
            Evicted::Retain(Retain { mass: Mass::Count, .. }) => {
                prop_assert!((rest.mass.iter().sum::<f32>() - gone as f32).abs() < 1e-3);
                prop_assert_eq!(rest.members.iter().filter(|&&m| m != u32::MAX).count(), gone);
            }
            Evicted::Merge(Merge { rule: MergeRule::Pivot | MergeRule::Average, .. }) => {
                for (h, kept) in kept.iter().enumerate().filter(|(_, k)| !k.is_empty()) {
                    let counts = kept.iter().map(|&i| rest.mass[(l.starts[h] + i) as usize]).sum::<f32>();
                    prop_assert_eq!(counts, l.lens[h] as f32);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn equal_policies((p, l) in cases(), budget in 1..80u32) {
        let sure = p.with_head_budget(HeadBudget::Adaptive { floor: 1.0 });
        let uniform = p.with_head_budget(HeadBudget::Uniform);
        if l.lens.iter().all(|&n| n >= budget) {
            prop_assert_eq!(run(&sure, budget, &l), run(&uniform, budget, &l));
            let even = Layer { head_budgets: vec![budget; l.n_kv_heads], ..l.clone() };
            let tabled = p.with_head_budget(HeadBudget::Table);
            prop_assert_eq!(run(&tabled, 7, &even), run(&uniform, budget, &l));
        }
        let plain = Policy { diversity: Diversity::None, mix: Mix::Importance, ..p };
        let geometry = Diversity::Geometry(Geometry::new(0.5, 0.5));
        let unweighted = Policy { mix: Mix::Weight(Depth::Constant(0.0)), diversity: geometry, ..p };
        if is_attention(&p) {
            prop_assert_eq!(run(&unweighted, budget, &l), run(&plain, budget, &l));
        }
        if matches!(p.importance, Importance::Attention(Attention { queries: Queries::Last(_), .. })) {
            for search in [Search::All, Search::Lazy] {
                let Diversity::Mmr(m) = policy("mmr").diversity else { unreachable!() };
                let m = Mmr { redundancy: Depth::Constant(0.0), mean_match: false, search, ..m };
                let chosen = Policy { diversity: Diversity::Mmr(m), mix: Mix::Importance, ..p };
                prop_assert_eq!(run(&chosen, budget, &l), run(&plain, budget, &l));
            }
        }
        // ECOKV by the cosine alone, with MixKV's window, is MixKV.
        let eco = policy("ecokv").with_geometry(0.0, 1.0).unwrap().with_window(32);
        let around = |q: Policy| Policy { protect: p.protect, head_budget: p.head_budget, evicted: p.evicted, ..q };
        prop_assert_eq!(run(&around(eco), budget, &l), run(&around(policy("mixkv")), budget, &l));
    }

    /// A larger budget keeps what a smaller one kept, as long as both protect the same window.
    #[test]
    fn budgets_nest((p, l) in cases(), budget in 14..70u32) {
        // The length of a shortlist follows the budget, and so does the first stage of output norms, whose entries come
        // first in a choice one by one and change what follows.
        prop_assume!(!matches!(p.diversity, Diversity::Mmr(Mmr { search: Search::Shortlist(_), .. })));
        let staged = matches!(p.importance, Importance::Attention(Attention { value_norm: ValueNorm::Output { .. }, .. }));
        prop_assume!(!(staged && matches!(p.diversity, Diversity::Mmr(_))));
        let p = p.with_head_budget(HeadBudget::Uniform);
        let Ok((less, a)) = evict_view(Dispatch::detect(), &p, budget, &l.view()) else { return Ok(()) };
        let (more, b) = evict_view(Dispatch::detect(), &p, budget + 1, &l.view()).unwrap();
        prop_assume!(a.recent_kept == b.recent_kept);
        for (less, more) in less.iter().zip(&more) {
            prop_assert!(less.iter().all(|i| more.contains(i)));
        }
    }

    #[test]
    fn heads_may_be_relabelled((p, l) in cases(), budget in 1..80u32) {
        // A random choice depends on the head's number; sums over heads on their order; spare entries go round in it.
        prop_assume!(!matches!(p.importance, Importance::Random { .. }));
        prop_assume!(!matches!(p.importance, Importance::Attention(Attention { share_heads: true, .. })));
        prop_assume!(!table(&p) || (0..l.n_kv_heads).all(|h| l.lens[h] >= l.head_budgets[h]));
        // Between heads, equal scores are told apart by age first, then by the head's number.
        prop_assume!(matches!(p.head_budget, HeadBudget::Uniform | HeadBudget::Table) || is_attention(&p));
        let order: Vec<usize> = (0..l.n_kv_heads).rev().collect();
        let turned = run(&p, budget, &relabel(&l, &order));
        let turned = turned.map(|kept| order.iter().map(|&h| kept[h].clone()).collect::<Lists>());
        prop_assert_eq!(run(&p, budget, &l), turned);
    }

    #[test]
    fn powers_of_two_change_nothing(l in layers(), budget in 1..80u32, exponent in -20..20i32, floor in 0..=10u32) {
        let p = Policy { importance: Importance::Given, ..policy("full") }
            .with_head_budget(HeadBudget::Adaptive { floor: floor as f32 / 10.0 });
        let mut scaled = l.clone();
        scaled.given.iter_mut().for_each(|x| *x *= 2f32.powi(exponent));
        prop_assert_eq!(run(&p, budget, &l), run(&p, budget, &scaled));
    }

    /// Gaps between the heads of the arena, filled with garbage, do not matter.
    #[test]
    fn gaps_do_not_matter((p, l) in cases(), budget in 1..80u32, gap in 1..4u32) {
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

    /// Tables of heads: exact totals, no entry further than one from its quota, order kept.
    #[test]
    fn head_tables_add_up(
        scores in prop::collection::vec(0.0..1.0f32, 1..200), budget in 0..5000u32, window in 0..64u32, even in 0.0..=1.0f32
    ) {
        let mut out = vec![0; scores.len()];
        let sum: f64 = scores.iter().map(|&s| f64::from(s)).sum();
        prop_assume!(sum > 0.0 && window <= budget);
        from_profile(&scores, budget, window, even, &mut out).unwrap();
        prop_assert_eq!(out.iter().map(|&n| u64::from(n)).sum::<u64>(), u64::from(budget) * scores.len() as u64);
        let base = ((budget - window) as f32 * even).floor();
        let rest = (f64::from(budget - window) - f64::from(base)) * scores.len() as f64;
        for (n, s) in out.iter().zip(&scores) {
            let quota = f64::from(window) + f64::from(base) + rest * f64::from(*s) / sum;
            prop_assert!((f64::from(*n) - quota).abs() < 1.001, "{} {}", n, quota);
        }
        from_rates(&scores, budget, &mut out).unwrap();
        let total = out.iter().map(|&n| u64::from(n)).sum::<u64>() as f64;
        prop_assert!((total - sum * f64::from(budget)).abs() <= 0.5 + 1e-6);
        for (a, b) in out.iter().zip(&scores) {
            prop_assert!((f64::from(*a) - f64::from(*b) * f64::from(budget)).abs() < 1.001);
        }
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

/// What became of the evicted entries.
#[derive(Debug, Default, PartialEq)]
struct Fate {
    /// Bits of the slots and of their moments, or of the merged rows.
    bits: Vec<u32>,
    /// Of slots, or the counts of the rows.
    mass: Vec<f32>,
    members: Vec<u32>,
}

fn fate(d: Dispatch, p: &Policy, budget: u32, l: &Layer, kept: &Lists) -> Fate {
    let (indices, counts) = flat(kept, l);
    let list = Kept { indices: &indices, counts: &counts };
    let size = match p.evicted {
        Evicted::Drop => return Fate::default(),
        Evicted::Merge(_) => merge_workspace_len(l.shape(), l.rows()).unwrap(),
        Evicted::Retain(_) => p.workspace_len(l.shape(), l.rows()).unwrap(),
    };
    let (mut f32s, mut u32s) = (vec![f32::NAN; size.f32s], vec![7; size.u32s]);
    let w = Workspace { f32s: &mut f32s, u32s: &mut u32s };
    let (mut keys, mut values, mut members) = (l.keys.clone(), l.values.clone(), vec![7; l.rows()]);
    let mut mass = vec![1.0; l.rows()];
    let mut moments = [vec![], vec![], vec![]];
    match p.evicted {
        Evicted::Retain(r) => {
            let n = l.n_kv_heads * r.slots as usize;
            let tilted = r.readout == Readout::Tilt;
            (keys, values, mass) = (vec![7.0; n * l.head_dim], vec![7.0; n * l.head_dim], vec![7.0; n]);
            if tilted {
                moments = [n * l.head_dim, n * l.head_dim * l.head_dim, n].map(|n| vec![7.0; n]);
            }
            let [variance, covariance, radius] = &mut moments;
            let moments = tilted.then_some(Moments { variance, covariance, radius });
            let out = Slots { keys: &mut keys, values: &mut values, mass: &mut mass, members: &mut members, moments };
            retain_layer(d, p, budget, &l.view(), w, list, out).unwrap();
        }
        Evicted::Merge(rule) => {
            let layer = LayerMut {
                shape: l.shape(),
                starts: &l.starts,
                lens: &l.lens,
                keys: &mut keys,
                values: &mut values,
                counts: &mut mass,
                attention: &l.column_sums,
            };
            merge_layer(d, rule, layer, list, w).unwrap();
        }
        Evicted::Drop => {}
    }
    let bits = keys.iter().chain(&values).chain(moments.iter().flatten()).map(|x| x.to_bits()).collect();
    Fate { bits, mass, members }
}
