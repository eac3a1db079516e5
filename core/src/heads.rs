//! How the heads of a layer share its budget, in exact token counts.

use crate::Error;
use crate::evict::Job;
use crate::math::{float, ratio, share};
use crate::select::{Cut, PROTECTED, rank};
use crate::shape::Head;

/// How the heads of a layer share its budget.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum HeadBudget {
    /// Every head keeps `budget` entries, or all it has.
    Uniform,
    /// The best `budget * n_kv_heads` entries of the layer, wherever they are, after every head took its best
    /// `floor * budget` (AdaKV). Judged by attention received where the policy has it (value norms and diversity
    /// then only rank inside a head), by the score otherwise. The total is exact.
    Adaptive {
        /// Share of the budget every head is sure of, 0 to 1; published default 0.2.
        floor: f32,
    },
    /// AdaKV as its authors' code computes it: the best entries of the layer decide how many each head gets, blended
    /// with an even share: `round((1 - floor) c_h + floor base)`, the window coming on top. The total can miss the
    /// budget by rounding.
    AdaptivePaper {
        /// Weight of the even share, 0 to 1; published default 0.2.
        floor: f32,
        /// Scales each head's scores by the share of them its best `base` entries hold.
        normalise: bool,
    },
    /// What [`Observation::head_budgets`](crate::Observation::head_budgets) says, whatever the layer's budget; what a head
    /// cannot fill goes to the others, one entry at a time (SparseMM and other offline profiles: see [`from_profile`](crate::from_profile)).
    Table,
}

impl HeadBudget {
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Adaptive { floor } | Self::AdaptivePaper { floor, .. } if !(0.0..=1.0).contains(floor) => {
                Err(Error::Config("floor must lie between 0 and 1"))
            }
            _ => Ok(()),
        }
    }

    /// Whether heads are compared, and `keys` of [`Self::allocate`] therefore used.
    pub(crate) const fn compares(&self) -> bool {
        matches!(self, Self::Adaptive { .. } | Self::AdaptivePaper { .. })
    }

    /// Writes the entries each head keeps, `[n_kv_heads]`. `keys` holds the ranks of the scores in `signal` to judge by,
    /// `[rows]`, and is scratch afterwards.
    pub(crate) fn allocate(&self, job: &Job<'_>, signal: &[f32], keys: &mut [u32], counts: &mut [u32]) {
        for (count, &len) in counts.iter_mut().zip(job.view.lens) {
            *count = len.min(job.budget);
        }
        match *self {
            Self::Uniform => {}
            Self::Adaptive { floor } => {
                // At least one entry per head, as long as a floor was asked for at all.
                let floor = share(job.budget, floor).max(u32::from(floor > 0.0));
                adaptive(job, floor, keys, counts);
            }
            Self::AdaptivePaper { floor, normalise } => paper(job, floor, normalise, signal, keys, counts),
            Self::Table => table(job, counts),
        }
    }
}

fn table(job: &Job<'_>, counts: &mut [u32]) {
    let lens = job.view.lens;
    let mut spare = 0u64;
    for ((count, &len), &wanted) in counts.iter_mut().zip(lens).zip(job.view.observation.head_budgets) {
        let wanted = wanted.saturating_sub(job.slots);
        *count = wanted.min(len);
        spare = spare.saturating_add(u64::from(wanted.saturating_sub(len)));
    }
    let mut room = true;
    while spare > 0 && room {
        room = false;
        for (count, &len) in counts.iter_mut().zip(lens) {
            if *count < len && spare > 0 {
                *count = count.saturating_add(1);
                spare = spare.saturating_sub(1);
                room = true;
            }
        }
    }
}

/// The recent entries stay out of the competition and come on top; other protected ones take part as the best.
fn paper(job: &Job<'_>, floor: f32, normalise: bool, signal: &[f32], keys: &mut [u32], counts: &mut [u32]) {
    let heads = job.view.heads();
    let base = job.budget.saturating_sub(job.recent);
    for head in heads.clone().filter(|_| normalise) {
        let m = job.candidates(head);
        let (signal, keys) = (head.of(signal).get(..m).unwrap_or_default(), head.of_mut(keys));
        let keys = keys.get_mut(..m).unwrap_or_default();
        let mut cut = Cut::top(keys.iter().copied(), m.min(base as usize));
        let (mut best, mut all) = (0.0, 0.0);
        for (&s, &key) in signal.iter().zip(&*keys) {
            all += s;
            best += if cut.take(key) { s } else { 0.0 };
        }
        let weight = ratio(best, all);
        for (i, (key, &s)) in keys.iter_mut().zip(signal).enumerate() {
            if *key != PROTECTED {
                *key = rank(s * weight, i);
            }
        }
    }
    let keys = &*keys;
    let candidates = |head: Head| head.of(keys).get(..job.candidates(head)).unwrap_or_default();
    let room = heads.clone().fold(0usize, |n, h| n.saturating_add(candidates(h).len()));
    let total = (base as usize).saturating_mul(job.view.shape.n_kv_heads).min(room);
    let mut cut = Cut::top(heads.clone().flat_map(|h| candidates(h).iter().copied()), total);
    let even = share(base, floor);
    for (count, head) in counts.iter_mut().zip(heads.clone()) {
        let won = candidates(head).iter().filter(|&&key| cut.take(key)).count();
        let scored = libm::rintf(float(won) * (1.0 - floor) + float(even as usize));
        let kept = whole(scored).saturating_add(job.recent);
        *count = kept.max(job.count_protected(head)).min(u32::try_from(head.len).unwrap_or(u32::MAX));
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(x: f32) -> u32 {
    x as u32
}

fn adaptive(job: &Job<'_>, floor: u32, keys: &mut [u32], counts: &mut [u32]) {
    let heads = job.view.heads();
    for head in heads.clone() {
        let keys = head.of_mut(keys);
        let mut cut = Cut::top(keys.iter().copied(), head.len.min(floor as usize));
        for key in keys {
            if cut.take(*key) {
                *key = PROTECTED;
            }
        }
    }
    let keys = &*keys;
    let budget = (job.budget as usize).saturating_mul(job.view.shape.n_kv_heads);
    let total = heads.clone().fold(0usize, |n, h| n.saturating_add(h.len)).min(budget);
    let mut cut = Cut::top(heads.clone().flat_map(|h| h.of(keys).iter().copied()), total);
    let above = |k: &&u32| **k > cut.key;
    for (count, head) in counts.iter_mut().zip(heads.clone()) {
        *count = u32::try_from(head.of(keys).iter().filter(above).count()).unwrap_or(u32::MAX);
    }
    // Equal keys at the cut: older entries first, whichever head they are in.
    let longest = heads.clone().map(|h| h.len).max().unwrap_or(0);
    for i in 0..longest {
        if cut.ties == 0 {
            break;
        }
        for (count, head) in counts.iter_mut().zip(heads.clone()) {
            if head.of(keys).get(i).is_some_and(|&k| k == cut.key && cut.take(k)) {
                *count = count.saturating_add(1);
            }
        }
    }
}
