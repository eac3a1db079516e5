//! Merging evicted entries into the kept ones they resemble.

use crate::evict::Kept;
use crate::importance::{stream, uniform};
use crate::kernels::{self, Dispatch};
use crate::math::{copy, float, ratio, sqrt};
use crate::select::{Cut, rank};
use crate::shape::{Head, LayerShape, LayerView, Observation, Rows, heads, part, part_mut};
use crate::{Error, Merge, MergeRule, Workspace, WorkspaceLen};

/// A layer whose rows are changed in place, otherwise as in [`LayerView`].
#[derive(Debug)]
pub struct LayerMut<'a> {
    /// Head layout.
    pub shape: LayerShape,
    /// First row of each head, `[n_kv_heads]`.
    pub starts: &'a [u32],
    /// Rows per head, `[n_kv_heads]`.
    pub lens: &'a [u32],
    /// `[rows][head_dim]`.
    pub keys: &'a mut [f32],
    /// `[rows][head_dim]`.
    pub values: &'a mut [f32],
    /// Entries each row stands for, `[rows]`, or empty if nobody counts them. Adding the logarithm of its count to the
    /// logit of a merged entry makes attention exact where the merged keys and values were equal.
    pub counts: &'a mut [f32],
    /// Attention each row received, `[rows]`, in any unit; empty unless the rule is [`MergeRule::Following`].
    pub attention: &'a [f32],
}

impl Merge {
    pub(crate) fn check(self) -> Result<(), Error> {
        match self.rule {
            MergeRule::Proportional { fraction, .. } if !(fraction > 0.0 && fraction <= 1.0) => {
                Err(Error::Config("the merged fraction must lie above 0 and not above 1"))
            }
            MergeRule::Following { neighbours: 0, .. } => Err(Error::Config("merging needs at least one neighbour")),
            _ => Ok(()),
        }
    }
}

/// Workspace of [`merge_layer`]; `None` if the sizes overflow.
pub const fn merge_workspace_len(shape: LayerShape, rows: usize) -> Option<WorkspaceLen> {
    let Some(buffers) = rows.checked_mul(5) else { return None };
    match buffers.checked_add(shape.head_dim) {
        Some(f32s) => Some(WorkspaceLen { f32s, u32s: rows }),
        None => None,
    }
}

/// Merges the rows that `kept` leaves out into kept rows, in place. The other rows are left as they were; compact
/// afterwards. `O(evicted len head_dim)` per head.
///
/// # Errors
/// [`Error::LengthMismatch`], [`Error::HeadRange`], [`Error::WorkspaceTooSmall`], [`Error::MissingObservation`] and
/// [`Error::Config`]; nothing was changed then.
pub fn merge_layer(
    d: Dispatch,
    rule: Merge,
    layer: LayerMut<'_>,
    kept: Kept<'_>,
    w: Workspace<'_>,
) -> Result<(), Error> {
    let view = LayerView {
        shape: layer.shape,
        starts: layer.starts,
        lens: layer.lens,
        keys: Rows::F32(layer.keys),
        values: Some(Rows::F32(layer.values)),
        observation: Observation::default(),
        scale: 1.0,
        layer: 0,
        n_layers: 1,
    };
    let rows = view.check()?;
    kept.check(layer.starts, layer.lens, rows)?;
    if !layer.counts.is_empty() && layer.counts.len() != rows {
        return Err(Error::LengthMismatch { what: "counts", need: rows, got: layer.counts.len() });
    }
    rule.check()?;
    let attentive = matches!(rule.rule, MergeRule::Following { .. });
    match layer.attention.len() {
        0 if attentive && rows > 0 => return Err(Error::MissingObservation("attention received")),
        got if got > 0 && got != rows => return Err(Error::LengthMismatch { what: "attention", need: rows, got }),
        _ => {}
    }
    let len = merge_workspace_len(layer.shape, rows).ok_or(Error::Overflow("workspace"))?;
    for (what, need, got) in [("f32s", len.f32s, w.f32s.len()), ("u32s", len.u32s, w.u32s.len())] {
        if got < need {
            return Err(Error::WorkspaceTooSmall { what, need, got });
        }
    }
    // Nothing below can fail.
    let LayerMut { shape, keys, values, counts, attention, .. } = layer;
    let size = shape.head_dim;
    let (row, buffers) = w.f32s.split_at_mut_checked(size).unwrap_or_default();
    for head in heads(layer.starts, layer.lens) {
        let mut parts = buffers.chunks_exact_mut(rows.max(1)).map(|x| x.get_mut(..head.len).unwrap_or_default());
        let mut part = || parts.next().unwrap_or_default();
        let mut merger = Merger {
            d,
            size,
            head,
            kept: kept.of(head),
            row,
            norms: part(),
            products: part(),
            best: part(),
            weights: part(),
            totals: part(),
            targets: w.u32s.get_mut(..head.len).unwrap_or_default(),
        };
        if let MergeRule::Following { neighbours, seed } = rule.rule {
            merger.spread(neighbours as usize, stream(seed, 0, head.index), head.of(attention), values);
            continue;
        }
        merger.match_up(keys);
        merger.weigh(rule.rule, values);
        if !rule.values_only {
            merger.apply(rule.rule, keys);
        }
        merger.apply(rule.rule, values);
        merger.count(head.of_mut(counts));
    }
    Ok(())
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(x: f32) -> usize {
    x as usize
}

struct Merger<'a> {
    d: Dispatch,
    size: usize,
    head: Head,
    kept: &'a [u32],
    /// One row, `[head_dim]`.
    row: &'a mut [f32],
    norms: &'a mut [f32],
    products: &'a mut [f32],
    /// Cosine of each evicted entry with its target, `[len]`.
    best: &'a mut [f32],
    /// Weight of each evicted entry in its target, 0 for kept ones and for those left out, `[len]`.
    weights: &'a mut [f32],
    /// What the weights of a target's entries add up to, `[len]`.
    totals: &'a mut [f32],
    /// The kept entry each evicted one is merged into; [`u32::MAX`] for kept ones, `[len]`.
    targets: &'a mut [u32],
}

impl Merger<'_> {
    /// Finds the kept entry with the most similar key for every evicted one; of equals the oldest.
    fn match_up(&mut self, keys: &[f32]) {
        let rows = part(keys, self.head.start, self.head.len, self.size);
        self.lengths(rows);
        self.targets.fill(0);
        for &i in self.kept {
            if let Some(target) = self.targets.get_mut(i as usize) {
                *target = u32::MAX;
            }
        }
        for (i, row) in rows.chunks_exact(self.size.max(1)).enumerate() {
            if self.targets.get(i) == Some(&u32::MAX) {
                continue;
            }
            let stride = self.products.len();
            kernels::dots(self.d, row, self.size, rows, self.products, stride);
            let norm = |j: usize| self.norms.get(j).copied().unwrap_or(0.0);
            let mut nearest = (f32::NEG_INFINITY, self.kept.first().copied().unwrap_or(u32::MAX));
            for &j in self.kept {
                let product = self.products.get(j as usize).copied().unwrap_or(0.0);
                let cosine = ratio(product, norm(i) * norm(j as usize));
                if cosine > nearest.0 {
                    nearest = (cosine, j);
                }
            }
            if let (Some(best), Some(target)) = (self.best.get_mut(i), self.targets.get_mut(i)) {
                (*best, *target) = nearest;
            }
        }
    }

    /// Sets `norms` to the lengths of the head's rows.
    fn lengths(&mut self, rows: &[f32]) {
        kernels::sq_norms(self.d, rows, self.size, self.norms);
        self.norms.iter_mut().for_each(|x| *x = sqrt(*x));
    }

    fn evicted(&self) -> impl Iterator<Item = (usize, usize)> + Clone + '_ {
        self.targets.iter().enumerate().filter(|&(_, &t)| t != u32::MAX).map(|(i, &t)| (i, t as usize))
    }

    fn weigh(&mut self, rule: MergeRule, values: &[f32]) {
        let n = float(self.evicted().count().max(1));
        let cosine = |best: &[f32], i: usize| best.get(i).copied().unwrap_or(0.0);
        let mean = self.evicted().fold(0.0, |s, (i, _)| s + cosine(self.best, i)) / n;
        self.lengths(part(values, self.head.start, self.head.len, self.size));
        self.weights.fill(0.0);
        self.totals.fill(0.0);
        let least = self.least(rule);
        for (i, &target) in self.targets.iter().enumerate() {
            let cosine = cosine(self.best, i);
            let norm = |i: usize| self.norms.get(i).copied().unwrap_or(0.0);
            let (weight, counted) = match rule {
                _ if target == u32::MAX => continue,
                MergeRule::Pivot => (0.5, 1.0),
                MergeRule::Average => (1.0, 1.0),
                MergeRule::Weighted if cosine >= mean => (cosine, 1.0),
                MergeRule::Proportional { threshold, .. } if cosine >= threshold && rank(cosine, i) >= least => {
                    let share = norm(i) / (norm(i) + norm(target as usize) + 1e-6);
                    let weight = if cosine > 0.0 { cosine * share } else { 0.0 };
                    (weight, weight)
                }
                _ => continue,
            };
            for (slot, x) in [(self.weights.get_mut(i), weight), (self.totals.get_mut(target as usize), counted)] {
                if let Some(slot) = slot {
                    *slot += x;
                }
            }
        }
    }

    /// The rank of the least cosine among the fraction that may be merged: the upper `fraction` quantile, as PyTorch
    /// interpolates it, of all evicted entries; those below the threshold count as the lowest.
    fn least(&self, rule: MergeRule) -> u32 {
        let MergeRule::Proportional { threshold, fraction } = rule else { return 0 };
        let key = |(i, _): (usize, usize)| {
            let cosine = self.best.get(i).copied().unwrap_or(0.0);
            rank(if cosine >= threshold { cosine } else { f32::NEG_INFINITY }, i)
        };
        let n = self.evicted().count();
        let left_out = libm::ceilf((1.0 - fraction) * float(n.saturating_sub(1)));
        Cut::top(self.evicted().map(key), n.saturating_sub(whole(left_out))).key
    }

    /// Adds every evicted value, divided, to the values of the next kept entries, if the dice say so.
    fn spread(&mut self, neighbours: usize, stream: u64, attention: &[f32], values: &mut [f32]) {
        let from = self.head.start.saturating_mul(self.size);
        let values = values.get_mut(from..).unwrap_or_default();
        let at = |i: usize| attention.get(i).copied().unwrap_or(0.0);
        let mut before = 0usize;
        for (i, number) in (0..self.head.len).zip(0u64..) {
            if self.kept.get(before).is_some_and(|&k| k as usize == i) {
                before = before.saturating_add(1);
                continue;
            }
            let after = self.kept.get(before..).unwrap_or_default();
            let after = after.get(..neighbours.min(after.len())).unwrap_or_default();
            let n = float(after.len());
            let mean = after.iter().fold(0.0, |s, &t| s + at(t as usize)) / n;
            if uniform(stream, number) < at(i) / mean {
                copy(part_mut(values, i, 1, self.size), self.row);
                for &t in after {
                    kernels::axpy(self.d, 1.0 / n, self.row, part_mut(values, t as usize, 1, self.size));
                }
            }
        }
    }

    /// `x_t = (x_t keep + sum weight_e x_e) / (1 + total_t)`; a pivot's midpoints keep half of `x_t` each.
    fn apply(&mut self, rule: MergeRule, rows: &mut [f32]) {
        let from = self.head.start.saturating_mul(self.size);
        let rows = rows.get_mut(from..).unwrap_or_default();
        for &t in self.kept {
            let total = self.totals.get(t as usize).copied().unwrap_or(0.0);
            let keep = if rule == MergeRule::Pivot { 1.0 + 0.5 * total } else { 1.0 };
            kernels::scale(self.d, keep / (1.0 + total), part_mut(rows, t as usize, 1, self.size));
        }
        for (i, &target) in self.targets.iter().enumerate() {
            let weight = self.weights.get(i).copied().unwrap_or(0.0);
            if weight != 0.0 && target != u32::MAX {
                let total = self.totals.get(target as usize).copied().unwrap_or(0.0);
                copy(part_mut(rows, i, 1, self.size), self.row);
                kernels::axpy(self.d, weight / (1.0 + total), self.row, part_mut(rows, target as usize, 1, self.size));
            }
        }
    }

    /// Hands the entries an evicted row stood for to its target, if it was merged.
    fn count(&self, counts: &mut [f32]) {
        for ((i, target), weight) in self.targets.iter().enumerate().zip(&*self.weights) {
            if *weight != 0.0 {
                let own = counts.get(i).copied().unwrap_or(0.0);
                if let Some(count) = counts.get_mut(*target as usize) {
                    *count += own;
                }
            }
        }
    }
}
