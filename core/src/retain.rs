//! Slots: evicted entries summarised as entries that stand for many (RetentiveKV).

use crate::attention::{entropies, received};
use crate::evict::{Job, Kept};
use crate::kernels::Dispatch;
use crate::math::{copy, float};
use crate::moments::Moments;
use crate::shape::{Head, part, part_mut};
use crate::workspace::Parts;
use crate::{Attention, Error, Evicted, LayerView, Mass, Policy, Queries, Readout, Retain, Workspace, kernels, tag};

/// Entries that stand for many. Attention treats each as a key and a value whose logit has `ln(mass)` added, in the same
/// softmax as the kept entries; a slot of mass 0 is empty and takes no part. If the entries of a slot have equal keys and
/// values, that is what attention over all of them gives.
#[derive(Debug)]
pub struct Slots<'a> {
    /// `[n_kv_heads][slots][head_dim]`.
    pub keys: &'a mut [f32],
    /// `[n_kv_heads][slots][head_dim]`.
    pub values: &'a mut [f32],
    /// Entries a slot stands for, `[n_kv_heads][slots]`.
    pub mass: &'a mut [f32],
    /// The slot of every entry, `[rows]`, [`u32::MAX`] for those kept; empty if nobody asks. [`recall`](crate::recall)
    /// finds the entries of a slot by it.
    pub members: &'a mut [u32],
    /// Second moments, for [`Readout::Tilt`](crate::Readout::Tilt) and nothing else.
    pub moments: Option<Moments<'a>>,
}

/// Writes the entries that `kept` leaves out into slots. Call it after [`evict_layer`](crate::evict_layer) with the same
/// policy, budget, view and workspace size, before the cache is compacted.
///
/// The evicted entries of a head are divided in order of position into stretches of near-equal length; inside one, entry
/// `i` is written by a leaky integrator `x = g x + (1 - g) u_i` with `g = exp(-tau (epsilon + H_i) / sum (epsilon + H))`,
/// whose result is divided by `1 - exp(-tau)`.
///
/// # Errors
/// As [`evict_layer`](crate::evict_layer), and [`Error::Config`] if the policy retains nothing.
pub fn retain_layer(
    d: Dispatch,
    p: &Policy,
    budget: u32,
    v: &LayerView<'_>,
    w: Workspace<'_>,
    kept: Kept<'_>,
    out: Slots<'_>,
) -> Result<(), Error> {
    let (Evicted::Retain(retain), crate::Importance::Attention(a)) = (p.evicted, p.importance) else {
        return Err(Error::Config("the policy has no slots"));
    };
    let job = Job::new(d, p, budget, v)?;
    kept.check(v.starts, v.lens, job.rows)?;
    let slots = retain.slots as usize;
    let n = v.shape.n_kv_heads.checked_mul(slots).ok_or(Error::Overflow("slots"))?;
    out.check(&retain, v.shape.head_dim, n)?;
    if !out.members.is_empty() && out.members.len() != job.rows {
        return Err(Error::LengthMismatch { what: "slot members", need: job.rows, got: out.members.len() });
    }
    let mut parts = Parts::carve(p, v.shape, job.rows, w)?;
    // Nothing below can fail.
    let Slots { keys, values, mass, members, mut moments } = out;
    let (size, d) = (slots.saturating_mul(v.shape.head_dim), v.shape.head_dim);
    for head in v.heads() {
        attend(&job, head, a, &mut parts);
        let out = Slots {
            keys: part_mut(keys, head.index, 1, size),
            values: part_mut(values, head.index, 1, size),
            mass: part_mut(mass, head.index, 1, slots),
            members: head.of_mut(members),
            moments: moments.as_mut().map(|m| m.part(head.index, slots, d)),
        };
        fill(&job, head, retain, kept.of(head), &mut parts, out);
    }
    Ok(())
}

/// Writes how evenly the attention of every entry is spread over the window's queries, `[rows]`, 0 if it comes from one
/// and 1 if from all alike: what a host passes to [`absorb`](crate::absorb) with an entry that it evicts while decoding.
/// Rows that belong to no head are left alone.
///
/// # Errors
/// As [`retain_layer`].
pub fn entropy_layer(
    d: Dispatch,
    p: &Policy,
    v: &LayerView<'_>,
    w: Workspace<'_>,
    out: &mut [f32],
) -> Result<(), Error> {
    let (Evicted::Retain(_), crate::Importance::Attention(a)) = (p.evicted, p.importance) else {
        return Err(Error::Config("the policy has no slots"));
    };
    let job = Job::new(d, p, u32::MAX, v)?;
    if out.len() != job.rows {
        return Err(Error::LengthMismatch { what: "entropies", need: job.rows, got: out.len() });
    }
    let mut parts = Parts::carve(p, v.shape, job.rows, w)?;
    // Nothing below can fail.
    for head in v.heads() {
        attend(&job, head, a, &mut parts);
        copy(parts.temp, head.of_mut(out));
    }
    Ok(())
}

/// Writes the entropies of a head to the front of `parts.temp`.
fn attend(job: &Job<'_>, head: Head, a: Attention, parts: &mut Parts<'_>) {
    if let Queries::Last(w) = a.queries {
        let scores = head.of_mut(parts.scores);
        received(job, head, w as usize, parts.temp, parts.tile, parts.matrix, parts.window, None, scores);
    }
    entropies(job, head, parts.window, parts.temp);
}

impl Slots<'_> {
    /// Checks the lengths of `n` slots.
    pub(crate) fn check(&self, retain: &Retain, head_dim: usize, n: usize) -> Result<(), Error> {
        let overflow = Error::Overflow("slots");
        let elements = n.checked_mul(head_dim).ok_or(overflow)?;
        let squares = elements.checked_mul(head_dim).ok_or(overflow)?;
        let given = [
            ("slot keys", elements, self.keys.len()),
            ("slot values", elements, self.values.len()),
            ("slot masses", n, self.mass.len()),
        ];
        let moments = match (retain.readout, &self.moments) {
            (Readout::Mean, None) => [("", 0, 0); 3],
            (Readout::Tilt, Some(m)) => [
                ("slot variances", elements, m.variance.len()),
                ("slot covariances", squares, m.covariance.len()),
                ("slot radii", n, m.radius.len()),
            ],
            _ => return Err(Error::Config("slots have moments if and only if the readout is tilted")),
        };
        match given.into_iter().chain(moments).find(|(_, need, got)| need != got) {
            Some((what, need, got)) => Err(Error::LengthMismatch { what, need, got }),
            None => Ok(()),
        }
    }
}

/// One head, its entropies in `parts.temp`.
fn fill(job: &Job<'_>, head: Head, r: Retain, kept: &[u32], parts: &mut Parts<'_>, out: Slots<'_>) {
    let (v, d) = (job.view, job.view.shape.head_dim);
    let slot_of = head.of_mut(parts.keys);
    assign(job, head, r.slots as usize, kept, slot_of);
    let slot_of = &*slot_of;
    let (entropy, rest) = parts.temp.split_at_mut_checked(head.len).unwrap_or_default();
    let decays = rest.get_mut(..head.len).unwrap_or_default();
    out.keys.fill(0.0);
    out.values.fill(0.0);
    // Masses first hold the sums that divide the decay.
    gather(slot_of, entropy, out.mass, |h| r.epsilon + h);
    for ((decay, &slot), &h) in decays.iter_mut().zip(slot_of).zip(&*entropy) {
        *decay = out.mass.get(slot as usize).map_or(0.0, |sum| r.tau * (r.epsilon + h) / sum);
    }
    gather(slot_of, entropy, out.mass, |h| if r.mass == Mass::Count { 1.0 } else { h });
    let whole = -libm::expm1f(-r.tau);
    for (rows, slots) in [(v.keys, &mut *out.keys), (v.values.unwrap_or(v.keys), &mut *out.values)] {
        rows.for_tiles(job.d, d, head, head.len, parts.tile, |i, rows| {
            let ids = slot_of.get(i..).unwrap_or_default().iter();
            let decays = decays.get(i..).unwrap_or_default();
            for ((row, &slot), &decay) in rows.chunks_exact(d.max(1)).zip(ids).zip(decays) {
                if slot != u32::MAX {
                    let x = part_mut(slots, slot as usize, 1, d);
                    kernels::scale(job.d, libm::expf(-decay), x);
                    kernels::axpy(job.d, -libm::expm1f(-decay), row, x);
                }
            }
        });
        kernels::scale(job.d, 1.0 / whole, slots);
    }
    for (member, &slot) in out.members.iter_mut().zip(slot_of) {
        *member = slot;
    }
    if let Some(mut moments) = out.moments {
        let written = slot_of.iter().zip(&*decays).enumerate().filter(|(_, (slot, _))| **slot != u32::MAX);
        moments.clear();
        for (i, (&slot, &decay)) in written {
            let (key, value) = (&mut *parts.mean, &mut *parts.direction);
            v.keys.for_tiles(job.d, d, head.row(i), 1, parts.tile, |_, row| copy(row, key));
            v.values.unwrap_or(v.keys).for_tiles(job.d, d, head.row(i), 1, parts.tile, |_, row| copy(row, value));
            let slot = slot as usize;
            kernels::axpy(job.d, -1.0, part(out.keys, slot, 1, d), key);
            kernels::axpy(job.d, -1.0, part(out.values, slot, 1, d), value);
            moments.part(slot, 1, d).write(job.d, decay, key, value);
        }
        kernels::scale(job.d, 1.0 / whole, moments.variance);
        kernels::scale(job.d, 1.0 / whole, moments.covariance);
    }
}

/// Sums `f` of the entropies of each slot's entries.
fn gather(slot_of: &[u32], entropy: &[f32], out: &mut [f32], f: impl Fn(f32) -> f32) {
    out.fill(0.0);
    for (&slot, &h) in slot_of.iter().zip(entropy) {
        if let Some(sum) = out.get_mut(slot as usize) {
            *sum += f(h);
        }
    }
}

/// Writes the slot of every entry, [`u32::MAX`] for kept ones. Text takes the first slots, images the last, in proportion
/// to their numbers and at least one each.
fn assign(job: &Job<'_>, head: Head, slots: usize, kept: &[u32], out: &mut [u32]) {
    let image = |i: usize| job.view.tagged(head.start.saturating_add(i), tag::IMAGE);
    out.fill(0);
    for &i in kept {
        if let Some(slot) = out.get_mut(i as usize) {
            *slot = u32::MAX;
        }
    }
    let evicted = |out: &[u32], kind: bool| {
        out.iter().enumerate().filter(|&(i, &slot)| slot != u32::MAX && image(i) == kind).count()
    };
    let (text, images) = (evicted(out, false), evicted(out, true));
    let all = text.saturating_add(images);
    let for_text = match (text, images) {
        (_, 0) => slots,
        (0, _) => 0,
        _ if slots < 2 => slots, // one slot for both
        _ => {
            let share = libm::roundf(float(slots) * float(text) / float(all));
            whole(share).clamp(1, slots.saturating_sub(1))
        }
    };
    let shared = slots < 2;
    let mut seen = [0usize; 2];
    for (i, slot) in out.iter_mut().enumerate().filter(|(_, slot)| **slot != u32::MAX) {
        let kind = image(i) && !shared;
        let (first, n, total) = match (shared, kind) {
            (true, _) => (0, slots, all),
            (false, false) => (0, for_text, text),
            (false, true) => (for_text, slots.saturating_sub(for_text), images),
        };
        if let Some(seen) = seen.get_mut(usize::from(kind)) {
            // Stretch s holds the entries s total / n .. (s + 1) total / n.
            let stretch = seen.saturating_mul(n).checked_div(total).unwrap_or(0);
            *slot = u32::try_from(first.saturating_add(stretch)).unwrap_or(u32::MAX);
            *seen = seen.saturating_add(1);
        }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(x: f32) -> usize {
    x as usize
}
