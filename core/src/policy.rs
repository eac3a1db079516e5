//! A method as a value: six axes, each answering one question about a layer's eviction.

use crate::axes::{
    Attention, Depth, Diversity, Evicted, Geometry, Importance, Merge, MergeRule, Mix, Queries, Redundancy, Reference,
    Similarity, ValueNorm,
};
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

/// What is kept whatever its score. Protected entries count against the budget. Entries tagged
/// [`tag::PROTECTED`](crate::tag::PROTECTED) join these.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Protect {
    /// The first entries of every head.
    pub sinks: u32,
    /// The last entries of every head.
    pub recent: Recent,
    /// Entries not tagged [`tag::IMAGE`](crate::tag::IMAGE) go before those that are, whatever the scores (LOOK-M).
    pub text_first: bool,
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
            values: matches!(self.importance, Importance::Lag { .. } | Importance::Leverage { .. })
                || matches!(self.evicted, Evicted::Retain(_)),
            column_sums: false,
            query_mean: false,
            query_covariance: false,
            output_norms: false,
            given: matches!(self.importance, Importance::Given),
            head_weights: matches!(self.mix, Mix::HeadTable),
            head_budgets: matches!(self.head_budget, HeadBudget::Table),
        };
        if let Evicted::Merge(Merge { rule: MergeRule::Following { .. }, .. }) = self.evicted {
            needs.column_sums = true;
        }
        if let Importance::Attention(a) = self.importance {
            match a.queries {
                Queries::Last(w) | Queries::Peak(w) => needs.window_queries = w as usize,
                Queries::All { .. } => needs.column_sums = true,
                Queries::Expected { covariance } => {
                    needs.query_mean = true;
                    needs.query_covariance = covariance;
                }
            }
            needs.values |= matches!(a.value_norm, ValueNorm::Add | ValueNorm::Times { .. });
            needs.output_norms = matches!(a.value_norm, ValueNorm::Output { .. });
        }
        needs
    }

    /// Whether what a head keeps depends on that head alone, so that threads can share a layer: then
    /// [`evict_layer`](crate::evict_layer) keeps of each [`LayerView::head`](crate::LayerView::head) what it keeps of the
    /// whole layer, if all heads have the same length and no entry is tagged [`PROTECTED`](crate::tag::PROTECTED) (how many
    /// recent entries are protected depends on the longest head and on the one with most protected entries).
    pub const fn heads_apart(&self) -> bool {
        let compared = matches!(self.importance, Importance::Random { .. })
            || matches!(self.importance, Importance::Attention(Attention { share_heads: true, .. }))
            || matches!(self.diversity, Diversity::Geometry(Geometry { redundancy: Redundancy::Layer, .. }));
        matches!(self.head_budget, HeadBudget::Uniform) && !compared
    }

    /// Queries whose attention is kept one by one, because the policy looks at more than their mean.
    pub(crate) const fn tile_queries(&self) -> usize {
        if let Evicted::Retain(_) = self.evicted {
            return self.needs().window_queries;
        }
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

    /// Sets what Euclidean distance is measured from; `None` if the method does not use it.
    #[must_use]
    pub const fn with_reference(mut self, reference: Reference) -> Option<Self> {
        match self.diversity {
            Diversity::Geometry(mut g) if g.alpha != 0.0 => {
                g.reference = reference;
                self.diversity = Diversity::Geometry(g);
                Some(self)
            }
            _ => None,
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
