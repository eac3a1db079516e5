//! What mattered.

/// The importance term of the score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Importance {
    /// No importance term.
    None,
    /// Newer is better: `S_i = i`.
    Recency,
    /// A uniform number from a hash of seed, layer, head and index: the control every method must beat.
    Random {
        /// Chooses the numbers.
        seed: u64,
    },
    /// Small keys first: `S_i = -||k_i||`.
    KeyNorm,
    /// Attention received from the recorded queries.
    Attention(Attention),
    /// How unusual key and value look to the tokens that follow (LagKV): entries after the protected sinks are cut into
    /// chunks of `lag`; each element is min-max scaled by the next chunk, and the softmax over the chunk of its standard
    /// deviation over channels, averaged over key and value, ranks the chunk's entries from 0 to `1 - 1 / lag`. The last
    /// whole chunk, the rest and the sinks get 1. Shorter sequences are scored by recency.
    Lag {
        /// Entries of a chunk.
        lag: u32,
    },
    /// Approximate leverage (CurDKV): the entry's share of the squared length of the keys in its stretch of `window`
    /// entries, times the same of the values, divided by the sum over the head.
    Leverage {
        /// Entries of a stretch.
        window: u32,
    },
    /// The host's own scores, from [`Observation::given`](crate::Observation::given).
    Given,
}

/// Attention received, averaged over the query heads of the group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Whose attention.
    pub queries: Queries,
    /// Smoothing along the sequence.
    pub pool: Pool,
    /// Whether all KV heads are judged by their common mean and so keep the same entries; their lengths must be equal.
    pub share_heads: bool,
    /// What the values contribute.
    pub value_norm: ValueNorm,
}

/// The queries whose attention counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queries {
    /// The last ones (`w_obs`), averaged over those that can see the entry. Fewer are used where fewer were recorded.
    Last(u32),
    /// The last ones, as R-KV reads them: the largest logit in the group, softmax over the candidates alone.
    Peak(u32),
    /// All so far, from [`Observation::column_sums`](crate::Observation::column_sums).
    All {
        /// Divides by the number of queries that could see the entry, its distance from the end in
        /// [`Observation::positions`](crate::Observation::positions). Plain sums favour old entries.
        per_visible: bool,
    },
    /// Future ones, as a normal distribution: [`Observation::query_mean`](crate::Observation::query_mean). Softmax over
    /// the entries after the protected sinks.
    Expected {
        /// Uses [`Observation::query_covariance`](crate::Observation::query_covariance) too.
        covariance: bool,
    },
}

/// Smoothing of attention along the sequence, over the entries before the protected window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// None.
    None,
    /// Mean over `width` neighbours (odd).
    Mean {
        /// Neighbours, the entry itself included.
        width: u32,
        /// What lies beyond the ends.
        edge: Edge,
    },
    /// Maximum over `width` neighbours (odd).
    Max {
        /// Neighbours, the entry itself included.
        width: u32,
    },
}

/// What a mean pool assumes beyond the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Zeros, always dividing by the width: what PyTorch's `avg_pool1d` does, which lowers the first and last scores.
    Zero,
    /// Nothing: divide by the neighbours that exist.
    Renormalise,
}

/// What the values contribute to importance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueNorm {
    /// Nothing.
    None,
    /// `||v_i||_2`, min-max scaled and brought to the mean of the attention term, is added to it (MixKV).
    Add,
    /// `(attention + epsilon) * ||v_i||` (VATP, ExpectedAttention).
    Times {
        /// Which norm.
        norm: Norm,
        /// Added to the attention.
        epsilon: f32,
    },
    /// `(attention + epsilon) * o_i`, where `o_i` is the norm of what the value adds to the layer's output
    /// ([`Observation::output_norms`](crate::Observation::output_norms)), after the best `first_stage` of the head's
    /// entries were secured by attention alone (CriticalKV).
    Output {
        /// Added to the attention.
        epsilon: f32,
        /// Share of a head's entries chosen by attention alone.
        first_stage: f32,
    },
}

/// A vector norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Sum of the absolute values.
    L1,
    /// Euclidean.
    L2,
}
