//! Slots: evicted entries summarised as entries that stand for many (RetentiveKV).

use crate::attention::{entropies, received};
use crate::evict::{Job, Kept};
use crate::kernels::Dispatch;
use crate::math::float;
use crate::shape::{Head, part_mut};
use crate::workspace::Parts;
use crate::{Error, Evicted, LayerView, Mass, Policy, Queries, Retain, Workspace, kernels, tag};

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
    let elements = n.checked_mul(v.shape.head_dim).ok_or(Error::Overflow("slots"))?;
    for (what, need, got) in [
        ("slot keys", elements, out.keys.len()),
        ("slot values", elements, out.values.len()),
        ("slot masses", n, out.mass.len()),
    ] {
        if need != got {
            return Err(Error::LengthMismatch { what, need, got });
        }
    }
    let mut parts = Parts::carve(p, v.shape, job.rows, w)?;
    // Nothing below can fail.
    let size = slots.saturating_mul(v.shape.head_dim);
    for head in v.heads() {
        if let Queries::Last(w) = a.queries {
            let scores = head.of_mut(parts.scores);
            received(&job, head, w as usize, parts.temp, parts.tile, parts.matrix, parts.window, scores);
        }
        entropies(&job, head, parts.window, parts.temp);
        let out = Slots {
            keys: part_mut(out.keys, head.index, 1, size),
            values: part_mut(out.values, head.index, 1, size),
            mass: part_mut(out.mass, head.index, 1, slots),
        };
        fill(&job, head, retain, kept.of(head), &mut parts, out);
    }
    Ok(())
}

/// One entry evicted while decoding.
#[derive(Clone, Copy, Debug)]
pub struct Evictee<'a> {
    /// `[head_dim]`.
    pub key: &'a [f32],
    /// `[head_dim]`.
    pub value: &'a [f32],
    /// Entropy of its attention over the last queries, 0 to 1.
    pub entropy: f32,
    /// Mean entropy of the entries evicted so far.
    pub mean_entropy: f32,
}

/// Writes one entry into the last of a head's slots; of the slots meant for its modality if there are several.
///
/// A slot that holds `stretch` entries is closed: the two neighbours of the least mass together become one, the later slots
/// move down, and the last is opened anew. With a single slot everything goes into it.
///
/// # Errors
/// [`Error::LengthMismatch`] and [`Error::Config`]; nothing was changed then.
pub fn absorb(retain: &Retain, stretch: u32, entry: Evictee<'_>, slots: Slots<'_>) -> Result<(), Error> {
    let d = entry.key.len();
    let n = slots.mass.len();
    let elements = n.checked_mul(d).ok_or(Error::Overflow("slots"))?;
    for (what, need, got) in [
        ("value", d, entry.value.len()),
        ("slot keys", elements, slots.keys.len()),
        ("slot values", elements, slots.values.len()),
    ] {
        if need != got {
            return Err(Error::LengthMismatch { what, need, got });
        }
    }
    let Some(last) = n.checked_sub(1).filter(|_| stretch > 0 && retain.tau > 0.0 && retain.epsilon > 0.0) else {
        return Err(Error::Config("absorbing needs a slot, a stretch of at least one entry, positive tau and epsilon"));
    };
    let full = |mass: &[f32]| mass.last().is_some_and(|&m| m >= float(stretch as usize));
    if full(slots.mass) && last > 0 {
        close(slots.keys, slots.values, slots.mass, d);
    }
    let length = float(stretch as usize);
    let mass = slots.mass.last().copied().unwrap_or(0.0);
    // Of the integrator's weight, what the entries so far have filled; they count as entries of mean entropy.
    let filled = -libm::expm1f(-retain.tau * mass / length);
    let decay = retain.tau * (retain.epsilon + entry.entropy) / (length * (retain.epsilon + entry.mean_entropy));
    let (keep, write) = (libm::expf(-decay) * filled, -libm::expm1f(-decay));
    for (all, new) in [(slots.keys, entry.key), (slots.values, entry.value)] {
        for (x, &u) in part_mut(all, last, 1, d).iter_mut().zip(new) {
            *x = (keep * *x + write * u) / (keep + write);
        }
    }
    if let Some(m) = slots.mass.last_mut() {
        *m += if retain.mass == Mass::Count { 1.0 } else { entry.entropy };
    }
    Ok(())
}

/// Merges the two neighbouring slots of the least mass together, mass-weighted, and frees the last slot.
fn close(keys: &mut [f32], values: &mut [f32], mass: &mut [f32], d: usize) {
    let mut least = (0, f32::INFINITY);
    for (i, (a, b)) in mass.iter().zip(mass.iter().skip(1)).enumerate() {
        if a + b < least.1 {
            least = (i, a + b);
        }
    }
    let first = least.0;
    let second = first.saturating_add(1);
    let of = |i: usize| mass.get(i).copied().unwrap_or(0.0);
    let total = of(first) + of(second);
    let share = if total > 0.0 { of(second) / total } else { 0.5 };
    for all in [keys, values] {
        for j in 0..d {
            let at = |slot: usize| slot.saturating_mul(d).saturating_add(j);
            let x = |slot: usize| all.get(at(slot)).copied().unwrap_or(0.0);
            let merged = x(first) + (x(second) - x(first)) * share;
            if let Some(x) = all.get_mut(at(first)) {
                *x = merged;
            }
        }
        shift(all, second.saturating_mul(d), d);
    }
    if let Some(m) = mass.get_mut(first) {
        *m = total;
    }
    shift(mass, second, 1);
}

/// Moves what follows `at + by` down by `by` and clears the end.
fn shift(x: &mut [f32], at: usize, by: usize) {
    for i in at..x.len() {
        let next = x.get(i.saturating_add(by)).copied().unwrap_or(0.0);
        if let Some(x) = x.get_mut(i) {
            *x = next;
        }
    }
}

/// One head, its entropies in `parts.temp`.
fn fill(job: &Job<'_>, head: Head, r: Retain, kept: &[u32], parts: &mut Parts<'_>, out: Slots<'_>) {
    let (v, d) = (job.view, job.view.shape.head_dim);
    let slot_of = head.of_mut(parts.keys);
    assign(job, head, r.slots as usize, kept, slot_of);
    let entropy = parts.temp.get(..head.len).unwrap_or_default();
    out.keys.fill(0.0);
    out.values.fill(0.0);
    out.mass.fill(0.0);
    // Masses first hold the sums that divide the decay.
    for (&slot, &h) in slot_of.iter().zip(entropy) {
        if let Some(sum) = out.mass.get_mut(slot as usize) {
            *sum += r.epsilon + h;
        }
    }
    let whole = -libm::expm1f(-r.tau);
    for (rows, slots) in [(v.keys, out.keys), (v.values.unwrap_or(v.keys), out.values)] {
        let (mass, slot_of) = (&*out.mass, &*slot_of);
        rows.for_tiles(job.d, d, head, head.len, parts.tile, |i, rows| {
            let ids = slot_of.get(i..).unwrap_or_default().iter();
            let entropy = entropy.get(i..).unwrap_or_default();
            for ((row, &slot), &h) in rows.chunks_exact(d.max(1)).zip(ids).zip(entropy) {
                let Some(&sum) = mass.get(slot as usize) else { continue };
                let decay = r.tau * (r.epsilon + h) / sum;
                let x = part_mut(slots, slot as usize, 1, d);
                kernels::scale(job.d, libm::expf(-decay), x);
                kernels::axpy(job.d, -libm::expm1f(-decay), row, x);
            }
        });
        kernels::scale(job.d, 1.0 / whole, slots);
    }
    out.mass.fill(0.0);
    for (&slot, &h) in slot_of.iter().zip(entropy) {
        if let Some(mass) = out.mass.get_mut(slot as usize) {
            *mass += if r.mass == Mass::Count { 1.0 } else { h };
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
