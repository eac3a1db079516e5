//! `ecokv methods`: every method by its axes, derived from the values that the core runs.

use ecokv_core::methods::{ALL, Method};
use ecokv_core::{
    Attention, Depth, Diversity, Geometry, HeadBudget, Importance, LayerBudget, Mix, Pool, Protect, Queries, Recent,
    Similarity, ValueNorm,
};

use super::args::MethodsArgs;
use super::output::{Failure, columns, print};

const TITLES: [&str; 9] =
    ["name", "importance", "diversity", "mix", "head budget", "layer budget", "protects", "source", "proof"];

/// Column of the source: a sentence, too long for a line of a terminal.
const SOURCE: usize = 7;

pub fn run(args: &MethodsArgs) -> Result<(), Failure> {
    if args.markdown {
        return print(&markdown());
    }
    let mut rows = vec![TITLES.map(String::from).to_vec()];
    rows.extend(ALL.iter().map(|m| axes(m).to_vec()));
    for row in &mut rows {
        row.remove(SOURCE);
    }
    let about = ALL.iter().map(|m| vec![m.name.into(), format!("{}. From: {}", m.summary, m.source)]);
    print(&format!("{}\n{}", columns(&rows), columns(&about.collect::<Vec<_>>())))
}

fn markdown() -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut out = line(&TITLES.map(String::from));
    out.push_str(&format!("|{}\n", "---|".repeat(TITLES.len())));
    for method in ALL {
        let mut cells = axes(method);
        cells[0] = format!("`{}`", method.name);
        out.push_str(&line(&cells));
    }
    out
}

fn axes(m: &Method) -> [String; 9] {
    [
        m.name.into(),
        importance(m.policy.importance),
        diversity(m.policy.diversity),
        mix(m.policy.mix),
        head_budget(m.policy.head_budget),
        layer_budget(m.layer_budget),
        protects(m.policy.protect),
        m.source.into(),
        m.proof.into(),
    ]
}

fn importance(i: Importance) -> String {
    match i {
        Importance::None => "-".into(),
        Importance::Recency => "recency".into(),
        Importance::Random { .. } => "random".into(),
        Importance::KeyNorm => "small keys".into(),
        Importance::Given => "given".into(),
        Importance::Lag { lag } => format!("deviation in chunks of {lag}"),
        Importance::Leverage { window } => format!("leverage among {window}"),
        Importance::Attention(a) => attention(a),
    }
}

fn attention(a: Attention) -> String {
    let queries = match a.queries {
        Queries::Last(1) => "attention of the last query".into(),
        Queries::Last(n) => format!("attention of {n} queries"),
        Queries::Peak(n) => format!("peak attention of {n} queries"),
        Queries::All { per_visible: false } => "attention of all queries".into(),
        Queries::All { per_visible: true } => "mean attention of all queries".into(),
        Queries::Expected { .. } => "expected attention".into(),
    };
    let pool = match a.pool {
        Pool::None => String::new(),
        Pool::Mean { width, .. } => format!(", mean of {width}"),
        Pool::Max { width } => format!(", max of {width}"),
    };
    let heads = if a.share_heads { ", heads together" } else { "" };
    let values = match a.value_norm {
        ValueNorm::None => "",
        ValueNorm::Add => " + value norm",
        ValueNorm::Times { .. } => " x value norm",
        ValueNorm::Output { .. } => " x output norm",
    };
    format!("{queries}{pool}{heads}{values}")
}

fn diversity(d: Diversity) -> String {
    match d {
        Diversity::None => "-".into(),
        Diversity::Geometry(Geometry { alpha: 0.0, .. }) => "cosine".into(),
        Diversity::Geometry(Geometry { beta: 0.0, .. }) => "Euclidean".into(),
        Diversity::Geometry(Geometry { alpha, beta, .. }) => format!("{alpha} Euclidean + {beta} cosine"),
        Diversity::Mmr(m) => format!("weight {} on the kept, by {}", depth(m.redundancy), similarity(m.similarity)),
        Diversity::Repetition { threshold } => format!("repetition above cosine {threshold}"),
    }
}

fn similarity(s: Similarity) -> &'static str {
    match s {
        Similarity::NearestKey => "nearest key",
        Similarity::MeanKey => "mean key",
        Similarity::NearestAttention => "nearest attention",
        Similarity::MeanAttention => "mean attention",
    }
}

fn depth(d: Depth) -> String {
    match d {
        Depth::Constant(w) => format!("{w}"),
        Depth::Linear { first, last } => format!("{first} to {last} by depth"),
        Depth::ThreeSegment([a, b, c]) => format!("{a}, {b}, {c} by thirds of the depth"),
        Depth::Quadratic([a, b, c]) => format!("{a} + {b} u + {c} u^2 by depth"),
    }
}

fn mix(m: Mix) -> String {
    match m {
        Mix::Importance => "importance".into(),
        Mix::Diversity => "diversity".into(),
        Mix::Weight(w) => format!("weight {}", depth(w)),
        Mix::Raw(w) => format!("weight {}, unscaled", depth(w)),
        Mix::HeadRedundancy => "by head redundancy".into(),
        Mix::HardRedundancy { threshold } => format!("diversity from head redundancy {threshold}"),
        Mix::SoftRedundancy { diversity, importance } => {
            format!("by head redundancy, temperatures {diversity} and {importance}")
        }
        Mix::HeadTable => "by a table of heads".into(),
        Mix::Thirds => "thirds".into(),
    }
}

/// How the heads share, in a word.
pub fn head_budget(b: HeadBudget) -> String {
    match b {
        HeadBudget::Uniform => "uniform".into(),
        HeadBudget::Adaptive { floor } => format!("adaptive, floor {floor}"),
        other => format!("{other:?}"),
    }
}

/// How the layers share, in a word.
pub fn layer_budget(b: LayerBudget) -> String {
    match b {
        LayerBudget::Uniform => "uniform".into(),
        LayerBudget::Pyramid { beta } => format!("pyramid, beta {beta}"),
        LayerBudget::PyramidReference { beta } => format!("pyramid, beta {beta}, not exact"),
        other => format!("{other:?}"),
    }
}

/// What is kept whatever its score.
pub fn protects(p: Protect) -> String {
    let first = (p.sinks > 0).then(|| format!("first {}", p.sinks));
    let last = match p.recent {
        Recent::Window(0) | Recent::Exact(0) => None,
        Recent::Window(n) => Some(format!("last {n}")),
        Recent::Share(share) => Some(format!("last {:.0} % of the budget", 100.0 * share)),
        Recent::Exact(n) => Some(format!("exactly the last {n}")),
    };
    let parts: Vec<String> = first.into_iter().chain(last).collect();
    if parts.is_empty() { "-".into() } else { parts.join(", ") }
}
