//! Slots while decoding: one evicted entry after the other goes into the last of them.

use crate::math::{float, ratio};
use crate::shape::part_mut;
use crate::{Error, Mass, Retain, Slots};

/// One entry evicted while decoding.
#[derive(Clone, Copy, Debug)]
pub struct Evictee<'a> {
    /// `[head_dim]`.
    pub key: &'a [f32],
    /// `[head_dim]`.
    pub value: &'a [f32],
    /// Entropy of its attention over the last queries, 0 to 1: see [`entropy_layer`](crate::entropy_layer).
    pub entropy: f32,
    /// Mean entropy of the entries evicted so far, this one included.
    pub mean_entropy: f32,
}

/// Writes one entry into the last of a head's slots; of the slots meant for its modality if there are several.
///
/// A slot that holds `stretch` entries is closed: the two neighbours of the least mass together become one, the later slots
/// move down, and the last is opened anew. With a single slot everything goes into it. The first of two slots that became
/// one is returned: entries that were in a later slot are now in the one before it.
///
/// [`Slots::members`] is not used.
///
/// # Errors
/// [`Error::LengthMismatch`] and [`Error::Config`]; nothing was changed then.
pub fn absorb(retain: &Retain, stretch: u32, entry: Evictee<'_>, mut slots: Slots<'_>) -> Result<Option<usize>, Error> {
    let d = entry.key.len();
    let n = slots.mass.len();
    if entry.value.len() != d {
        return Err(Error::LengthMismatch { what: "value", need: d, got: entry.value.len() });
    }
    slots.check(retain, d, n)?;
    let Some(last) = n.checked_sub(1).filter(|_| stretch > 0 && retain.tau > 0.0 && retain.epsilon > 0.0) else {
        return Err(Error::Config("absorbing needs a slot, a stretch of at least one entry, positive tau and epsilon"));
    };
    let length = float(stretch as usize);
    // Entries in a slot, as far as its mass tells.
    let held = |mass: f32| match retain.mass {
        Mass::Count => mass,
        Mass::Entropy => ratio(mass, entry.mean_entropy),
    };
    let full = slots.mass.last().is_some_and(|&m| held(m) >= length);
    let closed = if full && last > 0 { Some(close(&mut slots, d)) } else { None };
    let mass = slots.mass.last().copied().unwrap_or(0.0);
    // Of the integrator's weight, what the entries so far have filled; they count as entries of mean entropy.
    let filled = -libm::expm1f(-retain.tau * held(mass) / length);
    let decay = retain.tau * (retain.epsilon + entry.entropy) / (length * (retain.epsilon + entry.mean_entropy));
    let (keep, write) = (libm::expf(-decay) * filled, -libm::expm1f(-decay));
    let (key, value) = (part_mut(slots.keys, last, 1, d), part_mut(slots.values, last, 1, d));
    if let Some(moments) = &mut slots.moments {
        let step = |old: &[f32], new: &[f32], j: usize| match (old.get(j), new.get(j)) {
            (Some(old), Some(new)) => new - old,
            _ => 0.0,
        };
        let share = write / (keep + write);
        moments.part(last, 1, d).join(share, 0.0, |j| step(key, entry.key, j), |j| step(value, entry.value, j));
    }
    for (all, new) in [(key, entry.key), (value, entry.value)] {
        for (x, &u) in all.iter_mut().zip(new) {
            *x = (keep * *x + write * u) / (keep + write);
        }
    }
    if let Some(m) = slots.mass.last_mut() {
        *m += if retain.mass == Mass::Count { 1.0 } else { entry.entropy };
    }
    Ok(closed)
}

/// Merges the two neighbouring slots of the least mass together, mass-weighted, frees the last slot, and returns the first
/// of the two.
fn close(slots: &mut Slots<'_>, d: usize) -> usize {
    let mut least = (0, f32::INFINITY);
    for (i, (a, b)) in slots.mass.iter().zip(slots.mass.iter().skip(1)).enumerate() {
        if a + b < least.1 {
            least = (i, a + b);
        }
    }
    let first = least.0;
    let second = first.saturating_add(1);
    let at = |x: &[f32], i: usize| x.get(i).copied().unwrap_or(0.0);
    let total = at(slots.mass, first) + at(slots.mass, second);
    let share = if total > 0.0 { at(slots.mass, second) / total } else { 0.5 };
    let element = |slot: usize, j: usize| slot.saturating_mul(d).saturating_add(j);
    if let Some(m) = &mut slots.moments {
        let (keys, values) = (&*slots.keys, &*slots.values);
        let step = |x: &[f32], j: usize| at(x, element(second, j)) - at(x, element(first, j));
        let radius = at(m.radius, second);
        m.part(first, 1, d).join(share, radius, |j| step(keys, j), |j| step(values, j));
        let square = d.saturating_mul(d);
        for (x, row) in [(&mut *m.variance, d), (&mut *m.covariance, square)] {
            for j in 0..row {
                let own = at(x, second.saturating_mul(row).saturating_add(j));
                if let Some(x) = x.get_mut(first.saturating_mul(row).saturating_add(j)) {
                    *x += share * own;
                }
            }
            shift(x, second.saturating_mul(row), row);
        }
        shift(m.radius, second, 1);
    }
    for x in [&mut *slots.keys, &mut *slots.values] {
        for j in 0..d {
            let (a, b) = (at(x, element(first, j)), at(x, element(second, j)));
            if let Some(x) = x.get_mut(element(first, j)) {
                *x = a + (b - a) * share;
            }
        }
        shift(x, element(second, 0), d);
    }
    if let Some(m) = slots.mass.get_mut(first) {
        *m = total;
    }
    shift(slots.mass, second, 1);
    first
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
