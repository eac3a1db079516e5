//! Whole calls on one layer, and one pass over its keys to compare with.
//!
//! Every bench goes round a ring of layers that together exceed the caches, as a prefill leaves them: a layer's keys
//! come from memory once and are in the caches thereafter. Names: `<what>/<format>/<kv heads>x<group>x<head_dim>/<rows
//! per head>`, where `what` is `memory` (the pass), `evict_<method>`, or a part of ECOKV's scoring.

#[allow(dead_code)] // each bench uses a part
mod common;

use std::hint::black_box;

use common::{criterion, numbers, stream};
use criterion::{BenchmarkId, Criterion, Throughput};
use ecokv_core::{
    Dispatch, Diversity, Importance, Keep, LayerShape, LayerView, Mix, Observation, Policy, Rows, ValueNorm, Workspace,
    evict_layer, methods, score_layer,
};
use half::f16;

const SHAPES: [LayerShape; 4] = [
    LayerShape { n_kv_heads: 3, group: 1, head_dim: 64 },
    LayerShape { n_kv_heads: 3, group: 3, head_dim: 64 },
    LayerShape { n_kv_heads: 3, group: 3, head_dim: 80 },
    LayerShape { n_kv_heads: 8, group: 4, head_dim: 128 },
];
const LENS: [usize; 3] = [512, 2048, 8192];
/// Bytes of keys and values that no cache of one core holds.
const RING: usize = 192 << 20;
const WINDOW: usize = 32;

fn main() {
    let mut c = criterion();
    for shape in SHAPES {
        for n in LENS {
            let halves = Ring::new(shape, n, "f16", |x| x.iter().map(|&x| f16::from_f32(x)).collect());
            bench(&mut c, &halves, |x| Rows::F16(x));
            drop(halves);
            let floats = Ring::new(shape, n, "f32", <[f32]>::to_vec);
            bench(&mut c, &floats, |x| Rows::F32(x));
        }
    }
    c.final_summary();
}

/// Layers of equal shape and content.
struct Ring<T> {
    shape: LayerShape,
    n: usize,
    format: &'static str,
    keys: Vec<Vec<T>>,
    values: Vec<Vec<T>>,
    queries: Vec<f32>,
}

impl<T: Clone> Ring<T> {
    fn new(shape: LayerShape, n: usize, format: &'static str, store: impl Fn(&[f32]) -> Vec<T>) -> Self {
        let elements = shape.n_kv_heads * n * shape.head_dim;
        // Untimed, one layer after another is enough.
        let ring = if std::env::args().any(|a| a == "--test") { 0 } else { RING };
        let layers = (ring / (2 * elements * size_of::<T>())).max(2);
        let (keys, values) = (store(&numbers(elements, 1, 0.3)), store(&numbers(elements, 2, 0.0)));
        let queries = numbers(shape.n_kv_heads * shape.group * WINDOW * shape.head_dim, 3, 0.3);
        Self { shape, n, format, keys: vec![keys; layers], values: vec![values; layers], queries }
    }
}

fn bench<T>(c: &mut Criterion, ring: &Ring<T>, rows: impl for<'a> Fn(&'a [T]) -> Rows<'a>) {
    memory(c, ring);
    let method = |name| methods::by_name(name).map(|m| m.policy).expect("a method of the table");
    let ecokv = method("ecokv");
    for (name, policy) in [("snapkv", method("snapkv")), ("mixkv", method("mixkv")), ("ecokv", ecokv)] {
        run(c, ring, &rows, &format!("evict_{name}"), &policy, true);
    }
    // The parts of ECOKV's scoring: what reads keys, without the norms of the values and without selection.
    let keys_only = match ecokv.importance {
        Importance::Attention(a) => {
            let importance = Importance::Attention(ecokv_core::Attention { value_norm: ValueNorm::None, ..a });
            Policy { importance, ..ecokv }
        }
        _ => ecokv,
    };
    run(c, ring, &rows, "score_ecokv", &keys_only, false);
    let attention = Policy { diversity: Diversity::None, mix: Mix::Importance, ..keys_only };
    run(c, ring, &rows, "score_ecokv_attention", &attention, false);
    let geometry = Policy { importance: Importance::Recency, ..ecokv };
    run(c, ring, &rows, "score_ecokv_geometry", &geometry, false);
}

fn memory<T>(c: &mut Criterion, ring: &Ring<T>) {
    let words = ring.shape.n_kv_heads * ring.n * ring.shape.head_dim * size_of::<T>() / 8;
    let layers = vec![vec![1u64; words]; 2 * ring.keys.len()];
    let mut at = 0;
    let mut group = c.benchmark_group("memory");
    group.throughput(Throughput::Bytes(8 * words as u64));
    group.bench_function(id(ring), |b| {
        b.iter(|| {
            at = (at + 1) % layers.len();
            stream(black_box(&layers[at]))
        });
    });
}

fn run<T>(
    c: &mut Criterion,
    ring: &Ring<T>,
    rows: &impl for<'a> Fn(&'a [T]) -> Rows<'a>,
    name: &str,
    policy: &Policy,
    evict: bool,
) {
    let (shape, n) = (ring.shape, ring.n);
    let total = shape.n_kv_heads * n;
    let starts: Vec<u32> = (0..shape.n_kv_heads).map(|h| (h * n) as u32).collect();
    let lens = vec![n as u32; shape.n_kv_heads];
    let len = policy.workspace_len(shape, total).expect("sizes of a bench fit");
    let (mut f32s, mut u32s) = (vec![0.0; len.f32s], vec![0; len.u32s]);
    let (mut indices, mut counts, mut scores) = (vec![0; total], vec![0; shape.n_kv_heads], vec![0.0; total]);
    let mut at = 0;
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(total as u64));
    group.bench_function(id(ring), |b| {
        b.iter(|| {
            at = (at + 1) % ring.keys.len();
            let view = LayerView {
                shape,
                starts: &starts,
                lens: &lens,
                keys: rows(&ring.keys[at]),
                values: Some(rows(&ring.values[at])),
                observation: Observation { n_queries: WINDOW, queries: &ring.queries, ..Default::default() },
                scale: 1.0 / (shape.head_dim as f32).sqrt(),
                layer: 0,
                n_layers: 1,
            };
            let workspace = Workspace { f32s: &mut f32s, u32s: &mut u32s };
            let level = Dispatch::detect();
            if evict {
                let keep = Keep { indices: &mut indices, counts: &mut counts };
                evict_layer(level, policy, (n / 5) as u32, black_box(&view), workspace, keep)
            } else {
                score_layer(level, policy, (n / 5) as u32, black_box(&view), workspace, &mut scores)
            }
        });
    });
}

fn id<T>(ring: &Ring<T>) -> BenchmarkId {
    let LayerShape { n_kv_heads, group, head_dim } = ring.shape;
    BenchmarkId::new(format!("{}/{n_kv_heads}x{group}x{head_dim}", ring.format), ring.n)
}
