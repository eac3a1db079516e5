//! The one entry point: check everything, score, share out, select.

use core::ops::Range;

use crate::kernels::Dispatch;
use crate::math::share;
use crate::select::{Cut, PROTECTED, order, rank};
use crate::shape::{Head, part};
use crate::workspace::Parts;
use crate::{
    Attention, Diversity, Error, Evicted, Geometry, Importance, LayerView, Mix, Policy, Queries, Recent, Reference,
    Search, Similarity, ValueNorm, Workspace, mmr, modality, score, tag,
};

/// Where the kept entries are written.
#[derive(Debug)]
pub struct Keep<'a> {
    /// `[rows]`. Head `h`'s list begins at `starts[h]` and has `counts[h]` elements: indices relative to the head's
    /// first row, ascending. The other elements are left alone.
    pub indices: &'a mut [u32],
    /// Kept entries per head, `[n_kv_heads]`.
    pub counts: &'a mut [u32],
}

/// Kept entries, as [`evict_layer`] wrote them.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    /// As [`Keep::indices`].
    pub indices: &'a [u32],
    /// As [`Keep::counts`].
    pub counts: &'a [u32],
}

impl<'a> Kept<'a> {
    /// Checks that every head's list is ascending and in range.
    pub(crate) fn check(&self, starts: &[u32], lens: &[u32], rows: usize) -> Result<(), Error> {
        at_least("indices", rows, self.indices.len())?;
        at_least("counts", lens.len(), self.counts.len())?;
        for (head, ((&start, &len), &count)) in (0u32..).zip(starts.iter().zip(lens).zip(self.counts)) {
            let list = part(self.indices, start as usize, count.min(len) as usize, 1);
            let ascending = list.iter().zip(list.iter().skip(1)).all(|(a, b)| a < b);
            if count > len || !ascending || list.last().is_some_and(|&last| last >= len) {
                return Err(Error::HeadRange { head, start, len: count, rows });
            }
        }
        Ok(())
    }

    pub(crate) fn of(&self, head: Head) -> &'a [u32] {
        let count = self.counts.get(head.index).copied().unwrap_or(0);
        part(self.indices, head.start, count as usize, 1)
    }
}

/// What a call did besides its outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Entries protected at the end of each head, after a window was shrunk to the budget.
    pub recent_kept: u32,
    /// Scores that were NaN and therefore ranked last.
    pub nan_scores: u32,
}

/// Chooses the entries of one layer to keep.
///
/// `budget` is the entries per KV head, on average over the heads, protected ones included
/// ([`HeadBudget::Table`](crate::HeadBudget::Table) brings its own). A layer whose heads all fit
/// is kept whole, without scoring. Nothing is written when an error is returned.
///
/// Equal scores keep the older entry; a NaN score ranks below every number, and among NaNs the newer entry wins.
///
/// # Errors
/// [`Error::BudgetTooSmall`] if sinks, [`Recent::Exact`] entries and tagged entries do not fit the budget, or the budget
/// is 0; [`Error::MissingObservation`], [`Error::LengthMismatch`], [`Error::HeadRange`], [`Error::WorkspaceTooSmall`] for
/// what was handed in; [`Error::Config`] for a policy that means nothing.
pub fn evict_layer(
    d: Dispatch,
    p: &Policy,
    budget: u32,
    v: &LayerView<'_>,
    w: Workspace<'_>,
    out: Keep<'_>,
) -> Result<Report, Error> {
    let job = Job::new(d, p, budget, v)?;
    at_least("indices", job.rows, out.indices.len())?;
    at_least("counts", v.shape.n_kv_heads, out.counts.len())?;
    let mut parts = Parts::carve(p, v.shape, job.rows, w)?;
    // Nothing below can fail.
    if job.fits {
        keep_all(v, out);
        return Ok(Report { recent_kept: job.recent, nan_scores: 0 });
    }
    score::fill(&job, &mut parts);
    let nan_scores = job.rank_all(parts.scores, parts.keys);
    let signal = if parts.signal.is_empty() { &*parts.scores } else { &*parts.signal };
    if p.head_budget.compares() {
        job.rank_all(signal, parts.keys);
        p.head_budget.allocate(&job, signal, parts.keys, out.counts);
        job.rank_all(parts.scores, parts.keys);
    } else {
        p.head_budget.allocate(&job, signal, parts.keys, out.counts);
    }
    if let Importance::Attention(Attention { value_norm: ValueNorm::Output { first_stage, .. }, .. }) = p.importance {
        secure(&job, first_stage, parts.signal, out.counts, parts.keys);
    }
    for (head, &count) in v.heads().zip(out.counts.iter()) {
        if p.protect.text_first {
            modality::prefer_text(&job, head, count as usize, head.of_mut(parts.keys));
        }
        if let Some(&images) = v.observation.image_budgets.get(head.index) {
            modality::divide(&job, head, count as usize, images, head.of_mut(parts.keys));
        } else if let Diversity::Mmr(m) = p.diversity {
            mmr::select(&job, head, m, count as usize, &mut parts);
        }
        let keys = head.of(parts.keys);
        let mut cut = Cut::top(keys.iter().copied(), count as usize);
        let kept = (0u32..).zip(keys).filter(|&(_, &key)| cut.take(key));
        for (slot, (i, _)) in head.of_mut(out.indices).iter_mut().zip(kept) {
            *slot = i;
        }
    }
    Ok(Report { recent_kept: job.recent, nan_scores })
}

/// Writes the scores [`evict_layer`] would judge by, `[rows]`: higher is kept, protected entries are infinite.
/// Rows that belong to no head are left alone. Scores even a layer that fits its budget.
///
/// # Errors
/// As [`evict_layer`].
pub fn score_layer(
    d: Dispatch,
    p: &Policy,
    budget: u32,
    v: &LayerView<'_>,
    w: Workspace<'_>,
    out: &mut [f32],
) -> Result<Report, Error> {
    let job = Job::new(d, p, budget, v)?;
    at_least("scores", job.rows, out.len())?;
    let mut parts = Parts::carve(p, v.shape, job.rows, w)?;
    score::fill(&job, &mut parts);
    let nan_scores = job.rank_all(parts.scores, parts.keys);
    for head in v.heads() {
        let scores = head.of(parts.scores).iter().zip(head.of(parts.keys));
        for (out, (&s, &key)) in head.of_mut(out).iter_mut().zip(scores) {
            *out = if key == PROTECTED { f32::INFINITY } else { s };
        }
    }
    Ok(Report { recent_kept: job.recent, nan_scores })
}

/// Protects the best `first_stage` of each head's entries by `signal`.
fn secure(job: &Job<'_>, first_stage: f32, signal: &[f32], counts: &[u32], keys: &mut [u32]) {
    for (head, &count) in job.view.heads().zip(counts) {
        let by_signal = head.of(signal).iter().enumerate().map(|(i, &s)| job.key(head, i, s));
        let mut cut = Cut::top(by_signal.clone(), share(count, first_stage).max(1).min(count) as usize);
        for (key, by_signal) in head.of_mut(keys).iter_mut().zip(by_signal) {
            if cut.take(by_signal) {
                *key = PROTECTED;
            }
        }
    }
}

/// A checked call.
pub(crate) struct Job<'a> {
    pub d: Dispatch,
    pub policy: &'a Policy,
    pub view: &'a LayerView<'a>,
    pub budget: u32,
    pub rows: usize,
    /// Last entries protected in each head.
    pub recent: u32,
    /// Whether every head fits its budget.
    pub fits: bool,
    /// Entries per head that slots are paid for with.
    pub slots: u32,
}

impl<'a> Job<'a> {
    pub fn new(d: Dispatch, policy: &'a Policy, budget: u32, view: &'a LayerView<'a>) -> Result<Self, Error> {
        let rows = view.check()?;
        check_policy(policy, view)?;
        // A table of head budgets replaces the budget; what must fit every head must fit the smallest.
        let table = if policy.needs().head_budgets { view.observation.head_budgets } else { &[] };
        let budget = table.iter().copied().min().unwrap_or(budget);
        let slots = if let Evicted::Retain(retain) = policy.evicted { retain.cost(view.shape.head_dim) } else { 0 };
        let paid = if view.observation.slots_in_use { slots } else { 0 };
        let fits_in = |(&len, &budget): (&u32, &u32)| len <= budget.saturating_sub(paid);
        let fits = match table {
            [] => view.lens.iter().all(|len| fits_in((len, &budget))),
            _ => view.lens.iter().zip(table).all(fits_in),
        };
        let mut job = Self { d, policy, view, budget, rows, recent: 0, fits, slots };
        let (exact, window) = match policy.protect.recent {
            Recent::Exact(n) => (n, 0),
            Recent::Window(n) => (0, n),
            Recent::Share(x) => (0, share(budget, x)),
        };
        job.recent = exact;
        if fits {
            let longest = view.lens.iter().copied().max().unwrap_or(0);
            job.recent = exact.max(window).min(longest);
            return Ok(job);
        }
        let strict = view.heads().map(|h| job.count_protected(h)).max().unwrap_or(0);
        let demanded = strict.max(1).saturating_add(slots);
        if demanded > budget {
            return Err(Error::BudgetTooSmall { protected: demanded, budget });
        }
        let budget = budget.saturating_sub(slots);
        job.budget = budget;
        job.recent = exact.max(window.min(budget.saturating_sub(strict).saturating_sub(1)));
        Ok(job)
    }

    /// Entries of a head that can be chosen by score: all before the protected recent ones.
    pub fn candidates(&self, head: Head) -> usize {
        head.len.saturating_sub(self.recent as usize)
    }

    pub fn protected(&self, head: Head, i: usize) -> bool {
        i < self.policy.protect.sinks as usize
            || i >= self.candidates(head)
            || self.view.tagged(head.start.saturating_add(i), tag::PROTECTED)
    }

    pub fn count_protected(&self, head: Head) -> u32 {
        let n = match self.judged(head) {
            Some(judged) => head.len.saturating_sub(judged.len()),
            None => (0..head.len).filter(|&i| self.protected(head, i)).count(),
        };
        u32::try_from(n).unwrap_or(u32::MAX)
    }

    /// The entries that are not protected, if no tag says which.
    fn judged(&self, head: Head) -> Option<Range<usize>> {
        let until = self.candidates(head);
        let sinks = (self.policy.protect.sinks as usize).min(until);
        self.view.observation.tags.is_empty().then_some(sinks..until)
    }

    fn key(&self, head: Head, i: usize, score: f32) -> u32 {
        if self.protected(head, i) { PROTECTED } else { rank(score, i) }
    }

    /// Turns scores into selection keys, returning how many candidates had none.
    fn rank_all(&self, scores: &[f32], keys: &mut [u32]) -> u32 {
        let mut nan = 0u32;
        for head in self.view.heads() {
            let (keys, scores) = (head.of_mut(keys), head.of(scores));
            // What most heads are, in a loop that compilers turn into vectors.
            let mut numbers = true;
            for (key, &s) in keys.iter_mut().zip(scores) {
                *key = order(s);
                numbers &= !s.is_nan();
            }
            match self.judged(head) {
                Some(judged) if numbers => {
                    keys.get_mut(..judged.start).unwrap_or_default().fill(PROTECTED);
                    keys.get_mut(judged.end..).unwrap_or_default().fill(PROTECTED);
                }
                _ => {
                    for (i, (key, &s)) in keys.iter_mut().zip(scores).enumerate() {
                        *key = self.key(head, i, s);
                        nan = nan.saturating_add(u32::from(s.is_nan() && *key != PROTECTED));
                    }
                }
            }
        }
        nan
    }
}

fn check_policy(p: &Policy, view: &LayerView<'_>) -> Result<(), Error> {
    let (needs, o) = (p.needs(), &view.observation);
    p.head_budget.check()?;
    if let Evicted::Merge(merge) = p.evicted {
        merge.check()?;
    }
    if let Importance::Attention(a) = p.importance {
        a.pool.check()?;
        if matches!(a.queries, Queries::Last(0) | Queries::Peak(0)) {
            return Err(Error::Config("an observation window needs at least one query"));
        }
        let [first, rest @ ..] = view.lens else { return Ok(()) };
        if a.share_heads && rest.iter().any(|len| len != first) {
            return Err(Error::Config("heads that keep the same entries must have the same length"));
        }
    }
    if matches!(p.importance, Importance::Lag { lag: 0 } | Importance::Leverage { window: 0 }) {
        return Err(Error::Config("a chunk needs at least one entry"));
    }
    if let Mix::SoftRedundancy { diversity, importance } = p.mix
        && !(diversity > 0.0 && importance > 0.0)
    {
        return Err(Error::Config("temperatures must be above 0"));
    }
    if let Diversity::Geometry(Geometry { reference: Reference::Window(0), .. }) = p.diversity {
        return Err(Error::Config("a window of keys needs at least one"));
    }
    let window = matches!(p.importance, Importance::Attention(Attention { queries: Queries::Last(_), .. }));
    if let Evicted::Retain(r) = p.evicted
        && !(window && r.slots > 0 && r.tau > 0.0 && r.epsilon > 0.0)
    {
        return Err(Error::Config("slots need a window's attention, at least one slot, positive tau and epsilon"));
    }
    if let Diversity::Mmr(m) = p.diversity {
        if !window || !matches!(p.mix, Mix::Importance) {
            return Err(Error::Config("a choice one by one starts from the attention of a window, unmixed"));
        }
        let nearest = matches!(m.similarity, Similarity::NearestKey | Similarity::NearestAttention);
        let lambda = m.redundancy.at(view.layer, view.n_layers);
        match m.search {
            Search::Lazy if !nearest || lambda > 0.0 || lambda.is_nan() => {
                return Err(Error::Config("a lazy choice needs a negative weight and a similarity of the nearest"));
            }
            Search::Shortlist(0) => return Err(Error::Config("a shortlist needs at least one entry per choice")),
            _ => {}
        }
    }
    if !matches!(p.mix, Mix::Importance) && matches!(p.diversity, Diversity::None) {
        return Err(Error::Config("the mix weighs a diversity the policy does not have"));
    }
    let empty = view.lens.iter().all(|&len| len == 0);
    for (needed, there, what) in [
        (needs.window_queries > 0, o.n_queries > 0, "the last queries"),
        (needs.values, view.values.is_some(), "values"),
        (needs.column_sums, empty || !o.column_sums.is_empty(), "column sums"),
        (needs.query_mean, !o.query_mean.is_empty(), "the mean query"),
        (needs.query_covariance, !o.query_covariance.is_empty(), "the covariance of the queries"),
        (needs.output_norms, empty || !o.output_norms.is_empty(), "output norms"),
        (needs.head_weights, !o.head_weights.is_empty(), "head weights"),
        (needs.head_budgets, !o.head_budgets.is_empty(), "head budgets"),
        (needs.given, empty || !o.given.is_empty(), "given scores"),
    ] {
        if needed && !there {
            return Err(Error::MissingObservation(what));
        }
    }
    Ok(())
}

fn keep_all(v: &LayerView<'_>, out: Keep<'_>) {
    for (head, (count, &len)) in v.heads().zip(out.counts.iter_mut().zip(v.lens)) {
        *count = len;
        for (slot, i) in head.of_mut(out.indices).iter_mut().zip(0u32..) {
            *slot = i;
        }
    }
}

fn at_least(what: &'static str, need: usize, got: usize) -> Result<(), Error> {
    if got >= need { Ok(()) } else { Err(Error::LengthMismatch { what, need, got }) }
}
