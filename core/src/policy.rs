//! A method as a value: six axes, each answering one question about a layer's eviction.

use crate::heads::HeadBudget;

/// How one layer decides what it keeps. A named method is a constant of this type: see [`methods`](crate::methods).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// What mattered.
    pub importance: Importance,
    /// What differs.
    pub diversity: Diversity,
    /// How the two weigh.
    pub mix: Mix,
    /// What is kept whatever its score.
    pub protect: Protect,
    /// How many entries each head gets.
    pub head_budget: HeadBudget,
    /// What becomes of the rest.
    pub evicted: Evicted,
}

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
        /// Divides by the number of queries that could see the entry, its distance from the end. Plain sums favour old
        /// entries.
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

/// The diversity term of the score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Diversity {
    /// No diversity term.
    None,
    /// Distance of each key from the middle of its head's keys.
    Geometry(Geometry),
    /// Unlike what was kept already: entries are chosen one by one. The mix must be [`Mix::Importance`].
    Mmr(Mmr),
    /// How little each key repeats others (R-KV): minus the softmax over the head's entries of the mean cosine with all
    /// of them, where each entry spares the newest one more similar to it than `threshold`. `O(len^2 head_dim)`.
    Repetition {
        /// Cosine above which two keys are the same.
        threshold: f32,
    },
}

/// `alpha` times the Euclidean distance to the mean key plus `beta` times the negated cosine with the mean direction
/// (the mean of the unit keys), each scaled over the candidates. With one weight 0, [`Mix::Diversity`] takes the other
/// metric as measured. KeyDiff and MixKV are `alpha = 0`, ManifoldKV is `beta = 0`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Geometry {
    /// Weight of the Euclidean part.
    pub alpha: f32,
    /// Weight of the angular part.
    pub beta: f32,
    /// How the two combine.
    pub combine: Combine,
    /// How metrics, and importance beside them, are scaled.
    pub scaling: Scaling,
    /// What Euclidean distance is measured from.
    pub reference: Reference,
    /// How redundant the distances call a head, for [`Mix::HeadRedundancy`].
    pub redundancy: Redundancy,
}

impl Geometry {
    /// Both metrics with the given weights and the default of everything else, the first of each list.
    pub const fn new(alpha: f32, beta: f32) -> Self {
        Self {
            alpha,
            beta,
            combine: Combine::Sum,
            scaling: Scaling::MinMax,
            reference: Reference::Mean,
            redundancy: Redundancy::MeanOfRange,
        }
    }
}

/// Choosing one by one by maximal marginal relevance: the next entry is the one with the greatest
/// `importance_i + lambda_1 sigma_i + lambda_2 corr(i, S)`, `sigma` being the standard deviation of the attention the
/// entry receives over the window's queries, and `S` what was chosen before. `lambda_2 < 0` avoids repetition.
/// `O(count len head_dim)` per head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mmr {
    /// `lambda_1`.
    pub dispersion: Depth,
    /// `lambda_2`.
    pub redundancy: Depth,
    /// `corr`; 0 for an empty `S`.
    pub similarity: Similarity,
    /// Divides importance and `sigma` by the mean attention, which makes the weights numbers around 1.
    pub mean_match: bool,
    /// Smooths `sigma` like the attention.
    pub pool_dispersion: bool,
    /// Whether the protected entries are in `S` from the start.
    pub seed_protected: bool,
    /// Updates an entry only when it could be next. Same result, allowed where an entry can only get worse as `S` grows:
    /// `lambda_2 <= 0` and a similarity of the nearest.
    pub lazy: bool,
}

/// How alike an entry and a set are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Similarity {
    /// Cosine with the nearest key.
    NearestKey,
    /// Mean cosine with the keys.
    MeanKey,
    /// Correlation over the window's queries with the entry whose attention is most alike.
    NearestAttention,
    /// Mean of that correlation.
    MeanAttention,
}

/// How two scaled metrics `e` and `c` combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// `alpha e + beta c`.
    Sum,
    /// `e^alpha c^beta`, of min-max scaled metrics.
    Product,
}

/// How a term is made comparable over the candidates of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// To `[0, 1]`; diversity is then brought to the mean of the attention term.
    MinMax,
    /// To mean 0 and standard deviation 1; importance likewise.
    ZScore,
    /// To the share of candidates below; importance likewise. `O(len^2)`.
    Rank,
}

/// What Euclidean distance is measured from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// The mean key of the head.
    Mean,
    /// The mean of the keys of the same kind: entries tagged [`tag::IMAGE`](crate::tag::IMAGE) and the others.
    Modality,
    /// The mean key of each stretch of this many entries.
    Window(u32),
}

/// How redundant the distances `e_i` to the mean call a head; 1 is fully redundant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redundancy {
    /// `1 - mean e / max e`.
    MeanOfRange,
    /// `||mean key||^2 / mean ||key||^2`: sees a common part of the keys, which attention does not.
    Energy,
    /// `1 - [2n / (n - 1) mean e^2] / (2 max e)^2`: the mean squared distance of pairs against its bound.
    Pairs,
    /// `1 - mean e / (largest mean e of the layer's heads)`.
    Layer,
}

/// How importance `I` and diversity `D` become one score. Unless said otherwise, `D` is brought to the mean of the
/// attention term; an importance that is not attention is min-max scaled over the candidates and takes its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mix {
    /// `I`.
    Importance,
    /// `D`, as measured.
    Diversity,
    /// `(1 - w) I + w D`.
    Weight(Depth),
    /// `(1 - w) I + w D`, both as measured.
    Raw(Depth),
    /// `(1 - rho) I + rho D`, `rho` being how much the keys of the head repeat each other:
    /// `clamp(alpha rho_e + beta rho_c, 0, 1)` with the geometry's weights, where `rho_c` is the mean cosine over pairs
    /// of keys and `rho_e` the geometry's [`Redundancy`].
    HeadRedundancy,
    /// `D` where `rho` reaches the threshold, `I` elsewhere.
    HardRedundancy {
        /// Least `rho` of a head that goes by diversity.
        threshold: f32,
    },
    /// `(1 - w) I + w D`, `w` of each head from [`Observation::head_weights`](crate::Observation::head_weights).
    HeadTable,
    /// `(attention + value term + D) / 3`: MixKV without head-wise weights.
    Thirds,
}

/// A number that may depend on the layer; `x = layer / (n_layers - 1)`, 0 in a model of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Depth {
    /// The same in every layer.
    Constant(f32),
    /// From `first` at the bottom to `last` at the top.
    Linear {
        /// Value in the first layer.
        first: f32,
        /// Value in the last layer.
        last: f32,
    },
    /// One value for each third of the layers, bottom first.
    ThreeSegment([f32; 3]),
    /// `c0 + c1 u + c2 u^2` with `u = 2 x - 1`.
    Quadratic([f32; 3]),
}

impl Depth {
    /// The quadratic with these values in the first layer, the middle and the last layer.
    pub const fn quadratic_through(first: f32, middle: f32, last: f32) -> Self {
        Self::Quadratic([middle, (last - first) / 2.0, (last + first) / 2.0 - middle])
    }

    /// The value in `layer` of a model with `n_layers`.
    #[allow(clippy::cast_precision_loss)]
    pub fn at(self, layer: u32, n_layers: u32) -> f32 {
        let last_layer = n_layers.saturating_sub(1);
        let x = if last_layer == 0 { 0.0 } else { layer as f32 / last_layer as f32 };
        match self {
            Self::Constant(c) => c,
            Self::Linear { first, last } => first + (last - first) * x,
            Self::ThreeSegment([bottom, middle, top]) => {
                let (layer, n) = (u64::from(layer), u64::from(n_layers));
                if layer < n.div_ceil(3) {
                    bottom
                } else if layer < n.saturating_mul(2).div_ceil(3) {
                    middle
                } else {
                    top
                }
            }
            Self::Quadratic([c0, c1, c2]) => {
                let u = 2.0 * x - 1.0;
                c0 + c1 * u + c2 * u * u
            }
        }
    }
}

/// `scale * sinh(theta)`: a weight to search for that is linear near 0 and logarithmic far from it, with either sign.
pub fn sinh_weight(theta: f32, scale: f32) -> f32 {
    scale * libm::sinhf(theta)
}

/// What is kept whatever its score. Protected entries count against the budget. Entries tagged
/// [`tag::PROTECTED`](crate::tag::PROTECTED) join these.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Protect {
    /// The first entries of every head.
    pub sinks: u32,
    /// The last entries of every head.
    pub recent: Recent,
}

/// How many of the last entries are protected (`w_keep`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Recent {
    /// The method's own window. It shrinks where the budget would leave no entry to be chosen by score;
    /// [`Report::recent_kept`](crate::Report::recent_kept) says what remained.
    Window(u32),
    /// This share of the budget, shrinking likewise.
    Share(f32),
    /// Exactly this many; a budget that cannot hold them is an error.
    Exact(u32),
}

impl Recent {
    /// Entries protected when the budget allows; 0 for a share, which depends on the budget.
    pub const fn entries(self) -> u32 {
        match self {
            Self::Window(n) | Self::Exact(n) => n,
            Self::Share(_) => 0,
        }
    }
}

/// What becomes of the entries that are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// They are forgotten.
    Drop,
}

/// What the runtime has to record for a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Needs {
    /// Last queries of every query head.
    pub window_queries: usize,
    /// Value rows.
    pub values: bool,
    /// [`Observation::column_sums`](crate::Observation::column_sums).
    pub column_sums: bool,
    /// [`Observation::query_mean`](crate::Observation::query_mean).
    pub query_mean: bool,
    /// [`Observation::query_covariance`](crate::Observation::query_covariance).
    pub query_covariance: bool,
    /// [`Observation::output_norms`](crate::Observation::output_norms).
    pub output_norms: bool,
    /// [`Observation::given`](crate::Observation::given).
    pub given: bool,
    /// [`Observation::head_weights`](crate::Observation::head_weights).
    pub head_weights: bool,
    /// [`Observation::head_budgets`](crate::Observation::head_budgets).
    pub head_budgets: bool,
}

impl Policy {
    /// What [`evict_layer`](crate::evict_layer) reads for this policy besides the keys.
    pub const fn needs(&self) -> Needs {
        let mut needs = Needs {
            window_queries: 0,
            values: matches!(self.importance, Importance::Lag { .. }),
            column_sums: false,
            query_mean: false,
            query_covariance: false,
            output_norms: false,
            given: matches!(self.importance, Importance::Given),
            head_weights: matches!(self.mix, Mix::HeadTable),
            head_budgets: matches!(self.head_budget, HeadBudget::Table),
        };
        if let Importance::Attention(a) = self.importance {
            match a.queries {
                Queries::Last(w) | Queries::Peak(w) => needs.window_queries = w as usize,
                Queries::All { .. } => needs.column_sums = true,
                Queries::Expected { covariance } => {
                    needs.query_mean = true;
                    needs.query_covariance = covariance;
                }
            }
            needs.values = matches!(a.value_norm, ValueNorm::Add | ValueNorm::Times { .. });
            needs.output_norms = matches!(a.value_norm, ValueNorm::Output { .. });
        }
        needs
    }

    /// Queries whose attention is kept one by one, because the policy looks at more than their mean.
    pub(crate) const fn tile_queries(&self) -> usize {
        let Diversity::Mmr(m) = self.diversity else { return 0 };
        let correlates = matches!(m.similarity, Similarity::NearestAttention | Similarity::MeanAttention);
        let disperses = !matches!(m.dispersion, Depth::Constant(0.0));
        if correlates || disperses { self.needs().window_queries } else { 0 }
    }

    /// Observes with `w` queries (where the method observes a window) and keeps the last `w` entries, shrinking where
    /// the budget is smaller: see [`Recent::Window`].
    #[must_use]
    pub const fn with_window(mut self, w: u32) -> Self {
        if let Importance::Attention(mut a) = self.importance {
            match a.queries {
                Queries::Last(_) => a.queries = Queries::Last(w),
                Queries::Peak(_) => a.queries = Queries::Peak(w),
                Queries::All { .. } | Queries::Expected { .. } => {}
            }
            self.importance = Importance::Attention(a);
        }
        self.protect.recent = Recent::Window(w);
        self
    }

    /// Keeps exactly the last `w` entries, leaving the observation window alone.
    #[must_use]
    pub const fn with_keep_recent(mut self, w: u32) -> Self {
        self.protect.recent = Recent::Exact(w);
        self
    }

    /// Keeps the first `n` entries.
    #[must_use]
    pub const fn with_sinks(mut self, n: u32) -> Self {
        self.protect.sinks = n;
        self
    }

    /// Sets the weights of the two key metrics; `None` if the method does not use them.
    #[must_use]
    pub const fn with_geometry(mut self, alpha: f32, beta: f32) -> Option<Self> {
        match self.diversity {
            Diversity::Geometry(mut g) => {
                g.alpha = alpha;
                g.beta = beta;
                self.diversity = Diversity::Geometry(g);
                Some(self)
            }
            Diversity::None | Diversity::Repetition { .. } | Diversity::Mmr(_) => None,
        }
    }

    /// Sets how the heads share the layer's budget.
    #[must_use]
    pub const fn with_head_budget(mut self, head_budget: HeadBudget) -> Self {
        self.head_budget = head_budget;
        self
    }

    /// Sets the seed of a random policy; others have none and stay as they are.
    #[must_use]
    pub const fn with_seed(mut self, seed: u64) -> Self {
        if let Importance::Random { .. } = self.importance {
            self.importance = Importance::Random { seed };
        }
        self
    }
}
