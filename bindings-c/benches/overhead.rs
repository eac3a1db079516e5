//! What a call through C costs over the same call in Rust: `cargo bench -p ecokv-c`. Both sides take turns, so that whatever
//! else the machine does hits them alike; the figures are medians, and the quotient that of each pair of turns. Where memory
//! happens to lie makes more of a difference than C does, so every round has memory of its own.

use std::hint::black_box;
use std::path::Path;
use std::ptr::null_mut;
use std::time::Instant;

use ecokv::cache::KvType;
use ecokv::{Engine, EngineOptions, Prompt, Sampler, Sampling, Session, SessionOptions};
use ecokv_c::core::*;
use ecokv_c::*;
use ecokv_core::{Dispatch, LayerShape, LayerView, Observation, Rows, Workspace, methods, score_layer};

const ROWS: usize = 2048;
const DIM: usize = 64;
const WINDOW: usize = 32;
const ROUNDS: usize = 20;

fn main() {
    println!("| what | Rust | C | C / Rust | quartiles of the rounds |\n|---|---|---|---|---|");
    measure("score a 2,048 x 64 head", scoring);
    measure("decode a token of the bundled model", decoding);
}

/// One head of 2,048 keys of 64 elements, by the method `ecokv`. Who writes to which memory differs between rounds.
fn scoring(c_first: bool) -> Turns {
    let mut state = 1u32;
    let mut number = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    let mut numbers = |n: usize| (0..n).map(|_| number()).collect::<Vec<f32>>();
    let (keys, values, queries) = (numbers(ROWS * DIM), numbers(ROWS * DIM), numbers(WINDOW * DIM));
    let (starts, lens) = ([0], [ROWS as u32]);
    let policy = methods::by_name("ecokv").expect("a method").policy;
    let shape = LayerShape { n_kv_heads: 1, group: 1, head_dim: DIM };
    let view = LayerView {
        shape,
        starts: &starts,
        lens: &lens,
        keys: Rows::F32(&keys),
        values: Some(Rows::F32(&values)),
        observation: Observation { n_queries: WINDOW, queries: &queries, ..Observation::default() },
        scale: 0.125,
        layer: 0,
        n_layers: 1,
    };
    let size = policy.workspace_len(shape, ROWS).expect("a small layer");
    let (mut f32s, mut u32s) = (vec![0.0; size.f32s], vec![0; size.u32s]);
    let (mut by_rust, mut by_c) = (vec![0.0f32; ROWS], vec![0.0f32; ROWS]);
    if c_first {
        std::mem::swap(&mut by_rust, &mut by_c);
    }

    let c_policy = named("ecokv");
    // SAFETY: zeros are a layer.
    let mut layer: ecokv_layer_t = unsafe { std::mem::zeroed() };
    layer.struct_size = size_of::<ecokv_layer_t>() as u32;
    (layer.n_kv_heads, layer.group, layer.head_dim) = (1, 1, DIM as u32);
    (layer.n_layers, layer.scale, layer.rows, layer.n_queries) = (1, 0.125, ROWS, WINDOW as u32);
    (layer.starts, layer.lens) = (starts.as_ptr(), lens.as_ptr());
    (layer.keys, layer.values, layer.queries) = (keys.as_ptr().cast(), values.as_ptr().cast(), queries.as_ptr());

    let turns = compare(100, |c| {
        if c {
            let workspace = ecokv_workspace_t {
                f32s: f32s.as_mut_ptr(),
                u32s: u32s.as_mut_ptr(),
                n_f32s: f32s.len(),
                n_u32s: u32s.len(),
            };
            // SAFETY: all of it lives in this function.
            let status = unsafe {
                ecokv_score_layer(&c_policy, 256, &layer, &workspace, by_c.as_mut_ptr(), ROWS, null_mut(), null_mut())
            };
            assert_eq!(status, ECOKV_OK);
        } else {
            let w = Workspace { f32s: &mut f32s, u32s: &mut u32s };
            score_layer(Dispatch::detect(), black_box(&policy), 256, black_box(&view), w, &mut by_rust)
                .expect("a good layer");
        }
    });
    assert!(by_rust.iter().zip(&by_c).all(|(a, b)| a.to_bits() == b.to_bits()));
    turns
}

/// A token of the bundled model: decode and sample. Who is first to take memory differs between rounds.
fn decoding(c_first: bool) -> Turns {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/tinyvlm-q8_0.gguf");
    let text = "How much is the total of the receipt in the picture?";
    let steps = 100;

    let through_c = c_first.then(|| c_session(&file, text, steps));
    let engine = Engine::open(&file, None, EngineOptions { n_threads: 1, ..Default::default() }).expect("a model");
    let options = SessionOptions { n_ctx: 0, n_generate: steps, kv_type: KvType::default(), eviction: None };
    let mut session = Session::new(&engine, options).expect("a session");
    let mut sampler = Sampler::new(Sampling::default());
    let mut id = sampler.next(&session.prefill(&Prompt::raw(&engine, text, &[]).expect("a prompt")).expect("it runs"));

    let (c_engine, c_session, mut c_id) = through_c.unwrap_or_else(|| c_session(&file, text, steps));

    let turns = compare(steps, |c| {
        if c {
            // SAFETY: the handle lives until the end of this function.
            unsafe {
                assert_eq!(ecokv_session_decode(c_session, c_id), ECOKV_OK);
                assert_eq!(ecokv_session_sample(c_session, &mut c_id), ECOKV_OK);
            }
        } else {
            id = sampler.next(session.decode(id).expect("it runs"));
        }
    });
    assert_eq!(id, c_id);
    // SAFETY: made above, freed once.
    unsafe {
        ecokv_session_free(c_session);
        ecokv_engine_free(c_engine);
    }
    turns
}

/// A session that has read the text, and the token after it.
fn c_session(file: &Path, text: &str, steps: usize) -> (*mut ecokv_engine_t, *mut ecokv_session_t, u32) {
    let path = std::ffi::CString::new(file.to_str().expect("a path")).expect("no NUL");
    // SAFETY: zeros are parameters; what they point to lives in this function.
    unsafe {
        let mut p: ecokv_engine_params_t = std::mem::zeroed();
        (p.struct_size, p.n_threads) = (size_of::<ecokv_engine_params_t>() as u32, 1);
        p.model_path = path.as_ptr();
        let (mut engine, mut prompt, mut session, mut id) = (null_mut(), null_mut(), null_mut(), 0);
        assert_eq!(ecokv_engine_open(&p, &mut engine), ECOKV_OK);
        assert_eq!(ecokv_prompt_new(engine, ECOKV_PROMPT_RAW, &mut prompt), ECOKV_OK);
        assert_eq!(ecokv_prompt_add_text(prompt, text.as_ptr().cast(), text.len()), ECOKV_OK);
        let mut s: ecokv_session_params_t = std::mem::zeroed();
        (s.struct_size, s.n_generate) = (size_of::<ecokv_session_params_t>() as u32, steps as u32);
        assert_eq!(ecokv_session_new(engine, &s, &mut session), ECOKV_OK);
        assert_eq!(ecokv_session_prefill(session, prompt, std::ptr::null()), ECOKV_OK);
        assert_eq!(ecokv_session_sample(session, &mut id), ECOKV_OK);
        ecokv_prompt_free(prompt);
        (engine, session, id)
    }
}

fn named(method: &str) -> ecokv_policy_t {
    // SAFETY: zeros are a policy.
    let mut policy: ecokv_policy_t = unsafe { std::mem::zeroed() };
    policy.struct_size = size_of::<ecokv_policy_t>() as u32;
    for (to, from) in policy.method.iter_mut().zip(method.bytes()) {
        *to = from as std::ffi::c_char;
    }
    policy
}

/// Microseconds of every turn.
#[derive(Default)]
struct Turns {
    rust: Vec<f64>,
    c: Vec<f64>,
}

impl Turns {
    fn quotients(&self) -> Vec<f64> {
        self.c.iter().zip(&self.rust).map(|(c, rust)| c / rust).collect()
    }
}

fn measure(what: &str, round: fn(bool) -> Turns) {
    let (mut all, mut of_rounds) = (Turns::default(), Vec::new());
    for i in 0..ROUNDS {
        let turns = round(i % 2 == 1);
        of_rounds.push(median(turns.quotients()));
        all.rust.extend(turns.rust);
        all.c.extend(turns.c);
    }
    of_rounds.sort_by(f64::total_cmp);
    let (low, high) = (of_rounds[ROUNDS / 4], of_rounds[ROUNDS * 3 / 4]);
    let quotient = median(all.quotients());
    println!(
        "| {what} | {:.1} us | {:.1} us | {quotient:.4} | {low:.4} to {high:.4} |",
        median(all.rust),
        median(all.c)
    );
}

/// `turn(true)` goes through C. Who begins alternates.
fn compare(n: usize, mut turn: impl FnMut(bool)) -> Turns {
    let mut time = |c: bool| {
        let start = Instant::now();
        turn(c);
        start.elapsed().as_nanos() as f64 / 1000.0
    };
    let mut turns = Turns::default();
    for i in 0..n {
        let c_first = i % 2 == 0;
        let (first, second) = (time(c_first), time(!c_first));
        turns.c.push(if c_first { first } else { second });
        turns.rust.push(if c_first { second } else { first });
    }
    turns
}

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x[x.len() / 2]
}
