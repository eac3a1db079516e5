//! Sizes: the promised workspace is enough, one element less is refused, and a refusal writes nothing.

mod support;

use ecokv_core::*;
use support::*;

fn call(p: &Policy, budget: u32, l: &Layer, f32s: usize, u32s: usize) -> Result<Report, Error> {
    let (mut f, mut u) = (vec![0.0; f32s], vec![0; u32s]);
    let (mut indices, mut counts) = (vec![77; 90], vec![77; l.n_kv_heads]);
    let keep = Keep { indices: &mut indices, counts: &mut counts };
    let w = Workspace { f32s: &mut f, u32s: &mut u };
    let result = evict_layer(Dispatch::detect(), p, budget, &l.view(), w, keep);
    if result.is_err() {
        assert!(indices.iter().chain(&counts).all(|&x| x == 77), "written on {result:?}");
    }
    result
}

#[test]
fn workspace_is_exact() {
    let mut l = Layer::random(&mut Rng(3), &[45, 45], 2, 8, 32, 1.0);
    l.head_budgets = vec![40; 2];
    for m in methods::ALL {
        let len = m.policy.workspace_len(l.shape(), l.rows()).unwrap();
        call(&m.policy, 40, &l, len.f32s, len.u32s).unwrap();
        let short = |what, need| Err(Error::WorkspaceTooSmall { what, need, got: need - 1 });
        assert_eq!(call(&m.policy, 40, &l, len.f32s - 1, len.u32s), short("f32s", len.f32s), "{}", m.name);
        assert_eq!(call(&m.policy, 40, &l, len.f32s, len.u32s - 1), short("u32s", len.u32s), "{}", m.name);
    }
}

#[test]
fn workspace_size_overflow_is_none() {
    let shape = LayerShape { n_kv_heads: 1, group: 1, head_dim: 128 };
    assert_eq!(policy("snapkv").workspace_len(shape, usize::MAX / 2), None);
    let shape = LayerShape { head_dim: usize::MAX, ..shape };
    assert_eq!(policy("knorm").workspace_len(shape, 1), None);
    // Usable in a constant.
    const LEN: Option<WorkspaceLen> =
        methods::ALL[0].policy.workspace_len(LayerShape { n_kv_heads: 2, group: 1, head_dim: 8 }, 100);
    assert!(LEN.is_some());
}

#[test]
fn refusals_write_nothing() {
    let l = Layer::random(&mut Rng(4), &[40, 50], 2, 8, 8, 1.0);
    let p = policy("ecokv");
    let run = |change: &dyn Fn(&mut Layer)| {
        let mut l = l.clone();
        change(&mut l);
        let len = p.workspace_len(l.shape(), 90).unwrap_or(WorkspaceLen { f32s: 0, u32s: 0 });
        call(&p, 20, &l, len.f32s, len.u32s).unwrap_err()
    };
    let mismatch = |what, need, got| Error::LengthMismatch { what, need, got };
    assert_eq!(run(&|l| l.starts.truncate(1)), mismatch("starts", 2, 1));
    assert_eq!(run(&|l| l.lens.push(1)), mismatch("lens", 2, 3));
    assert_eq!(run(&|l| l.keys.truncate(719)), mismatch("keys", 712, 719));
    assert_eq!(run(&|l| l.values.truncate(712)), mismatch("value rows", 90, 89));
    assert_eq!(run(&|l| l.queries.truncate(5)), mismatch("queries", 256, 5));
    assert_eq!(run(&|l| l.given.truncate(5)), mismatch("given", 90, 5));
    assert_eq!(run(&|l| l.tags.push(0)), mismatch("tags", 90, 1));
    assert_eq!(run(&|l| l.lens[1] = 51), Error::HeadRange { head: 1, start: 40, len: 51, rows: 90 });
    assert_eq!(run(&|l| l.starts[1] = 39), Error::HeadRange { head: 1, start: 39, len: 50, rows: 90 });
    assert_eq!(run(&|l| l.starts[1] = u32::MAX), Error::HeadRange { head: 1, start: u32::MAX, len: 50, rows: 90 });
    assert!(matches!(run(&|l| l.head_dim = 0), Error::Config(_)));
    assert!(matches!(run(&|l| (l.n_queries, l.queries) = (0, vec![])), Error::MissingObservation(_)));
}

/// Everything a policy says it needs is missed when it is not there, and nothing else is.
#[test]
fn needs_are_what_is_read() {
    let mut full = Layer::random(&mut Rng(4), &[45, 45], 2, 8, 32, 1.0);
    full.head_budgets = vec![40; 2];
    for m in methods::ALL {
        let needs = m.policy.needs();
        let len = m.policy.workspace_len(full.shape(), 90).unwrap();
        let run = |change: &dyn Fn(&mut LayerView<'_>)| {
            let mut v = full.view();
            change(&mut v);
            evict_view(Dispatch::detect(), &m.policy, 40, &v).map(|_| ()).is_ok()
        };
        assert!(call(&m.policy, 40, &full, len.f32s, len.u32s).is_ok());
        let without_queries = run(&|v| (v.observation.n_queries, v.observation.queries) = (0, &[]));
        assert_eq!(without_queries, needs.window_queries == 0, "{}", m.name);
        assert_eq!(run(&|v| v.values = None), !needs.values, "{}", m.name);
        assert_eq!(run(&|v| v.observation.column_sums = &[]), !needs.column_sums, "{}", m.name);
        assert_eq!(run(&|v| v.observation.query_mean = &[]), !needs.query_mean, "{}", m.name);
        assert_eq!(run(&|v| v.observation.query_covariance = &[]), !needs.query_covariance, "{}", m.name);
        assert_eq!(run(&|v| v.observation.output_norms = &[]), !needs.output_norms, "{}", m.name);
        assert_eq!(run(&|v| v.observation.head_weights = &[]), !needs.head_weights, "{}", m.name);
        assert_eq!(run(&|v| v.observation.head_budgets = &[]), !needs.head_budgets, "{}", m.name);
        assert_eq!(run(&|v| v.observation.given = &[]), !needs.given, "{}", m.name);
    }
}

#[test]
fn outputs_too_short() {
    let l = Layer::random(&mut Rng(4), &[40, 50], 2, 8, 8, 1.0);
    let p = policy("knorm");
    let len = p.workspace_len(l.shape(), 90).unwrap();
    let (mut f, mut u) = (vec![0.0; len.f32s], vec![0; len.u32s]);
    let mut run = |indices: usize, counts: usize| {
        let w = Workspace { f32s: &mut f, u32s: &mut u };
        let keep = Keep { indices: &mut vec![0; indices], counts: &mut vec![0; counts] };
        evict_layer(Dispatch::detect(), &p, 20, &l.view(), w, keep)
    };
    assert_eq!(run(89, 2), Err(Error::LengthMismatch { what: "indices", need: 90, got: 89 }));
    assert_eq!(run(90, 1), Err(Error::LengthMismatch { what: "counts", need: 2, got: 1 }));
    assert!(run(90, 2).is_ok());
}

#[test]
fn policies_that_mean_nothing() {
    let l = Layer::random(&mut Rng(4), &[40], 1, 8, 8, 1.0);
    let run = |p: Policy| call(&p, 20, &l, 1 << 16, 1 << 16).unwrap_err();
    let snap = policy("snapkv");
    let Importance::Attention(a) = snap.importance else { panic!() };
    let with = |a| Policy { importance: Importance::Attention(a), ..snap };
    assert!(matches!(run(with(Attention { queries: Queries::Last(0), ..a })), Error::Config(_)));
    assert!(matches!(run(with(Attention { pool: Pool::Max { width: 4 }, ..a })), Error::Config(_)));
    assert!(matches!(run(Policy { mix: Mix::HeadRedundancy, ..snap }), Error::Config(_)));
    let uneven = Layer::random(&mut Rng(4), &[40, 41], 1, 8, 8, 1.0);
    let shared = with(Attention { share_heads: true, ..a });
    assert!(matches!(call(&shared, 20, &uneven, 1 << 16, 1 << 16), Err(Error::Config(_))));
    assert!(matches!(run(Policy { importance: Importance::Lag { lag: 0 }, ..snap }), Error::Config(_)));
    for floor in [-0.1, 1.5, f32::NAN] {
        assert!(matches!(run(snap.with_head_budget(HeadBudget::Adaptive { floor })), Error::Config(_)));
    }
}
