//! Language models of every family against transformers in float32: tiny random weights, recorded outputs
//! (`testdata/scripts/families.py`).

mod gguf_bytes;
#[path = "../../examples/golden/mod.rs"]
mod golden;

use ecokv::cache::{Kept, KvCache, KvType, SlotRows};
use ecokv::gguf::GgufFile;
use ecokv::model::{Decoder, Logits, ModelConfig};
use ecokv::ops::rope::{Position, RopeKind};
use ecokv::ops::{Compute, Precision};
use ecokv::{Engine, EngineOptions, Eviction, Prompt, Session, SessionOptions};
use ecokv_core::{LayerBudget, methods};
use gguf_bytes::{ARRAY, BOOL, F32, Gguf, STRING, U32, array, leak, string};
use golden::{Golden, interleaved, relative, testdata};

/// Largest relative error of a float32 language model.
const LM: f32 = 1e-5;

const FAMILIES: [&str; 6] = ["qwen2", "qwen3", "gemma3", "llama-linear", "llama-yarn", "llama-llama3"];

struct Case {
    golden: Golden,
    decoder: Decoder,
    cx: Compute,
    ids: Vec<u32>,
    cache: KvCache,
}

impl Case {
    fn new(name: &str) -> Case {
        let golden = Golden::load(&format!("models/{name}/golden.safetensors"));
        let file = GgufFile::open(&testdata(&format!("models/{name}/model-f32.gguf"))).unwrap();
        let decoder = Decoder::load(&file).unwrap();
        let c = decoder.config();
        let cache = KvCache::new(c.n_layers, c.n_kv_heads, c.head_dim, KvType::F32);
        Case { ids: golden.ids("input_ids"), cx: Compute::new(2).unwrap(), golden, decoder, cache }
    }

    /// Runs the prompt, compares keys and values of each layer, and keeps the rows for which `keep` holds.
    fn prefill(&mut self, name: &str, keep: impl Fn(usize) -> bool) -> Vec<f32> {
        let Case { golden, decoder, cx, ids, cache } = self;
        let c = decoder.config();
        let mut x = vec![0.0; ids.len() * c.n_embd];
        decoder.embed(ids, &mut x);
        let positions: Vec<Position> = (0..ids.len() as u32).map(Position::text).collect();
        let logits = decoder.prefill(cx, &mut x, &positions, cache, Logits::All, |s| {
            let rows = |all: &[f32]| -> Vec<f32> {
                let plane = s.rows.capacity() * c.head_dim;
                all.chunks(plane).flat_map(|head| head[..ids.len() * c.head_dim].to_vec()).collect()
            };
            let k = golden.get(&format!("k.{}", s.layer));
            let k = if c.rope_kind == RopeKind::Half { k.to_vec() } else { interleaved(k, c.head_dim) };
            let error = relative(&rows(s.rows.all_keys()), &k);
            assert!(error < LM, "{name} layer {} keys: {error}", s.layer);
            let error = relative(&rows(s.rows.all_values()), golden.get(&format!("v.{}", s.layer)));
            assert!(error < LM, "{name} layer {} values: {error}", s.layer);
            let kept = |_| Kept::Rows((0..ids.len()).filter(|&i| keep(i)).map(|i| i as u32).collect());
            s.cache.fill(cx, s.rows, kept, 4, &SlotRows::default());
            Ok(())
        });
        logits.unwrap()
    }

    /// Decodes the recorded tokens; returns the largest relative error of the logits after each.
    fn decode(&mut self, want: &[f32]) -> f32 {
        let Case { golden, decoder, cx, ids, cache } = self;
        let mut state = decoder.decode_state();
        let steps = golden.ids("gen_ids");
        let n_vocab = decoder.config().n_vocab;
        let steps = steps.iter().zip(want.chunks(n_vocab)).enumerate();
        steps.fold(0.0_f32, |worst, (step, (&id, want))| {
            let position = Position::text((ids.len() + step) as u32);
            worst.max(relative(decoder.decode(cx, id, position, cache, &mut state), want))
        })
    }
}

#[test]
fn logits_match_transformers() {
    for name in FAMILIES {
        let mut case = Case::new(name);
        let logits = case.prefill(name, |_| true);
        let error = relative(&logits, case.golden.get("logits"));
        println!("{name} logits: {error:.1e}");
        assert!(error < LM, "{name} logits: {error}");
        let want = case.golden.get("gen_logits").to_vec();
        let error = case.decode(&want);
        println!("{name} decoded: {error:.1e}");
        assert!(error < LM, "{name} decoded: {error}");
    }
}

/// Evicting exactly the rows that a mask hides from the generated tokens gives the logits of the mask.
#[test]
fn evicted_rows_are_masked_rows() {
    for name in &FAMILIES[1..] {
        let mut case = Case::new(name);
        let hidden = case.golden.ids("hidden");
        case.prefill(name, |i| hidden[i] == 0);
        let want = case.golden.get("hidden_logits").to_vec();
        let error = case.decode(&want);
        println!("{name} with hidden rows: {error:.1e}");
        assert!(error < LM, "{name}: {error}");
    }
}

fn gemma3() -> Engine {
    let options = EngineOptions { n_threads: 2, precision: Precision::Float, ..EngineOptions::default() };
    Engine::open(&testdata("models/gemma3/model-f32.gguf"), None, options).unwrap()
}

fn session(engine: &Engine, eviction: Option<Eviction>) -> Session<'_> {
    Session::new(engine, SessionOptions { n_generate: 4, eviction, ..golden::options() }).unwrap()
}

/// Windows of 6 in six of seven layers, 40 tokens.
#[test]
fn layers_with_a_window_keep_what_it_reaches() {
    let engine = gemma3();
    let golden = Golden::load("models/gemma3/golden.safetensors");
    let ids = golden.ids("input_ids");
    let n_vocab = engine.config().n_vocab;
    // The next query, at 40, sees 35 to 40.
    let reached: Vec<u32> = (35..40).collect();
    let mut full = session(&engine, None);
    full.prefill(&Prompt::tokens(&engine, ids.clone()).unwrap()).unwrap();
    let layers =
        |s: &Session<'_>| -> Vec<Vec<u32>> { s.cache().layers().iter().map(|l| l.positions(0).to_vec()).collect() };
    let all: Vec<u32> = (0..40).collect();
    let mut want = vec![reached.clone(); 7];
    want[5] = all;
    assert_eq!(layers(&full), want);
    // More steps than there was room for; the windows move on.
    for (&id, want) in golden.ids("gen_ids").iter().zip(golden.get("gen_logits").chunks(n_vocab)) {
        let error = relative(full.decode(id).unwrap(), want);
        assert!(error < LM, "{error}");
    }
    assert_eq!(full.cache().layers()[0].positions(0), (42..48).collect::<Vec<u32>>());
    assert_eq!(full.cache().layers()[5].len(0), 48);

    for method in methods::ALL.iter().filter(|m| !m.policy.needs().head_budgets && m.name != "retentivekv") {
        let mut policy = method.policy.with_window(2);
        policy.protect.sinks = 0;
        let eviction = Eviction { policy, layer_budget: LayerBudget::Uniform, budget: 4 };
        let mut session = session(&engine, Some(eviction));
        if let Err(e) = session.prefill(&Prompt::tokens(&engine, ids.clone()).unwrap()) {
            panic!("{}: {e}", method.name);
        }
        for (l, positions) in layers(&session).iter().enumerate() {
            assert_eq!(positions.len(), 4, "{} layer {l}", method.name);
            assert!(l == 5 || positions.iter().all(|p| reached.contains(p)), "{} {positions:?}", method.name);
        }
        assert!(session.decode(7).unwrap().iter().all(|l| l.is_finite()), "{}", method.name);
        // A budget that holds everything is no eviction.
        let eviction = Eviction { budget: 40, ..eviction };
        let mut kept = self::session(&engine, Some(eviction));
        kept.prefill(&Prompt::tokens(&engine, ids.clone()).unwrap()).unwrap();
        assert_eq!(layers(&kept), want, "{}", method.name);
    }
    let retentive = Eviction {
        policy: methods::by_name("retentivekv").unwrap().policy,
        layer_budget: LayerBudget::Uniform,
        budget: 20,
    };
    let error = session(&engine, Some(retentive)).prefill(&Prompt::tokens(&engine, ids.clone()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("sliding window"), "{error}");
}

#[test]
fn a_prompt_in_parts_sees_the_same_windows() {
    let engine = gemma3();
    let golden = Golden::load("models/gemma3/golden.safetensors");
    let ids = golden.ids("input_ids");
    let mut session = session(&engine, None);
    for part in [&ids[..3], &ids[3..23], &ids[23..]] {
        let logits = session.prefill(&Prompt::tokens(&engine, part.to_vec()).unwrap()).unwrap();
        let end = session.stats().prompt_tokens * logits.len();
        let error = relative(&logits, &golden.get("logits")[end - logits.len()..end]);
        assert!(error < LM, "{error}");
    }
}

#[test]
fn going_back_stops_where_a_window_left_rows_behind() {
    let engine = gemma3();
    let ids = Golden::load("models/gemma3/golden.safetensors").ids("input_ids");
    let run = |session: &mut Session<'_>, ids: &[u32]| {
        session.prefill(&Prompt::tokens(&engine, ids.to_vec()).unwrap()).unwrap()
    };
    let mut session = session(&engine, None);
    let first = run(&mut session, &ids[..5]);
    session.rewind(2).unwrap();
    assert!(relative(&run(&mut session, &ids[2..5]), &first) < LM);
    run(&mut session, &ids[5..6]);
    // The first row has left the windows of 6; a query at position 5 would see it.
    assert!(session.rewind(5).is_err());
    session.rewind(6).unwrap();
}

/// A gemma3 header of 2 layers, 4 wide, with `more` behind the entries that every model needs.
fn header(more: &[(&str, u32, Vec<u8>)]) -> Result<ModelConfig, String> {
    let count = |n: u32| (U32, n.to_le_bytes().to_vec());
    let needed = [
        ("block_count", count(2)),
        ("embedding_length", count(4)),
        ("feed_forward_length", count(8)),
        ("context_length", count(64)),
        ("attention.head_count", count(1)),
        ("attention.layer_norm_rms_epsilon", (F32, 1e-6_f32.to_le_bytes().to_vec())),
    ];
    let mut file = Gguf::new().entry("general.architecture", STRING, string("gemma3"));
    for (name, (ty, value)) in needed {
        file = file.entry(&format!("gemma3.{name}"), ty, value);
    }
    for (name, ty, value) in more {
        file = file.entry(&format!("gemma3.{name}"), *ty, value);
    }
    let file = file.tensor("token_embd.weight", 0, &[4, 8], 0).data(128).build();
    ModelConfig::from_gguf(&GgufFile::from_static("header.gguf", leak(file)).unwrap()).map_err(|e| e.to_string())
}

#[test]
fn scalings_and_windows_that_cannot_be_are_refused() {
    let float = |name: &'static str, v: f32| (name, F32, v.to_le_bytes().to_vec());
    let int = |name: &'static str, v: u32| (name, U32, v.to_le_bytes().to_vec());
    let kind = |v: &str| ("rope.scaling.type", STRING, string(v));
    let layers = |bytes: &[u8]| ("attention.sliding_window_pattern", ARRAY, array(BOOL, bytes.len() as u64, bytes));
    let factor = float("rope.scaling.factor", 4.0);
    let yarn = || vec![kind("yarn"), factor.clone()];
    let window = int("attention.sliding_window", 8);

    assert_eq!(header(&[]).unwrap().windows, [None, None]);
    assert_eq!(header(&[window.clone(), layers(&[0, 1])]).unwrap().windows, [None, Some(8)]);
    let by_period = header(&[window.clone(), int("attention.sliding_window_pattern", 2)]).unwrap();
    assert_eq!(by_period.windows, [Some(8), None]);
    header(&yarn()).unwrap();

    for (more, parts) in [
        (vec![kind("longrope")], ["rope.scaling.type", "\"longrope\""]),
        (vec![kind("linear")], ["rope.scaling.factor", "missing"]),
        (vec![float("rope.scaling.factor", 0.0)], ["rope.scaling.factor", "0 is not a positive number"]),
        ([yarn(), vec![float("rope.scaling.yarn_ext_factor", 0.5)]].concat(), ["yarn_ext_factor", "0.5"]),
        ([yarn(), vec![float("rope.scaling.yarn_beta_fast", -1.0)]].concat(), ["yarn_beta_fast", "-1"]),
        ([yarn(), vec![int("rope.scaling.original_context_length", 0)]].concat(), ["original_context", "at least 1"]),
        ([yarn(), vec![float("rope.freq_base", 1.0)]].concat(), ["rope.freq_base", "more than 1"]),
        (vec![int("attention.sliding_window", 1)], ["sliding_window", "themselves"]),
        (vec![window.clone(), layers(&[1; 3])], ["sliding_window_pattern", "3 values for 2 layers"]),
        (vec![window.clone(), kind("none"), float("rope.freq_base_swa", -2.0)], ["freq_base_swa", "-2"]),
        (vec![float("final_logit_softcapping", 30.0)], ["final_logit_softcapping", "30"]),
    ] {
        let error = header(&more).unwrap_err();
        assert!(parts.iter().all(|p| error.contains(p)) && error.contains("header.gguf"), "{error}: {parts:?}");
    }
}
