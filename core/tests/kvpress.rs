//! Scores and kept sets against recorded outputs of the kvpress package (0.5.5) on a small random llama:
//! `testdata/kvpress`, 4 layers, 6 query heads on 2 KV heads, 96 tokens, three ratios.

mod support;

use ecokv_core::*;
use support::golden::{Golden, file};
use support::*;

const T: usize = 96;
const HEADS: usize = 2;
const GROUP: usize = 3;
const HEAD_DIM: usize = 16;
const LAYERS: usize = 4;
const RATIOS: [&str; 3] = ["0.25", "0.5", "0.8"];

/// Layer `l` with its last `window` queries.
fn layer(inputs: &Golden, l: usize, window: usize) -> Layer {
    let all = inputs.f32s(&format!("q.{l}"));
    let queries = all.chunks_exact(T * HEAD_DIM).flat_map(|q| &q[(T - window) * HEAD_DIM..]).copied().collect();
    let mut layer = Layer {
        n_kv_heads: HEADS,
        group: GROUP,
        head_dim: HEAD_DIM,
        lens: vec![T as u32; HEADS],
        keys: inputs.f32s(&format!("k.{l}")),
        values: inputs.f32s(&format!("v.{l}")),
        n_queries: window,
        queries,
        scale: 0.25,
        layer: l as u32,
        n_layers: LAYERS as u32,
        ..Default::default()
    };
    layer.place();
    layer
}

/// Adds what attention recorded besides the window: column sums over all queries, and `||W_O v||_1`.
fn record(layer: &mut Layer, inputs: &Golden, l: usize) {
    let sums = inputs.f32s(&format!("attn_colsum.{l}"));
    let w_o = inputs.f32s(&format!("w_o.{l}")); // [hidden][n_heads * head_dim]
    let width = HEADS * GROUP * HEAD_DIM;
    for h in 0..HEADS {
        for i in 0..T {
            layer.column_sums.push((0..GROUP).map(|g| sums[(h * GROUP + g) * T + i]).sum());
            let mut norm = 0.0;
            for g in 0..GROUP {
                let first = (h * GROUP + g) * HEAD_DIM;
                for row in w_o.chunks_exact(width) {
                    let added = row[first..].iter().zip(layer.value(h, i)).map(|(w, v)| f64::from(w * v)).sum::<f64>();
                    norm += added.abs();
                }
            }
            layer.output_norms.push((norm / GROUP as f64) as f32);
        }
    }
}

/// Adds the statistics of the queries after the first `sinks`, for the `future` positions after the prompt.
fn expect(layer: &mut Layer, inputs: &Golden, l: usize, sinks: usize, future: u32) {
    let frequencies: Vec<f32> =
        (0..HEAD_DIM / 2).map(|i| 10000f64.powf(-2.0 * i as f64 / HEAD_DIM as f64) as f32).collect();
    let (mut cos, mut sin) = ([0.0; HEAD_DIM / 2], [0.0; HEAD_DIM / 2]);
    expected::mean_rotation(&frequencies, T as u32, future, &mut cos, &mut sin);
    for q in inputs.f32s(&format!("q_pre.{l}")).chunks_exact(T * HEAD_DIM) {
        let rows: Vec<&[f32]> = q.chunks_exact(HEAD_DIM).skip(sinks).collect();
        let n = rows.len() as f64;
        let mean: Vec<f64> = (0..HEAD_DIM).map(|j| rows.iter().map(|r| f64::from(r[j])).sum::<f64>() / n).collect();
        let centred = |r: &[f32], j: usize| f64::from(r[j]) - mean[j];
        let mut covariance: Vec<f32> = (0..HEAD_DIM * HEAD_DIM)
            .map(|x| (x / HEAD_DIM, x % HEAD_DIM))
            .map(|(i, j)| (rows.iter().map(|r| centred(r, i) * centred(r, j)).sum::<f64>() / n) as f32)
            .collect();
        let mut mean: Vec<f32> = mean.iter().map(|&x| x as f32).collect();
        expected::rotate(expected::Pairing::Halves, &cos, &sin, &mut mean, &mut covariance);
        layer.query_mean.extend(mean);
        layer.query_covariance.extend(covariance);
    }
}

/// What `kvpress` keeps of `T` entries.
fn kept_of(ratio: &str) -> u32 {
    ((T as f64 * (1.0 - ratio.parse::<f64>().unwrap())) as u32).max(1)
}

/// Runs `p` on every ratio and layer, `budget(l, ratio)` entries each, and compares both outputs. Returns the largest
/// score difference relative to the score or to `unit`, whichever is larger, and the heads whose cut lies inside a tie.
fn compare(name: &str, window: usize, p: &Policy, unit: f32, budget: impl Fn(usize, &str) -> u32) -> (f32, usize) {
    let (inputs, gold) =
        (Golden::open("kvpress/inputs.safetensors"), Golden::open(&format!("kvpress/{name}.safetensors")));
    let (mut worst, mut tied) = (0f32, 0);
    for ratio in RATIOS {
        for l in 0..LAYERS {
            let mut layer = layer(&inputs, l, window);
            record(&mut layer, &inputs, l);
            expect(&mut layer, &inputs, l, 4, 64);
            let budget = budget(l, ratio);
            let reference = gold.f32s(&format!("{ratio}.scores.{l}"));
            for (s, r) in scores(p, budget, &layer).iter().zip(&reference) {
                if s.is_finite() && r.abs() < 1e30 {
                    worst = worst.max((s - r).abs() / r.abs().max(unit));
                }
            }
            let mask = gold.bytes(&format!("{ratio}.mask.{l}"));
            let kept = evict(p, budget, &layer);
            assert_eq!(kept.iter().map(Vec::len).sum::<usize>(), mask.iter().map(|&m| m as usize).sum::<usize>());
            for (h, kept) in kept.iter().enumerate() {
                let mask: Vec<bool> = mask[h * T..][..T].iter().map(|&m| m == 1).collect();
                let ours: Vec<bool> = (0..T as u32).map(|i| kept.contains(&i)).collect();
                if ours != mask {
                    // Only entries whose scores are equal at the cut may be exchanged.
                    let s = &reference[h * T..][..T];
                    let swapped: Vec<f32> = (0..T).filter(|&i| ours[i] != mask[i]).map(|i| s[i]).collect();
                    let spread = swapped.iter().fold(0f32, |m, x| m.max((x / swapped[0] - 1.0).abs()));
                    assert!(spread <= 1e-6, "{name} {ratio} layer {l} head {h}: {swapped:?}");
                    tied += 1;
                }
            }
        }
    }
    (worst, tied)
}

#[test]
fn knorm() {
    let (worst, tied) = compare("knorm", 0, &policy("knorm"), 1e-9, |_, r| kept_of(r));
    // Layer 0 has no positions yet in its norms: a token seen twice has the same norm twice.
    assert!(worst <= 1e-5 && tied <= 6, "{worst} {tied}");
}

/// Cosines near 0 are differences of larger numbers, so the unit is that of a cosine.
#[test]
fn keydiff() {
    let (worst, tied) = compare("keydiff", 0, &policy("keydiff"), 1.0, |_, r| kept_of(r));
    assert!(worst <= 1e-6 && tied == 0, "{worst} {tied}");
}

#[test]
fn snapkv() {
    let (worst, tied) = compare("snapkv", 8, &policy("snapkv").with_window(8), 1e-9, |_, r| kept_of(r));
    assert!(worst <= 1e-5 && tied == 0, "{worst} {tied}");
}

/// The scores of kvpress are 0 and 1 here; ours order the entries, so only the kept sets can agree.
#[test]
fn streaming() {
    let gold = Golden::open("kvpress/streamingllm.safetensors");
    let inputs = Golden::open("kvpress/inputs.safetensors");
    for ratio in RATIOS {
        let mask = gold.bytes(&format!("{ratio}.mask.0"));
        for kept in evict(&policy("streaming"), kept_of(ratio), &layer(&inputs, 0, 0)).iter().zip(mask.chunks(T)) {
            let ours: Vec<u8> = (0..T as u32).map(|i| u8::from(kept.0.contains(&i))).collect();
            assert_eq!(ours, kept.1, "{ratio}");
        }
    }
}

/// kvpress derives its pyramid from a real-valued budget with the window inside the line; the budgets are computed here
/// its way, so this pins the selection at every one of them.
#[test]
fn pyramidkv() {
    for (name, window, beta) in [("pyramidkv_b2", 8, 2.0), ("pyramidkv_b20", 2, 20.0)] {
        let budget = |l: usize, ratio: &str| {
            let (n, w) = (T as f64, window as f64);
            let scored = n * (1.0 - ratio.parse::<f64>().unwrap());
            let (mut min, mut max) = (scored / beta, scored * 2.0 - scored / beta);
            if max >= n - w {
                max = n - w;
                min = scored * 2.0 - max;
            }
            if n >= max && max >= min && min >= w {
                (max - l as f64 * (max - min) / (LAYERS - 1) as f64).round_ties_even() as u32
            } else {
                scored.round_ties_even().max(1.0) as u32
            }
        };
        let (worst, tied) = compare(
            name,
            window,
            &policy("snapkv").with_window(window as u32).with_keep_recent(window as u32),
            1e-9,
            budget,
        );
        assert!(worst <= 1e-5 && tied == 0, "{name}: {worst} {tied}");
    }
}

#[test]
fn adakv() {
    let p = policy("adakv").with_window(8);
    let (worst, tied) = compare("adakv_snapkv", 8, &p, 1e-9, |_, r| kept_of(r));
    assert!(worst <= 1e-5 && tied == 0, "{worst} {tied}");
}

#[test]
fn tova() {
    let (worst, tied) = compare("tova", 1, &policy("tova"), 1e-9, |_, r| kept_of(r));
    assert!(worst <= 1e-5 && tied == 0, "{worst} {tied}");
}

#[test]
fn observed() {
    let (worst, tied) = compare("observed", 0, &policy("observed"), 1e-9, |_, r| kept_of(r));
    assert!(worst <= 1e-5 && tied == 0, "{worst} {tied}");
}

#[test]
fn expected_attention() {
    let p = policy("expected");
    let (worst, tied) = compare("expected", 0, &p, 1e-9, |_, r| kept_of(r));
    assert!(worst <= 1e-5 && tied == 0, "{worst} {tied}");

    let Importance::Attention(a) = p.importance else { panic!() };
    let queries = Queries::Expected { covariance: false };
    let plain =
        Policy { importance: Importance::Attention(Attention { queries, value_norm: ValueNorm::None, ..a }), ..p };
    let (worst, tied) = compare("expected_nocov", 0, &plain, 1e-9, |_, r| kept_of(r));
    assert!(worst <= 1e-5 && tied == 0, "{worst} {tied}");

    let value_norm = ValueNorm::Times { norm: Norm::L2, epsilon: 1e-2 };
    let ada = Policy { importance: Importance::Attention(Attention { value_norm, ..a }), ..p }
        .with_head_budget(HeadBudget::Adaptive { floor: 0.2 });
    let (worst, tied) = compare("adakv_expected", 0, &ada, 1e-9, |_, r| kept_of(r));
    assert!(worst <= 1e-5 && tied == 0, "{worst} {tied}");
}

#[test]
fn criticalkv() {
    let (worst, tied) = compare("criticalkv_snapkv", 8, &policy("criticalkv").with_window(8), 1e-9, |_, r| kept_of(r));
    assert!(worst <= 1e-5 && tied == 0, "{worst} {tied}");
}

/// The recorded scores are those of SnapKV, so only the kept sets can agree.
#[test]
fn criticaladakv() {
    let p = policy("criticaladakv").with_window(8);
    let (_, tied) = compare("criticaladakv_snapkv", 8, &p, 1e-9, |_, r| kept_of(r));
    assert_eq!(tied, 0);
}

#[test]
fn lagkv() {
    let p = Policy { importance: Importance::Lag { lag: 16 }, ..policy("lagkv") };
    let (worst, tied) = compare("lagkv", 0, &p, 1e-9, |_, r| kept_of(r));
    // Scores are ranks, the same ones in every chunk, so nearly every cut lies between equals.
    assert!(worst <= 1e-5 && tied <= 24, "{worst} {tied}");
}

/// KeyDiff block by block: what was kept and the next 16 entries compete, each time judged among themselves.
#[test]
fn block_keydiff() {
    let (inputs, gold) =
        (Golden::open("kvpress/inputs.safetensors"), Golden::open("kvpress/block_keydiff.safetensors"));
    for ratio in RATIOS {
        let budget = kept_of(ratio);
        for l in 0..LAYERS {
            let whole = layer(&inputs, l, 0);
            let mut kept: Lists = vec![(0..budget).collect(); HEADS];
            for first in (budget..T as u32).step_by(16) {
                let block = first..(first + 16).min(T as u32);
                let candidates: Lists = kept.iter().map(|k| k.iter().copied().chain(block.clone()).collect()).collect();
                let mut part = Layer { keys: vec![], values: vec![], ..whole.clone() };
                for (h, candidates) in candidates.iter().enumerate() {
                    part.lens[h] = candidates.len() as u32;
                    candidates.iter().for_each(|&i| part.keys.extend(whole.key(h, i as usize)));
                }
                part.values = part.keys.clone();
                part.place();
                let chosen = evict(&policy("keydiff"), budget, &part);
                let original = |(c, k): (&Vec<u32>, &Vec<u32>)| k.iter().map(|&i| c[i as usize]).collect();
                kept = candidates.iter().zip(&chosen).map(original).collect();
            }
            let mask = gold.bytes(&format!("{ratio}.mask.{l}"));
            for (kept, mask) in kept.iter().zip(mask.chunks(T)) {
                let ours: Vec<u8> = (0..T as u32).map(|i| u8::from(kept.contains(&i))).collect();
                assert_eq!(ours, mask, "{ratio} layer {l}");
            }
        }
    }
}

#[test]
fn curdkv() {
    let (worst, tied) = compare("curdkv", 0, &policy("curdkv"), 1e-9, |_, r| kept_of(r));
    assert!(worst <= 1e-5 && tied == 0, "{worst} {tied}");
}

/// ChunkKV is no named method here, because it spends a budget of whole chunks: its scores, computed by the host, and our
/// selection.
#[test]
fn scores_a_host_brings() {
    let inputs = Golden::open("kvpress/inputs.safetensors");
    let p = Policy { importance: Importance::Given, ..policy("full") };
    let gold = Golden::open("kvpress/chunkkv_snapkv.safetensors");
    for (ratio, l) in RATIOS.iter().flat_map(|r| (0..LAYERS).map(move |l| (r, l))) {
        // Every entry of a chunk of 10 gets the chunk's mean over entries and heads.
        let recorded = gold.f32s(&format!("{ratio}.scores.{l}"));
        let sums: Vec<f32> = (0..T).map(|i| (0..HEADS).map(|h| recorded[h * T + i]).sum()).collect();
        let chunks: Vec<f32> =
            sums.chunks(10).flat_map(|c| vec![c.iter().sum::<f32>() / c.len() as f32; c.len()]).collect();
        let layer = Layer { given: chunks.repeat(HEADS), ..layer(&inputs, l, 0) };
        let mask = gold.bytes(&format!("{ratio}.mask.{l}"));
        let budget = mask[..T].iter().map(|&m| u32::from(m)).sum();
        for (kept, mask) in evict(&p, budget, &layer).iter().zip(mask.chunks(T)) {
            let ours: Vec<u8> = (0..T as u32).map(|i| u8::from(kept.contains(&i))).collect();
            assert_eq!(ours, mask, "{ratio} layer {l}");
        }
    }
}

/// The recorded parameters are the ones the tests above assume.
#[test]
fn parameters() {
    let index: serde_json::Value = serde_json::from_slice(&std::fs::read(file("kvpress/index.json")).unwrap()).unwrap();
    assert_eq!(index["T"], T);
    assert_eq!(index["cases"]["snapkv"]["params"]["window_size"], 8);
    assert_eq!(index["cases"]["snapkv"]["params"]["kernel_size"], 5);
    assert_eq!(index["cases"]["adakv_snapkv"]["params"]["alpha_safeguard"], 0.2);
    assert_eq!(index["cases"]["criticalkv_snapkv"]["params"]["first_stage_ratio"], 0.5);
    assert_eq!(index["cases"]["adakv_expected"]["params"]["n_future_positions"], 64);
    assert_eq!(index["cases"]["lagkv"]["params"]["lag_size"], 16);
    assert_eq!(index["cases"]["curdkv"]["params"]["local_window_size"], 16);
    assert_eq!(index["cases"]["chunkkv_snapkv"]["params"]["chunk_length"], 10);
    assert_eq!(index["cases"]["streamingllm"]["params"]["n_sink"], 4);
}
