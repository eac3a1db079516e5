//! A share of the budget for images and one for text.

mod support;

use ecokv_core::*;
use proptest::prelude::*;
use support::*;

/// Two heads of eight entries with scores given from outside. `i` is an image, `p` a protected one, `T` protected text.
fn eight(kinds: &str) -> Layer {
    let mut l = Layer::random(&mut Rng(1), &[8, 8], 1, 4, 0, 0.0);
    l.given = [[8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]].concat();
    let flags = kinds.chars().map(|c| match c {
        'i' => tag::IMAGE,
        'p' => tag::IMAGE | tag::PROTECTED,
        'T' => tag::PROTECTED,
        _ => 0,
    });
    let flags: Vec<u8> = flags.collect();
    l.tags = [flags.clone(), flags].concat();
    l
}

fn given() -> Policy {
    Policy {
        importance: Importance::Given,
        diversity: Diversity::None,
        mix: Mix::Importance,
        protect: Protect { sinks: 0, recent: Recent::Window(0), text_first: false },
        head_budget: HeadBudget::Uniform,
        evicted: Evicted::Drop,
    }
}

fn kept(kinds: &str, budget: u32, images: u32) -> Vec<Vec<u32>> {
    let l = Layer { image_budgets: vec![images; 2], ..eight(kinds) };
    evict(&given(), budget, &l)
}

#[test]
fn each_kind_keeps_its_best() {
    // Images 1, 2, 3, 4; text 0, 5, 6, 7. The first head prefers the first entries, the second the last.
    assert_eq!(kept("tiiiittt", 4, 2), [vec![0, 1, 2, 5], vec![3, 4, 6, 7]]);
    assert_eq!(kept("tiiiittt", 4, 1), [vec![0, 1, 5, 6], vec![4, 5, 6, 7]]);
    assert_eq!(kept("tiiiittt", 4, 0), [vec![0, 5, 6, 7], vec![0, 5, 6, 7]]);
    assert_eq!(kept("tiiiittt", 4, 4), [vec![1, 2, 3, 4], vec![1, 2, 3, 4]]);
}

#[test]
fn what_one_kind_cannot_fill_goes_to_the_other() {
    assert_eq!(kept("titttttt", 5, 4), [vec![0, 1, 2, 3, 4], vec![1, 4, 5, 6, 7]]);
    assert_eq!(kept("iiiiiiti", 5, 1), [vec![0, 1, 2, 3, 6], vec![3, 4, 5, 6, 7]]);
    // A budget beyond the head's.
    assert_eq!(kept("tiiiittt", 3, 90), [vec![1, 2, 3], vec![2, 3, 4]]);
}

#[test]
fn protected_entries_stay_whatever_the_share() {
    assert_eq!(kept("tiipittt", 3, 0), [vec![0, 3, 5], vec![3, 6, 7]]);
    assert_eq!(kept("tiiiitTT", 3, 3), [vec![1, 6, 7], vec![4, 6, 7]]);
    // The last entries of the policy are protected too.
    let l = Layer { image_budgets: vec![4; 2], ..eight("tiiiittt") };
    assert_eq!(evict(&given().with_keep_recent(2), 4, &l), [vec![1, 2, 6, 7], vec![3, 4, 6, 7]]);
}

#[test]
fn heads_with_more_than_the_budget_have_more_of_both() {
    // The budget of 4 becomes 6 and 2: a share of 2 becomes 3 and 1.
    let mut l = Layer { image_budgets: vec![2; 2], ..eight("iiiitttt") };
    l.given[8..].fill(0.0);
    let p = given().with_head_budget(HeadBudget::Adaptive { floor: 0.5 });
    let got = evict(&p, 4, &l);
    assert_eq!(got[0], [0, 1, 2, 4, 5, 6]);
    assert_eq!(got[1], [0, 4]);
}

#[test]
fn shares_of_another_number_of_heads_are_refused() {
    let l = Layer { image_budgets: vec![2; 3], ..eight("tiiiittt") };
    let error = evict_view(Dispatch::detect(), &given(), 4, &l.view()).unwrap_err();
    assert_eq!(error, Error::LengthMismatch { what: "image_budgets", need: 2, got: 3 });
}

proptest! {
    /// Against the plain definition, with every named method: the right number of each kind, and the best of it by the
    /// scores that the method gives.
    #[test]
    fn every_method_keeps_the_shares(seed in any::<u64>(), method in 0..methods::ALL.len(), budget in 45..100u32, share in 0..120u32) {
        let p = methods::ALL[method].policy;
        // Some protect more than the scores show, or bring what is not here.
        prop_assume!(!p.needs().output_norms && !p.needs().head_budgets && !matches!(p.evicted, Evicted::Retain(_)) && !p.protect.text_first);
        let mut rng = Rng(seed);
        let mut l = Layer::random(&mut rng, &[110, 110], 2, 8, 32, 1.0);
        l.tags = (0..l.rows()).map(|_| if rng.uniform() < 0.6 { tag::IMAGE } else { 0 }).collect();
        l.image_budgets = vec![share; 2];
        let scores = scores(&p, budget, &l);
        let counts: Vec<usize> = evict(&p, budget, &Layer { image_budgets: vec![], ..l.clone() }).iter().map(Vec::len).collect();
        for (h, kept) in evict(&p, budget, &l).iter().enumerate() {
            prop_assert_eq!(kept.len(), counts[h]);
            let start = l.starts[h] as usize;
            let score = |i: &u32| scores[start + *i as usize];
            let (images, text): (Vec<u32>, Vec<u32>) = (0..110).partition(|&i| l.tags[start + i as usize] == tag::IMAGE);
            let protected = |of: &[u32]| of.iter().filter(|i| score(i) == f32::INFINITY).count();
            let wanted = (kept.len() as f64 * f64::from(share) / f64::from(budget)).round() as usize;
            let least = protected(&images).max(kept.len().saturating_sub(text.len()));
            let most = images.len().min(kept.len() - protected(&text));
            let got = images.iter().filter(|i| kept.contains(i)).count();
            prop_assert!(got == wanted.min(most).max(least), "{} of {}, {} to {}", got, wanted, least, most);
            for kind in [images, text] {
                let (kept, left): (Vec<u32>, Vec<u32>) = kind.iter().partition(|i| kept.contains(i));
                let worst = kept.iter().map(score).fold(f32::INFINITY, f32::min);
                let best = left.iter().map(score).fold(f32::NEG_INFINITY, f32::max);
                prop_assert!(best <= worst, "{} > {}", best, worst);
            }
        }
    }
}

/// A head that keeps 3 where the budget is 2 owes images 1.5 of them, which is 2; one that keeps 1 owes half of it, which is 1.
#[test]
fn shares_are_rounded() {
    let mut l = Layer { image_budgets: vec![1; 2], ..eight("titititi") };
    l.given = [[8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 6.5]].concat();
    let p = given().with_head_budget(HeadBudget::Adaptive { floor: 0.0 });
    assert_eq!(evict(&p, 2, &l), [vec![0, 1, 3], vec![7]]);
}

/// Of equal scores at the cut the older entries go first, whichever head they are in.
#[test]
fn heads_tie_by_age() {
    let mut l = Layer::random(&mut Rng(1), &[8, 3], 1, 4, 0, 0.0);
    l.given = vec![1.0; 11];
    let p = given().with_head_budget(HeadBudget::Adaptive { floor: 0.0 });
    assert_eq!(evict(&p, 2, &l), [vec![0, 1], vec![0, 1]]);
}

/// A floor of less than an entry is one entry, and none is none.
#[test]
fn a_floor_is_at_least_an_entry() {
    let mut l = eight("tttttttt");
    l.given = [[18.0, 17.0, 16.0, 15.0, 14.0, 13.0, 12.0, 11.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]].concat();
    let with = |floor| evict(&given().with_head_budget(HeadBudget::Adaptive { floor }), 2, &l);
    assert_eq!(with(0.2), [vec![0, 1, 2], vec![7]]);
    assert_eq!(with(0.0), [vec![0, 1, 2, 3], vec![]]);
}
