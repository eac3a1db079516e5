//! What differs.

use super::Depth;

/// The diversity term of the score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Diversity {
    /// No diversity term.
    None,
    /// Distance of each key from the middle of its head's keys.
    Geometry(Geometry),
    /// Unlike what was kept already: entries are chosen one by one. The mix must be [`Mix::Importance`](crate::Mix::Importance).
    Mmr(Mmr),
    /// How little each key repeats others (R-KV): minus the softmax over the head's entries of the mean cosine with all
    /// of them, where each entry spares the newest one more similar to it than `threshold`, or the first entry if there is
    /// none. `O(len^2 head_dim)`.
    Repetition {
        /// Cosine above which two keys are the same.
        threshold: f32,
    },
}

/// `alpha` times the Euclidean distance to the mean key plus `beta` times the negated cosine with the mean direction
/// (the mean of the unit keys), each scaled over the candidates. With one weight 0, [`Mix::Diversity`](crate::Mix::Diversity) takes the other
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
    /// How redundant the distances call a head, for [`Mix::HeadRedundancy`](crate::Mix::HeadRedundancy).
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

    /// The same with weights that add up to 1; both 0 stay so.
    #[must_use]
    pub const fn normalised(self) -> Self {
        let sum = self.alpha + self.beta;
        if sum == 0.0 { self } else { Self { alpha: self.alpha / sum, beta: self.beta / sum, ..self } }
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
    /// Which entries are looked at in each step.
    pub search: Search,
}

/// Which entries a choice one by one looks at in each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// All.
    All,
    /// Those that could be next. Same result, allowed where an entry can only get worse as `S` grows: `lambda_2 <= 0` and
    /// a similarity of the nearest.
    Lazy,
    /// This many per entry to choose, the best by `importance_i + lambda_1 sigma_i`: an approximation, of
    /// `O(count^2 head_dim)`. What one budget keeps, a larger one need not keep then.
    Shortlist(u32),
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
    /// `alpha e + beta c` of their ranks, however importance is scaled: see [`Scaling::Rank`].
    RankSum,
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
    /// The nearest key of a farthest-first traversal: starting from the protected entries (from the mean key if there are
    /// none), it goes to the entry furthest from all it has been to, and `e` is that distance, 0 for where it started.
    /// `O(len^2 head_dim)`.
    FarthestFirst,
}

/// How redundant the distances `e_i` to the reference call a head; 1 is fully redundant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redundancy {
    /// `1 - mean e / max e`.
    MeanOfRange,
    /// `||mean key||^2 / mean ||key||^2`: sees a common part of the keys, which attention does not.
    Energy,
    /// `1 - [2n / (n - 1) mean e^2] / (2 max e)^2`: the mean squared distance of pairs against its bound.
    Pairs,
    /// `1 - mean e / (largest mean e of the layer's heads)`, both to the mean key whatever the reference.
    Layer,
}
