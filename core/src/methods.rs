//! The methods by name. Each is a [`Policy`] and a [`LayerBudget`]; nothing else distinguishes them.

use crate::policy::{Attention, Diversity, Edge, Evicted, Geometry, Importance, Mix, Pool, Protect, Recent, ValueNorm};
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
    /// because none was published).
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
        policy: Policy { protect: Protect { sinks: 4, recent: Recent::Window(0) }, ..RECENT },
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
];

/// The method called `name`.
pub fn by_name(name: &str) -> Option<&'static Method> {
    ALL.iter().find(|m| m.name == name)
}

const RECENT: Policy = Policy {
    importance: Importance::Recency,
    diversity: Diversity::None,
    mix: Mix::Importance,
    protect: Protect { sinks: 0, recent: Recent::Window(0) },
    head_budget: HeadBudget::Uniform,
    evicted: Evicted::Drop,
};

const SNAPKV: Policy = Policy {
    importance: Importance::Attention(Attention {
        window: 32,
        pool: Pool::Mean { width: 5, edge: Edge::Zero },
        value_norm: ValueNorm::None,
    }),
    protect: Protect { sinks: 0, recent: Recent::Window(32) },
    ..RECENT
};

const MIXKV: Policy = Policy {
    importance: Importance::Attention(Attention {
        window: 32,
        pool: Pool::Mean { width: 5, edge: Edge::Zero },
        value_norm: ValueNorm::Add,
    }),
    diversity: Diversity::Geometry(Geometry::new(0.0, 1.0)),
    mix: Mix::HeadRedundancy,
    ..SNAPKV
};
