//! A fixed program for any processor: every method on the same made-up caches. Its text names the kept entries and a
//! hash of the scores' bits, and must be the same everywhere.

#![no_std]

use core::fmt::{self, Write};

use ecokv_core::{
    Dispatch, Error, Evicted, Importance, Keep, Kept, LayerMut, LayerShape, LayerView, Observation, Rows, Slots,
    Workspace, evict_layer, expected, merge_layer, methods, retain_layer, score_layer, tag,
};
use half::{bf16, f16};

const N_KV_HEADS: usize = 2;
const GROUP: usize = 2;
const N_HEADS: usize = N_KV_HEADS * GROUP;
/// Rows of a head, and of the layer.
const LEN: usize = 280;
const ROWS: usize = N_KV_HEADS * LEN;
/// Largest head_dim: one Q8_0 block.
const DIM: usize = 32;
const BLOCK: usize = 34;
/// Not a multiple of any vector.
const ODD_DIM: usize = 19;
const N_QUERIES: usize = 32;
/// Most slots of a head.
const SLOTS: usize = 8;
const N_LAYERS: u32 = 8;
const BUDGET: u32 = 48;

/// Why [`report`] ended early.
#[derive(Debug)]
pub enum Stop {
    /// The text could not be written.
    Output,
    /// A method refused what it was given.
    Method(&'static str, Error),
}

impl From<fmt::Error> for Stop {
    fn from(_: fmt::Error) -> Self {
        Self::Output
    }
}

/// Writes what every method keeps, how it scores and what becomes of the rest, for every storage format and shape.
pub fn report(d: Dispatch, out: &mut impl Write) -> Result<(), Stop> {
    let layer = Layer::new();
    let halves = layer.keys.map(f16::from_f32);
    let brains = layer.keys.map(bf16::from_f32);
    for method in methods::ALL {
        for (format, head_dim, keys) in [
            ("f32", DIM, Rows::F32(&layer.keys)),
            ("f16", DIM, Rows::F16(&halves)),
            ("bf16", DIM, Rows::BF16(&brains)),
            ("q8_0", DIM, Rows::Q8_0(&layer.blocks)),
            ("odd", ODD_DIM, Rows::F32(&layer.keys[..ROWS * ODD_DIM])),
            ("strange", DIM, Rows::F32(&layer.strange)),
        ] {
            write!(out, "{} {format}", method.name)?;
            one(d, method, &layer, head_dim, keys, out).map_err(|stop| match stop {
                Stop::Method(_, error) => Stop::Method(method.name, error),
                Stop::Output => Stop::Output,
            })?;
        }
        let mut budgets = [0; N_LAYERS as usize];
        let window = method.policy.protect.recent.entries();
        let allocated = method.layer_budget.allocate(BUDGET, window, LEN as u32, &mut budgets);
        allocated.map_err(|error| Stop::Method(method.name, error))?;
        writeln!(out, "{} layers {budgets:?}", method.name)?;
    }
    let (mut cos, mut sin) = ([0.0; DIM / 2], [0.0; DIM / 2]);
    expected::mean_rotation(&layer.values[..DIM / 2], LEN as u32, 512, &mut cos, &mut sin);
    writeln!(out, "rotation {:016x}", hash(cos.iter().chain(&sin)))?;
    Ok(())
}

fn one(
    d: Dispatch,
    method: &methods::Method,
    layer: &Layer,
    head_dim: usize,
    keys: Rows<'_>,
    out: &mut impl Write,
) -> Result<(), Stop> {
    // Heads of one list of entries must be equally long; all others may be ragged.
    let shared = matches!(method.policy.importance, Importance::Attention(a) if a.share_heads);
    let starts = [0, LEN as u32];
    let lens = [LEN as u32, if shared { LEN } else { LEN - 9 } as u32];
    let view = LayerView {
        shape: LayerShape { n_kv_heads: N_KV_HEADS, group: GROUP, head_dim },
        starts: &starts,
        lens: &lens,
        keys,
        values: Some(Rows::F32(&layer.values[..ROWS * head_dim])),
        #[allow(clippy::needless_update)] // further kinds may come
        observation: Observation {
            n_queries: N_QUERIES,
            queries: &layer.queries[..N_HEADS * N_QUERIES * head_dim],
            column_sums: &layer.column_sums,
            query_mean: &layer.query_mean[..N_HEADS * head_dim],
            query_covariance: &layer.query_covariance[..N_HEADS * head_dim * head_dim],
            output_norms: &layer.output_norms,
            given: &layer.given,
            head_weights: &[0.25, 0.75],
            head_budgets: &[BUDGET + 8, BUDGET - 8],
            tags: &layer.tags,
            ..Observation::default()
        },
        scale: 0.25,
        layer: 3,
        n_layers: N_LAYERS,
    };
    let refused = |error| Stop::Method("", error);
    let (mut f32s, mut u32s) = ([0.0; 1 << 15], [0; 1 << 11]);

    let (mut indices, mut counts) = ([0; ROWS], [0; N_KV_HEADS]);
    let keep = Keep { indices: &mut indices, counts: &mut counts };
    let workspace = Workspace { f32s: &mut f32s, u32s: &mut u32s };
    evict_layer(d, &method.policy, BUDGET, &view, workspace, keep).map_err(refused)?;

    let mut scores = [0.0; ROWS];
    let workspace = Workspace { f32s: &mut f32s, u32s: &mut u32s };
    let done = score_layer(d, &method.policy, BUDGET, &view, workspace, &mut scores).map_err(refused)?;

    let nan = if done.nan_scores == 0 { 0 } else { 1 };
    writeln!(out, " scores {:016x} recent {} nan {nan}", hash(&scores), done.recent_kept)?;
    for (&start, &count) in starts.iter().zip(&counts) {
        writeln!(out, "  {:?}", &indices[start as usize..][..count as usize])?;
    }

    let kept = Kept { indices: &indices, counts: &counts };
    let workspace = Workspace { f32s: &mut f32s, u32s: &mut u32s };
    match method.policy.evicted {
        Evicted::Drop => {}
        Evicted::Retain(retain) => {
            let n = N_KV_HEADS * (retain.slots as usize).min(SLOTS);
            let (mut keys, mut values) = ([0.0; N_KV_HEADS * SLOTS * DIM], [0.0; N_KV_HEADS * SLOTS * DIM]);
            let mut mass = [0.0; N_KV_HEADS * SLOTS];
            let slots = Slots {
                keys: &mut keys[..n * head_dim],
                values: &mut values[..n * head_dim],
                mass: &mut mass[..n],
                members: &mut [],
                moments: None,
            };
            retain_layer(d, &method.policy, BUDGET, &view, workspace, kept, slots).map_err(refused)?;
            writeln!(out, "  slots {:016x}", hash(keys.iter().chain(&values).chain(&mass)))?;
        }
        Evicted::Merge(merge) => {
            let Rows::F32(rows) = view.keys else { return Ok(()) }; // merging rewrites f32 rows
            let (mut keys, mut values, mut counts) = ([0.0; ROWS * DIM], layer.values, [1.0; ROWS]);
            let keys = &mut keys[..rows.len()];
            keys.copy_from_slice(rows);
            let layer = LayerMut {
                shape: view.shape,
                starts: &starts,
                lens: &lens,
                keys,
                values: &mut values[..ROWS * head_dim],
                counts: &mut counts,
                attention: &[],
            };
            merge_layer(d, merge, layer, kept, workspace).map_err(refused)?;
            writeln!(out, "  merged {:016x}", hash(keys.iter().chain(&values).chain(&counts)))?;
        }
    }
    Ok(())
}

/// FNV-1a over the bits. All NaNs are one: processors differ in the payload, and no selection sees it.
fn hash<'a>(x: impl IntoIterator<Item = &'a f32>) -> u64 {
    let bits = |x: &f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
    let bytes = x.into_iter().flat_map(|x| bits(x).to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Everything a method may ask for.
struct Layer {
    keys: [f32; ROWS * DIM],
    /// Keys among which are zero, tiny and huge ones, and in the second head a NaN and an infinity.
    strange: [f32; ROWS * DIM],
    /// Keys in Q8_0.
    blocks: [u8; ROWS * BLOCK],
    values: [f32; ROWS * DIM],
    queries: [f32; N_HEADS * N_QUERIES * DIM],
    query_mean: [f32; N_HEADS * DIM],
    query_covariance: [f32; N_HEADS * DIM * DIM],
    column_sums: [f32; ROWS],
    output_norms: [f32; ROWS],
    given: [f32; ROWS],
    tags: [u8; ROWS],
}

impl Layer {
    fn new() -> Self {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut keys = [0.0; ROWS * DIM];
        for (i, x) in keys.iter_mut().enumerate() {
            // Keys have a part in common, as those of models do.
            *x = random.number() + [0.0, 0.75, -0.5, 0.25][i % 4];
        }
        let mut strange = keys;
        strange[5 * DIM..6 * DIM].fill(0.0);
        strange[70 * DIM..71 * DIM].fill(1e-41);
        strange[90 * DIM..91 * DIM].fill(1e17);
        strange[(LEN + 7) * DIM] = f32::NAN;
        strange[(LEN + 50) * DIM + 3] = f32::INFINITY;
        let mut blocks = [0; ROWS * BLOCK];
        for block in blocks.chunks_exact_mut(BLOCK) {
            let [low, high] = f16::from_f32(0.01 + 0.002 * random.number()).to_le_bytes();
            block.fill_with(|| random.byte());
            block[..2].copy_from_slice(&[low, high]);
        }
        let mut covariance = [0.0; N_HEADS * DIM * DIM];
        for (i, x) in covariance.iter_mut().enumerate() {
            *x = 0.01 * random.number() + if i % (DIM + 1) == 0 { 0.5 } else { 0.0 };
        }
        let mut tags = [0; ROWS];
        for (i, t) in tags.iter_mut().enumerate() {
            *t = if i % 97 == 13 { tag::PROTECTED } else { 0 } | if i % 3 == 0 { tag::IMAGE } else { 0 };
        }
        Self {
            keys,
            strange,
            blocks,
            values: random.numbers(),
            queries: random.numbers(),
            query_mean: random.numbers(),
            query_covariance: covariance,
            column_sums: random.numbers().map(f32::abs),
            output_norms: random.numbers().map(f32::abs),
            given: random.numbers(),
            tags,
        }
    }
}

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn byte(&mut self) -> u8 {
        (self.next() >> 56) as u8
    }

    /// In `[-1, 1)`, exact in f32.
    fn number(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    fn numbers<const N: usize>(&mut self) -> [f32; N] {
        core::array::from_fn(|_| self.number())
    }
}
