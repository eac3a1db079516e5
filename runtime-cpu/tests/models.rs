//! Whole models against transformers in float32 (and kvpress for eviction): tiny random weights, recorded outputs.

#[path = "../../examples/golden/mod.rs"]
mod golden;

use ecokv::cache::{Kept, KvCache, KvType, SlotRows};
use ecokv::gguf::GgufFile;
use ecokv::model::{Decoder, Logits};
use ecokv::ops::attention::{Mask, column_sums};
use ecokv::ops::rope::Position;
use ecokv::ops::{Compute, Precision};
use ecokv::{Engine, EngineOptions, Eviction, Prompt, Session, SessionOptions, argmax};
use ecokv_core::{LayerBudget, Policy, methods};
use golden::{Golden, interleaved, relative, testdata};

/// Largest relative error of a float32 language model.
const LM: f32 = 1e-5;
/// The same with a vision tower in front, or on dequantised weights.
const VISION: f32 = 1e-4;

fn engine(model: &str, mmproj: Option<&str>, n_threads: usize) -> Engine {
    let mmproj = mmproj.map(testdata);
    let options = EngineOptions { n_threads, precision: Precision::Float, ..EngineOptions::default() };
    Engine::open(&testdata(model), mmproj.as_deref(), options).unwrap()
}

fn options(kv_type: KvType, eviction: Option<Eviction>) -> SessionOptions {
    SessionOptions { n_ctx: 0, n_generate: 16, kv_type, eviction }
}

#[test]
fn language_models_match_transformers() {
    for name in ["llama", "smollm2"] {
        let golden = Golden::load(&format!("models/{name}/golden.safetensors"));
        let file = GgufFile::open(&testdata(&format!("models/{name}/model-f32.gguf"))).unwrap();
        let decoder = Decoder::load(&file).unwrap();
        let cx = Compute::new(2).unwrap();
        let c = decoder.config().clone();
        let ids = golden.ids("input_ids");
        let mut x = vec![0.0; ids.len() * c.n_embd];
        decoder.embed(&ids, &mut x);
        let mut cache = KvCache::new(c.n_layers, c.n_kv_heads, c.head_dim, KvType::F32);
        let positions: Vec<Position> = (0..ids.len() as u32).map(Position::text).collect();
        let logits = decoder
            .prefill(&cx, &mut x, &positions, &mut cache, Logits::All, |s| {
                let rows = |all: &[f32]| -> Vec<f32> {
                    let plane = s.rows.capacity() * c.head_dim;
                    all.chunks(plane).flat_map(|head| head[..ids.len() * c.head_dim].to_vec()).collect()
                };
                let k = interleaved(golden.get(&format!("k.{}", s.layer)), c.head_dim);
                let error = relative(&rows(s.rows.all_keys()), &k);
                assert!(error < LM, "{name} layer {} keys: {error}", s.layer);
                let error = relative(&rows(s.rows.all_values()), golden.get(&format!("v.{}", s.layer)));
                assert!(error < LM, "{name} layer {} values: {error}", s.layer);
                // The recorded attention, [n_heads][n][n], summed over queries and over the group.
                let (n, attention) = (ids.len(), golden.get(&format!("attn.{}", s.layer)));
                let sums = column_sums(&cx, s.q, n, s.rows, Mask::Causal, c.attention_scale);
                for (h, heads) in attention.chunks(c.group() * n * n).enumerate() {
                    let mut want = vec![0.0; n];
                    heads.chunks(n).for_each(|row| want.iter_mut().zip(row).for_each(|(w, a)| *w += a));
                    let error = relative(&sums[h * s.rows.capacity()..][..n], &want);
                    assert!(error < LM, "{name} layer {} head {h} attention: {error}", s.layer);
                }
                let rows = &*s.rows;
                s.cache.fill(&cx, rows, |h| Kept::Range(0..rows.len(h) as u32), 8, &SlotRows::default());
                Ok(())
            })
            .unwrap();
        let error = relative(&logits, golden.get("logits"));
        println!("{name} logits: {error:.1e}");
        assert!(error < LM, "{name} logits: {error}");
        let mut state = decoder.decode_state();
        let mut last = logits[(ids.len() - 1) * c.n_vocab..].to_vec();
        for (step, (want, &id)) in golden.get("gen_logits").chunks(c.n_vocab).zip(&golden.ids("gen_ids")).enumerate() {
            assert_eq!(argmax(&last), id, "{name} step {step}");
            last = decoder.decode(&cx, id, Position::text((ids.len() + step) as u32), &mut cache, &mut state).to_vec();
            let error = relative(&last, want);
            assert!(error < LM, "{name} step {step}: {error}");
        }
    }
}

#[test]
fn every_block_format_in_one_model_matches_float_arithmetic() {
    let golden = Golden::load("models/llama-mixedq/golden.safetensors");
    let want = golden.get("logits_dequant");
    let ids = golden.ids("input_ids");
    let run = |precision| {
        let options_ = EngineOptions { n_threads: 2, precision, ..EngineOptions::default() };
        let engine = Engine::open(&testdata("models/llama-mixedq/model.gguf"), None, options_).unwrap();
        let mut session = Session::new(&engine, options(KvType::F32, None)).unwrap();
        session.prefill_all_logits(&Prompt::tokens(&engine, ids.clone()).unwrap()).unwrap()
    };
    let error = relative(&run(Precision::Float), want);
    println!("mixed formats, float: {error:.1e}");
    assert!(error < VISION, "float: {error}");
    let error = relative(&run(Precision::Int16), want);
    println!("mixed formats, int16: {error:.1e}");
    assert!(error < 5e-4, "int16: {error}");
    // Activations of 8 bits: llama.cpp is 3 % of the largest logit away from float arithmetic on this model.
    let int8 = run(Precision::Int8);
    let error = relative(&int8, want);
    println!("mixed formats, int8: {error:.1e}");
    assert!(error < 0.04, "int8: {error}");
    let n_vocab = int8.len() / ids.len();
    let agree = int8.chunks(n_vocab).zip(want.chunks(n_vocab)).filter(|(a, b)| argmax(a) == argmax(b)).count();
    assert!(agree + 2 >= ids.len(), "{agree} of {} argmaxes", ids.len());
}

/// kvpress's eviction of 60 % of a prompt of 120 tokens, then 12 forced tokens at their original positions.
#[test]
fn decoding_after_eviction_matches_kvpress() {
    let policy = |name: &str| methods::by_name(name).unwrap().policy;
    let cases: [(&str, Option<Policy>); 9] = [
        ("none", None),
        ("knorm", Some(policy("knorm"))),
        ("keydiff", Some(policy("keydiff"))),
        ("streamingllm", Some(policy("streaming"))),
        ("snapkv", Some(policy("snapkv").with_window(16))),
        ("adakv_snapkv", Some(policy("adakv").with_window(16))),
        ("tova", Some(policy("tova"))),
        // The recording averages over 64 future positions, the method over its default of 512.
        ("expected", None),
        ("criticalkv_snapkv", Some(policy("criticalkv").with_window(16))),
    ];
    let engine = engine("models/smollm2/model-f32.gguf", None, 1);
    for (name, policy) in cases {
        let golden = Golden::load(&format!("evict_decode/{name}.safetensors"));
        let ids = golden.ids("input_ids");
        let replay = Replay { engine: &engine, golden: &golden, ids: &ids };
        let error = replay.masked();
        println!("{name}, rows of the golden masks: {error:.1e}");
        assert!(error < VISION, "{name} with the golden masks: {error}");
        if let Some(policy) = policy {
            let budget = (ids.len() as f64 * (1.0 - 0.6)) as u32;
            let eviction = Eviction { policy, layer_budget: LayerBudget::Uniform, budget };
            let error = replay.evicted(eviction, name);
            println!("{name}, rows chosen here: {error:.1e}");
            assert!(error < VISION, "{name}: {error}");
        }
    }
}

struct Replay<'a> {
    engine: &'a Engine,
    golden: &'a Golden,
    ids: &'a [u32],
}

impl Replay<'_> {
    fn mask(&self, layer: usize, h: usize) -> Vec<u32> {
        match self.golden.0.get(&format!("mask.{layer}")) {
            None => (0..self.ids.len() as u32).collect(),
            Some((shape, mask)) => {
                let row = &mask[h * shape[1]..(h + 1) * shape[1]];
                (0..).zip(row).filter(|(_, m)| **m != 0.0).map(|(i, _)| i).collect()
            }
        }
    }

    /// Keeps what the golden mask keeps; returns the largest relative error of the logits.
    fn masked(&self) -> f32 {
        let file = GgufFile::open(&testdata("models/smollm2/model-f32.gguf")).unwrap();
        let decoder = Decoder::load(&file).unwrap();
        let cx = Compute::new(2).unwrap();
        let c = decoder.config();
        let mut cache = KvCache::new(c.n_layers, c.n_kv_heads, c.head_dim, KvType::F32);
        let mut x = vec![0.0; self.ids.len() * c.n_embd];
        decoder.embed(self.ids, &mut x);
        let positions: Vec<Position> = (0..self.ids.len() as u32).map(Position::text).collect();
        let logits = decoder.prefill(&cx, &mut x, &positions, &mut cache, Logits::Last, |s| {
            s.cache.fill(&cx, s.rows, |h| Kept::Rows(self.mask(s.layer, h)), 4, &SlotRows::default());
            Ok(())
        });
        let mut worst = relative(&logits.unwrap(), self.golden.get("prompt_last_logits"));
        let mut state = decoder.decode_state();
        for (step, (&id, want)) in
            self.golden.ids("forced").iter().zip(self.golden.get("step_logits").chunks(c.n_vocab)).enumerate()
        {
            let position = Position::text((self.ids.len() + step) as u32);
            worst = worst.max(relative(decoder.decode(&cx, id, position, &mut cache, &mut state), want));
        }
        worst
    }

    /// Evicts with our policy, checks that the same rows stay, and returns the largest relative error of the logits.
    fn evicted(&self, eviction: Eviction, name: &str) -> f32 {
        // Layer 0 of knorm has real ties: equal tokens have equal key norms there, and the reference breaks them at will.
        let ties = name == "knorm";
        let mut session = Session::new(self.engine, options(KvType::F32, Some(eviction))).unwrap();
        let prompt = Prompt::tokens(self.engine, self.ids.to_vec()).unwrap();
        let mut worst = relative(&session.prefill(&prompt).unwrap(), self.golden.get("prompt_last_logits"));
        for (l, layer) in session.cache().layers().iter().enumerate() {
            for h in 0..layer.n_kv_heads() {
                if !ties || l > 0 {
                    assert_eq!(layer.positions(h), self.mask(l, h), "{name} layer {l} head {h}");
                }
            }
        }
        if ties {
            return worst;
        }
        let n_vocab = self.engine.config().n_vocab;
        for (&id, want) in self.golden.ids("forced").iter().zip(self.golden.get("step_logits").chunks(n_vocab)) {
            worst = worst.max(relative(session.decode(id).unwrap(), want));
        }
        worst
    }
}

#[test]
fn a_budget_that_holds_everything_changes_nothing() {
    let golden = Golden::load("evict_decode/none.safetensors");
    let ids = golden.ids("input_ids");
    let engine = engine("models/smollm2/model-f32.gguf", None, 2);
    for kv_type in [KvType::F32, KvType::F16] {
        let run = |eviction| {
            let mut session = Session::new(&engine, options(kv_type, eviction)).unwrap();
            let mut all = session.prefill(&Prompt::tokens(&engine, ids.clone()).unwrap()).unwrap();
            golden.ids("forced").iter().for_each(|&id| all.extend_from_slice(session.decode(id).unwrap()));
            all
        };
        let full = run(None);
        // A profile of the heads comes from outside.
        for method in methods::ALL.iter().filter(|m| !m.policy.needs().head_budgets) {
            let eviction = Eviction { policy: method.policy, layer_budget: method.layer_budget, budget: 120 };
            assert_eq!(run(Some(eviction)), full, "{}", method.name);
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let golden = Golden::load("models/llama-mixedq/golden.safetensors");
    let run = |n_threads| {
        let options_ = EngineOptions { n_threads, precision: Precision::Int8, ..EngineOptions::default() };
        let engine = Engine::open(&testdata("models/llama-mixedq/model.gguf"), None, options_).unwrap();
        let mut session = Session::new(&engine, options(KvType::F16, None)).unwrap();
        let prompt = Prompt::tokens(&engine, golden.ids("input_ids")).unwrap();
        let mut all = session.prefill(&prompt).unwrap();
        (0..8).for_each(|id| all.extend_from_slice(session.decode(id).unwrap()));
        all
    };
    let one = run(1);
    assert_eq!(run(2), one);
    assert_eq!(run(3), one);
}

#[test]
fn a_prompt_in_two_parts_equals_one() {
    let golden = Golden::load("models/llama/golden.safetensors");
    let ids = golden.ids("input_ids");
    let engine = engine("models/llama/model-f32.gguf", None, 2);
    let mut session = Session::new(&engine, options(KvType::F32, None)).unwrap();
    session.prefill(&Prompt::tokens(&engine, ids[..11].to_vec()).unwrap()).unwrap();
    let logits = session.prefill(&Prompt::tokens(&engine, ids[11..].to_vec()).unwrap()).unwrap();
    let want = &golden.get("logits")[(ids.len() - 1) * logits.len()..];
    assert!(relative(&logits, want) < LM);
}

#[test]
fn every_method_keeps_its_budget_and_decodes() {
    let golden = Golden::load("evict_decode/none.safetensors");
    let ids = golden.ids("input_ids");
    let engine = engine("models/smollm2/model-f32.gguf", None, 2);
    for method in methods::ALL.iter().filter(|m| !m.policy.needs().head_budgets) {
        let eviction = Eviction { policy: method.policy, layer_budget: method.layer_budget, budget: 40 };
        let mut session = Session::new(&engine, options(KvType::F16, Some(eviction))).unwrap();
        session.prefill(&Prompt::tokens(&engine, ids.clone()).unwrap()).unwrap();
        let kept: usize = session.stats().kept.iter().flatten().sum();
        let n_heads = engine.config().n_layers * engine.config().n_kv_heads;
        if method.name != "pyramidkv-reference" {
            assert_eq!(kept, 40 * n_heads, "{}", method.name);
        }
        // Keys and values of 16 halves each and a position of 4 bytes; a slot has a bias of 4 bytes too.
        let slots = if method.name == "retentivekv" { 8 * n_heads } else { 0 };
        assert_eq!(session.cache().bytes(), kept * (2 * 16 * 2 + 4) + 4 * slots, "{}", method.name);
        let logits = session.decode(300).unwrap();
        assert!(logits.iter().all(|l| l.is_finite()), "{}", method.name);
    }
}

#[test]
fn a_route_of_one_method_is_that_method() {
    let golden = Golden::load("evict_decode/none.safetensors");
    let ids = golden.ids("input_ids");
    let engine = engine("models/smollm2/model-f32.gguf", None, 2);
    let eviction = |name: &str| {
        let policy = methods::by_name(name).unwrap().policy;
        Some(Eviction { policy, layer_budget: LayerBudget::Uniform, budget: 40 })
    };
    let run = |name: &str, route: Option<&str>| {
        let mut session = Session::new(&engine, options(KvType::F16, eviction(name))).unwrap();
        if let Some(text) = route {
            session.set_route(text).unwrap();
        }
        session.prefill(&Prompt::tokens(&engine, ids.clone()).unwrap()).unwrap();
        let logits = session.decode(300).unwrap().to_vec();
        let lens: Vec<usize> = session.cache().layers().iter().map(|l| l.len(0)).collect();
        (logits, lens)
    };
    let route = "ecokv-route 1\nlayers 2\nheads 2\n0 knorm\n1 knorm\n";
    assert_eq!(run("ecokv", Some(route)), run("knorm", None));
    let mixed = "ecokv-route 1\nlayers 2\nheads 2\n0 streaming 30\n1 h2o 50\n";
    // And the decoded token.
    assert_eq!(run("ecokv", Some(mixed)).1, [31, 51]);
    let mut session = Session::new(&engine, options(KvType::F16, eviction("ecokv"))).unwrap();
    let error = session.set_route("ecokv-route 1\nlayers 3\nheads 2\n").unwrap_err();
    assert_eq!(error.to_string(), "route, line 2: made for a model with 3, this one has 2");
}

#[test]
fn a_profile_shares_the_budget_between_heads() {
    let golden = Golden::load("evict_decode/none.safetensors");
    let engine = engine("models/smollm2/model-f32.gguf", None, 2);
    let method = methods::by_name("sparsemm").unwrap();
    let policy = method.policy.with_window(8);
    let eviction = Some(Eviction { policy, layer_budget: LayerBudget::Uniform, budget: 28 });
    let prompt = Prompt::tokens(&engine, golden.ids("input_ids")).unwrap();
    let mut session = Session::new(&engine, options(KvType::F16, eviction)).unwrap();
    let error = session.prefill(&prompt).unwrap_err();
    assert!(error.to_string().contains("a profile of head scores"), "{error}");
    session.set_head_profile(vec![4.0, 3.0, 2.0, 1.0]).unwrap();
    session.prefill(&prompt).unwrap();
    // 8 of the window and 2 even; the other 4 x 18 in proportion 4 : 3 : 2 : 1, which SparseMM's code rounds to 29, 22, 14
    // and 7. Ours rounds the running sum, so that the total is always exact.
    let kept = session.stats().kept.concat();
    assert_eq!(kept.iter().sum::<usize>(), 4 * 28);
    assert!(kept.iter().zip([39, 32, 24, 17]).all(|(&n, want)| n.abs_diff(want) <= 1), "{kept:?}");
    assert!(session.set_head_profile(vec![1.0; 3]).is_err());
}
