//! What becomes of the rest.

/// What becomes of the entries that are not kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Evicted {
    /// They are forgotten.
    Drop,
    /// They are summarised in a few slots per head by [`retain_layer`](crate::retain_layer). Slots count against the
    /// budget, each as the entries whose bytes it takes: one, unless the [`Readout`] needs more.
    Retain(Retain),
    /// They are merged into the kept entries they resemble by [`merge_layer`](crate::merge_layer).
    Merge(Merge),
}

/// How evicted entries become slots (RetentiveKV). Uncertain entries, whose attention is spread over the window's
/// queries, are written more strongly than those that mattered to one query only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retain {
    /// Slots per head, each for one stretch of the evicted entries; image and text entries never share one.
    pub slots: u32,
    /// Total decay over a slot, above 0; near 0, the slot is a plain weighted mean.
    pub tau: f32,
    /// Added to every entropy, so that certain entries are written too; above 0.
    pub epsilon: f32,
    /// `eta`: scores are multiplied by `1 + eta H_i`.
    pub gain: f32,
    /// How many entries a slot stands for.
    pub mass: Mass,
    /// How attention reads the slots.
    pub readout: Readout,
}

impl Retain {
    /// Entries of `head_dim` that the slots of a head take the place of.
    pub(crate) fn cost(&self, head_dim: usize) -> u32 {
        // Variance and covariance are head_dim + head_dim^2 numbers, an entry 2 head_dim.
        let moments = match self.readout {
            Readout::Mean => 0,
            Readout::Tilt => head_dim.saturating_add(1).div_ceil(2),
        };
        let each = u32::try_from(moments).unwrap_or(u32::MAX).saturating_add(1);
        self.slots.saturating_mul(each)
    }
}

/// How attention reads a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readout {
    /// As an entry of the mean key and value that stands for many.
    Mean,
    /// With the slot's second moments too, as [`tilt`](crate::tilt) says: exact for entries whose keys and values are
    /// jointly normal. A slot then costs `1 + (head_dim + 1) / 2` entries, rounded up.
    Tilt,
}

/// How many entries a slot stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mass {
    /// As many as were written.
    Count,
    /// The sum of their entropies.
    Entropy,
}

/// How evicted entries are merged: each into the kept entry of the most similar key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merge {
    /// The mean taken.
    pub rule: MergeRule,
    /// Leaves the keys as they are. Merging rotated keys of different positions is approximate.
    pub values_only: bool,
}

/// What a kept row becomes, `x` being key or value, `t` the kept and `e` the evicted entries merged into it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MergeRule {
    /// Mean of `x_t` and the midpoints `(x_t + x_e) / 2` (LOOK-M, pivotal).
    Pivot,
    /// Mean of `x_t` and the `x_e` (LOOK-M, averaged).
    Average,
    /// Mean of `x_t` and `cos_e x_e`, of the evicted entries whose cosine is at least the head's mean (LOOK-M, weighted).
    Weighted,
    /// `(x_t + sum w_e x_e) / (1 + sum w_e)` with `w_e = max(cos_e, 0) ||v_e|| / (||v_e|| + ||v_t||)`, of the evicted
    /// entries whose cosine reaches the threshold (kvpress).
    Proportional {
        /// Least cosine.
        threshold: f32,
        /// Share of the evicted entries that may be merged, the most similar first; above 0, at most 1.
        fraction: f32,
    },
    /// `v_t + v_e / m` for the next `m` kept entries after `e`, with probability `a_e / mean a_t`, `a` being the attention
    /// received ([`LayerMut::attention`](crate::LayerMut::attention)); keys stay (CaM).
    Following {
        /// Kept entries an evicted one is spread over, fewer at the end; at least 1.
        neighbours: u32,
        /// Chooses the random numbers.
        seed: u64,
    },
}
