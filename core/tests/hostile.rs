//! Inputs no healthy model produces: no panic, and a stated result.

mod support;

use ecokv_core::*;
use support::*;

/// Every method, with equal and with adaptive head budgets; those that need equal heads, a table or
/// room for slots left out.
fn all_policies() -> impl Iterator<Item = Policy> {
    let shared = |p: &Policy| matches!(p.importance, Importance::Attention(a) if a.share_heads);
    let small = |m: &Method| Policy {
        protect: Protect { sinks: m.policy.protect.sinks.min(4), ..m.policy.protect },
        ..m.policy
    };
    let one_head = move |p: &Policy| !shared(p) && !p.needs().head_budgets && !matches!(p.evicted, Evicted::Retain(_));
    methods::ALL
        .iter()
        .map(small)
        .filter(one_head)
        .flat_map(|p| [p, p.with_head_budget(HeadBudget::Adaptive { floor: 0.2 })])
}

fn run(p: &Policy, budget: u32, l: &Layer) -> (Lists, Report) {
    evict_view(Dispatch::detect(), p, budget, &l.view()).unwrap()
}

#[test]
fn nothing_to_keep() {
    let l = Layer::random(&mut Rng(1), &[0, 0], 2, 8, 4, 0.0);
    for p in all_policies() {
        assert_eq!(run(&p, 0, &l).0, [[]; 2] as [[u32; 0]; 2]);
    }
}

#[test]
fn one_entry_and_windows_longer_than_the_sequence() {
    let l = Layer::random(&mut Rng(1), &[1, 3], 2, 8, 4, 0.0);
    for p in all_policies() {
        assert_eq!(run(&p, 3, &l).0, [vec![0], vec![0, 1, 2]]);
        if p.protect.sinks == 0 {
            let kept = run(&p, 1, &l).0;
            assert_eq!(kept.iter().map(Vec::len).sum::<usize>(), 2);
        }
    }
}

/// All keys equal: every score ties, and the oldest stay.
#[test]
fn ties_everywhere() {
    let mut l = Layer::random(&mut Rng(1), &[30, 30], 1, 8, 4, 0.0);
    l.keys.fill(0.5);
    for name in ["knorm", "keydiff"] {
        assert_eq!(run(&policy(name), 4, &l).0, [[0, 1, 2, 3], [0, 1, 2, 3]]);
        let p = policy(name).with_head_budget(HeadBudget::Adaptive { floor: 0.0 });
        assert_eq!(run(&p, 4, &l).0, [[0, 1, 2, 3], [0, 1, 2, 3]]);
    }
}

/// One NaN score loses; nothing but NaN falls back to the newest entries.
#[test]
fn nan_scores_rank_last() {
    let mut l = Layer::random(&mut Rng(1), &[6], 1, 8, 4, 0.0);
    l.given = vec![f32::NEG_INFINITY, f32::NAN, 2.0, f32::NAN, f32::INFINITY, -1.0];
    let p = Policy { importance: Importance::Given, ..policy("full") };
    let (kept, report) = run(&p, 4, &l);
    assert_eq!((kept, report.nan_scores), (vec![vec![0, 2, 4, 5]], 2));
    assert_eq!(run(&p, 5, &l).0, [[0, 2, 3, 4, 5]]);
    l.given.fill(f32::NAN);
    assert_eq!(run(&p, 2, &l).0, [[4, 5]]);
    // Negative zero is zero.
    l.given = vec![-0.0, 0.0, -0.0, 0.0, 0.0, 0.0];
    assert_eq!(run(&p, 2, &l).0, [[0, 1]]);
}

#[test]
fn strange_numbers_do_not_panic() {
    let strange = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-42, -1e-42, 0.0];
    let mut rng = Rng(9);
    for round in 0..200 {
        let mut l = Layer::random(&mut rng, &[20, 25], 2, 7, 12, 0.0);
        for x in [&mut l.keys, &mut l.values, &mut l.queries, &mut l.given, &mut l.column_sums, &mut l.query_covariance]
        {
            for _ in 0..1 + round % 20 {
                let at = rng.below(x.len());
                x[at] = strange[rng.below(strange.len())];
            }
        }
        for p in all_policies() {
            let (kept, _) = run(&p, 9, &l);
            assert_eq!(kept.iter().map(Vec::len).sum::<usize>(), 18);
        }
        let (kept, _) = run(&policy("retentivekv"), 12, &l);
        assert_eq!(kept.iter().map(Vec::len).sum::<usize>(), 8);
    }
}

#[test]
fn zero_keys_and_huge_parameters() {
    let mut l = Layer::random(&mut Rng(1), &[20, 25], 2, 7, 12, 0.0);
    l.keys.fill(0.0);
    for p in all_policies() {
        let (_, report) = run(&p, 9, &l);
        assert_eq!(report.nan_scores, 0);
        assert_eq!(run(&p.with_window(u32::MAX), 9, &l).0.len(), 2);
        assert_eq!(
            evict_view(Dispatch::detect(), &p.with_sinks(u32::MAX), 9, &l.view()),
            Err(Error::BudgetTooSmall { protected: 25, budget: 9 })
        );
    }
    let mut out = [0; 3];
    for budget in [u32::MAX, u32::MAX / 2] {
        for beta in [1, 2, u32::MAX] {
            let _ = LayerBudget::Pyramid { beta }.allocate(budget, u32::MAX, u32::MAX, &mut out);
            let _ = LayerBudget::PyramidReference { beta }.allocate(budget, 0, u32::MAX, &mut out);
        }
    }
}

/// Rows of any format give the scores of their widened values, bit for bit.
#[test]
fn rows_are_their_values() {
    let mut l = Layer::random(&mut Rng(1), &[70, 45], 2, 64, 12, 0.0);
    let (keys, values) = (halves(&l.keys), halves(&l.values));
    l.keys = keys.iter().map(|x| x.to_f32()).collect();
    l.values = values.iter().map(|x| x.to_f32()).collect();
    same_result(&l, Rows::F16(&keys), Rows::F16(&values));

    let brains = |x: &[f32]| x.iter().map(|&x| half::bf16::from_f32(x)).collect::<Vec<_>>();
    let (keys, values) = (brains(&l.keys), brains(&l.values));
    l.keys = keys.iter().map(|x| x.to_f32()).collect();
    l.values = values.iter().map(|x| x.to_f32()).collect();
    same_result(&l, Rows::BF16(&keys), Rows::BF16(&values));

    let (keys, values) = (q8_0(&mut l.keys), q8_0(&mut l.values));
    same_result(&l, Rows::Q8_0(&keys), Rows::Q8_0(&values));
    let mut v = l.view();
    v.keys = Rows::Q8_0(&keys[..keys.len() - 1]);
    assert!(matches!(evict_view(Dispatch::detect(), &policy("snapkv"), 20, &v), Err(Error::LengthMismatch { .. })));
    v.shape.head_dim = 48;
    assert!(matches!(evict_view(Dispatch::detect(), &policy("snapkv"), 20, &v), Err(Error::Config(_))));
}

fn same_result(l: &Layer, keys: Rows<'_>, values: Rows<'_>) {
    for p in all_policies() {
        let mut v = l.view();
        (v.keys, v.values) = (keys, Some(values));
        assert_eq!(evict_view(Dispatch::detect(), &p, 20, &v).unwrap(), run(&p, 20, l));
    }
}

/// Quantises to blocks of 32 and writes the values the blocks stand for back.
fn q8_0(x: &mut [f32]) -> Vec<u8> {
    let mut out = Vec::new();
    for block in x.chunks_exact_mut(32) {
        let d = half::f16::from_f32(block.iter().fold(0.0, |m: f32, x| m.max(x.abs())) / 127.0);
        out.extend(d.to_le_bytes());
        for x in block {
            let q = (*x / d.to_f32()).round().clamp(-127.0, 127.0);
            out.push((q as i8).cast_unsigned());
            *x = q * d.to_f32();
        }
    }
    out
}
