//! The methods by name. Each is a [`Policy`] and a [`LayerBudget`]; nothing else distinguishes them.

use crate::axes::{
    Attention, Depth, Diversity, Edge, Evicted, Geometry, Importance, Mass, Merge, MergeRule, Mix, Mmr, Norm, Pool,
    Queries, Readout, Reference, Retain, Search, Similarity, ValueNorm,
};
use crate::policy::{Protect, Recent};
use crate::{HeadBudget, LayerBudget, Policy};

/// A named method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Method {
    /// Name, lower case.
    pub name: &'static str,
    /// One line on how it chooses.
    pub summary: &'static str,
    /// Paper and code it follows.
    pub source: &'static str,
    /// How it is checked: `golden: kvpress` (recorded outputs of that package), `reference` (an independent
    /// implementation of published code) or `reconstruction` (an independent implementation of our own definition,
    /// because neither code nor the method's text was at hand).
    pub proof: &'static str,
    /// The choice inside a layer.
    pub policy: Policy,
    /// The choice between layers.
    pub layer_budget: LayerBudget,
}

/// Every method.
pub const ALL: &[Method] = &[
    Method {
        name: "full",
        summary: "newest entries; meant for a budget no prompt exceeds, where everything is kept",
        source: "none",
        proof: "reference",
        policy: RECENT,
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "random",
        summary: "a seeded random choice: the control",
        source: "none",
        proof: "reference",
        policy: Policy { importance: Importance::Random { seed: 0 }, ..RECENT },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "streaming",
        summary: "the first 4 and the newest entries",
        source: "StreamingLLM, arXiv 2309.17453; keeps original positions, as kvpress does",
        proof: "golden: kvpress",
        policy: Policy { protect: Protect { sinks: 4, recent: Recent::Window(0), text_first: false }, ..RECENT },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "knorm",
        summary: "the smallest keys",
        source: "L2 norm, arXiv 2406.11430; no layers skipped, as kvpress does",
        proof: "golden: kvpress",
        policy: Policy { importance: Importance::KeyNorm, ..RECENT },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "keydiff",
        summary: "keys least aligned with the mean direction",
        source: "KeyDiff, arXiv 2504.15364; one shot instead of block-wise",
        proof: "golden: kvpress",
        policy: Policy {
            importance: Importance::None,
            diversity: Diversity::Geometry(Geometry::new(0.0, 1.0)),
            mix: Mix::Diversity,
            ..RECENT
        },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "h2o",
        summary: "attention summed over all queries; half the budget for the newest",
        source: "H2O, arXiv 2306.14048, per KV head",
        proof: "reference",
        policy: Policy {
            importance: Importance::Attention(ALL_QUERIES),
            protect: Protect { sinks: 0, recent: Recent::Share(0.5), text_first: false },
            ..RECENT
        },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "observed",
        summary: "attention per query that could see the entry",
        source: "kvpress ObservedAttention: h2o without its bias to old entries, nothing protected",
        proof: "golden: kvpress",
        policy: Policy {
            importance: Importance::Attention(Attention { queries: Queries::All { per_visible: true }, ..ALL_QUERIES }),
            ..RECENT
        },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "tova",
        summary: "attention of the last query over all heads; every head keeps the same entries",
        source: "TOVA, arXiv 2401.06104; the last entry is protected, as kvpress does",
        proof: "golden: kvpress",
        policy: Policy {
            importance: Importance::Attention(Attention {
                queries: Queries::Last(1),
                share_heads: true,
                ..ALL_QUERIES
            }),
            protect: Protect { sinks: 0, recent: Recent::Window(1), text_first: false },
            ..RECENT
        },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "vatp",
        summary: "h2o times the L1 norm of the value; first 20 and newest half protected",
        source: "VATP, arXiv 2406.12335, on H2O",
        proof: "reference",
        policy: Policy {
            importance: Importance::Attention(Attention {
                value_norm: ValueNorm::Times { norm: Norm::L1, epsilon: 0.0 },
                ..ALL_QUERIES
            }),
            protect: Protect { sinks: 20, recent: Recent::Share(0.5), text_first: false },
            ..RECENT
        },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "snapkv",
        summary: "attention from the last 32 queries, mean-pooled",
        source: "SnapKV, arXiv 2404.14469; group mean, as kvpress does",
        proof: "golden: kvpress",
        policy: SNAPKV,
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "pyramidkv",
        summary: "snapkv with more entries in lower layers, exact total",
        source: "PyramidKV, arXiv 2406.02069; the line is not floored, so the total is the budget",
        proof: "reference",
        policy: SNAPKV,
        layer_budget: LayerBudget::Pyramid { beta: 20 },
    },
    Method {
        name: "pyramidkv-reference",
        summary: "pyramidkv with its authors' rounding, which exceeds the budget",
        source: "PyramidKV, arXiv 2406.02069, KVCache-Factory",
        proof: "reference",
        policy: SNAPKV,
        layer_budget: LayerBudget::PyramidReference { beta: 20 },
    },
    Method {
        name: "adakv",
        summary: "snapkv with the layer's best entries wherever they are, 20 % sure for every head",
        source: "AdaKV, arXiv 2407.11550; allocation of kvpress, whose total is exact",
        proof: "golden: kvpress",
        policy: Policy { head_budget: HeadBudget::Adaptive { floor: 0.2 }, ..SNAPKV },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "criticalkv",
        summary: "half by snapkv, half by attention times what the value adds to the output",
        source: "CriticalKV, arXiv 2502.03805; kvpress",
        proof: "golden: kvpress",
        policy: Policy { importance: Importance::Attention(CRITICAL), ..SNAPKV },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "criticaladakv",
        summary: "criticalkv with adakv's head budgets",
        source: "CriticalKV, arXiv 2502.03805; kvpress",
        proof: "golden: kvpress",
        policy: Policy {
            importance: Importance::Attention(CRITICAL),
            head_budget: HeadBudget::Adaptive { floor: 0.2 },
            ..SNAPKV
        },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "expected",
        summary: "attention expected of future queries, times the value norm; first 4 protected",
        source: "ExpectedAttention, arXiv 2510.00636; kvpress",
        proof: "golden: kvpress",
        policy: Policy {
            importance: Importance::Attention(Attention {
                queries: Queries::Expected { covariance: true },
                value_norm: ValueNorm::Times { norm: Norm::L2, epsilon: 0.0 },
                ..ALL_QUERIES
            }),
            protect: Protect { sinks: 4, recent: Recent::Window(0), text_first: false },
            ..RECENT
        },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "lagkv",
        summary: "entries that look unusual to the 128 that follow; first 4 and last chunks kept",
        source: "LagKV, arXiv 2504.04704; kvpress",
        proof: "golden: kvpress",
        policy: Policy {
            importance: Importance::Lag { lag: 128 },
            protect: Protect { sinks: 4, recent: Recent::Window(0), text_first: false },
            ..RECENT
        },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "curdkv",
        summary: "keys and values that are long among their 16 neighbours; first 4 protected",
        source: "CurDKV, arXiv 2509.15038; kvpress, without its random projection",
        proof: "golden: kvpress",
        policy: Policy {
            importance: Importance::Leverage { window: 16 },
            protect: Protect { sinks: 4, recent: Recent::Window(0), text_first: false },
            ..RECENT
        },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "manifoldkv",
        summary: "keys furthest from the mean key of their 4096 neighbours",
        source: "ManifoldKV, arXiv 2602.08343, windowed, from a write-up with code; no AdaKV budgets unless asked for",
        proof: "reference",
        policy: Policy {
            importance: Importance::None,
            diversity: Diversity::Geometry(Geometry { reference: Reference::Window(4096), ..Geometry::new(1.0, 0.0) }),
            mix: Mix::Diversity,
            ..RECENT
        },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "sparsemm",
        summary: "snapkv with head budgets from an offline profile of the model",
        source: "SparseMM, arXiv 2506.05344; exact total, surplus of short heads handed on",
        proof: "reference",
        policy: Policy { head_budget: HeadBudget::Table, ..SNAPKV },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "rkv",
        summary: "attention of the last 8 queries against how much a key repeats others",
        source: "R-KV, arXiv 2505.24133; scores as its code, evicts once the prompt is in",
        proof: "reference",
        policy: Policy {
            importance: Importance::Attention(Attention {
                queries: Queries::Peak(8),
                pool: Pool::Max { width: 7 },
                ..ALL_QUERIES
            }),
            diversity: Diversity::Repetition { threshold: 0.5 },
            mix: Mix::Raw(Depth::Constant(0.93)),
            ..RECENT
        }
        .with_window(8),
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "mixkv",
        summary: "attention and value norm, mixed with key diversity by how redundant the head is",
        source: "MixKV, arXiv 2510.20707; redundancy measured online instead of read from a table",
        proof: "reference",
        policy: MIXKV,
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "ecokv",
        summary: "mixkv with Euclidean and cosine diversity and a window of 8",
        source: "ECOKV; defined here from its abstract, figures and tables, as no method text or code is public",
        proof: "reconstruction",
        policy: Policy { diversity: Diversity::Geometry(Geometry::new(0.5, 0.5)), ..MIXKV }.with_window(8),
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "mmr",
        summary: "snapkv, one by one, each entry penalised by its cosine with the nearest chosen key",
        source: "unified maximal-marginal-relevance score; defined here from its abstract, weights 0 and -0.5",
        proof: "reconstruction",
        policy: Policy {
            diversity: Diversity::Mmr(Mmr {
                dispersion: Depth::Constant(0.0),
                redundancy: Depth::Constant(-0.5),
                similarity: Similarity::NearestKey,
                mean_match: true,
                pool_dispersion: false,
                seed_protected: false,
                search: Search::All,
            }),
            ..SNAPKV
        },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "retentivekv",
        summary: "snapkv whose evicted entries live on in 8 slots per head, weighted by attention entropy",
        source: "RetentiveKV, arXiv 2605.04075; defined here from its abstract",
        proof: "reconstruction",
        policy: Policy {
            evicted: Evicted::Retain(Retain {
                slots: 8,
                tau: 1.0,
                epsilon: 0.05,
                gain: 0.0,
                mass: Mass::Count,
                readout: Readout::Mean,
            }),
            ..SNAPKV
        },
        layer_budget: LayerBudget::Uniform,
    },
    Method {
        name: "look-m",
        summary: "h2o with text before images, evicted entries merged into the nearest kept key",
        source: "LOOK-M, arXiv 2406.18139, pivotal merging; per KV head, two keys of order instead of a large offset",
        proof: "reference",
        policy: Policy {
            importance: Importance::Attention(ALL_QUERIES),
            protect: Protect { sinks: 0, recent: Recent::Share(0.5), text_first: true },
            evicted: Evicted::Merge(Merge { rule: MergeRule::Pivot, values_only: false }),
            ..RECENT
        },
        layer_budget: LayerBudget::Uniform,
    },
];

/// The method called `name`.
pub fn by_name(name: &str) -> Option<&'static Method> {
    ALL.iter().find(|m| m.name == name)
}

const RECENT: Policy = Policy {
    importance: Importance::Recency,
    diversity: Diversity::None,
    mix: Mix::Importance,
    protect: Protect { sinks: 0, recent: Recent::Window(0), text_first: false },
    head_budget: HeadBudget::Uniform,
    evicted: Evicted::Drop,
};

const ALL_QUERIES: Attention = Attention {
    queries: Queries::All { per_visible: false },
    pool: Pool::None,
    share_heads: false,
    value_norm: ValueNorm::None,
};

const CRITICAL: Attention = Attention {
    queries: Queries::Last(32),
    pool: Pool::Mean { width: 5, edge: Edge::Zero },
    share_heads: false,
    value_norm: ValueNorm::Output { epsilon: 1e-4, first_stage: 0.5 },
};

const SNAPKV: Policy = Policy {
    importance: Importance::Attention(Attention {
        queries: Queries::Last(32),
        pool: Pool::Mean { width: 5, edge: Edge::Zero },
        share_heads: false,
        value_norm: ValueNorm::None,
    }),
    protect: Protect { sinks: 0, recent: Recent::Window(32), text_first: false },
    ..RECENT
};

const MIXKV: Policy = Policy {
    importance: Importance::Attention(Attention {
        queries: Queries::Last(32),
        pool: Pool::Mean { width: 5, edge: Edge::Zero },
        share_heads: false,
        value_norm: ValueNorm::Add,
    }),
    diversity: Diversity::Geometry(Geometry::new(0.0, 1.0)),
    mix: Mix::HeadRedundancy,
    ..SNAPKV
};
