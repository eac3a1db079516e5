//! Qwen2-VL and Qwen2.5-VL against transformers in float32: several pictures in a prompt, positions of three numbers,
//! eviction under them, sizes, and files that are wrong (`testdata/scripts/qwen_vl.py`).

#[path = "../../examples/golden/mod.rs"]
mod golden;
mod mmproj_file;

use ecokv::cache::{Kept, KvCache, KvType, SlotRows};
use ecokv::gguf::{GgufFile, Value};
use ecokv::model::{Decoder, ImageLimits, Logits, VisionTower};
use ecokv::ops::Compute;
use ecokv::ops::rope::Position;
use ecokv::{Engine, Eviction, Prompt, Session, SessionOptions, argmax};
use ecokv_core::{LayerBudget, methods};
use golden::{CASES, Case, Golden, options, relative, rows, testdata};
use mmproj_file::Mmproj;

/// Largest relative error behind a vision tower.
const VISION: f32 = 1e-4;

/// As in the script. The first picture must be enlarged.
const PROMPT: &str = "<__media__><|im_start|>user\nThe first was a dot.<__media__> Then<__media__>\
                      What is in the image?<|im_end|>\n<|im_start|>assistant\n";

fn cases() -> impl Iterator<Item = (&'static Case, Engine, Golden)> {
    CASES
        .iter()
        .filter(|c| c.folder.starts_with("qwen2") && !c.pictures.is_empty())
        .map(|c| (c, c.engine(2).unwrap(), Golden::load(&format!("models/{}/many.safetensors", c.folder))))
}

fn prompt(engine: &Engine, golden: &Golden) -> Prompt {
    Prompt::raw(engine, PROMPT, &[0, 1, 2].map(|i| golden.image(&format!("{i}.image")))).unwrap()
}

#[test]
fn several_pictures_match_transformers() {
    for (case, engine, golden) in cases() {
        let embeds: Vec<f32> =
            (0..3).flat_map(|i| rows(&engine, &golden.image(&format!("{i}.image"))).unwrap()).collect();
        let error = relative(&embeds, golden.get("image_embeds"));
        println!("{} image embeddings: {error:.1e}", case.family);
        assert!(error < VISION, "{}: {error}", case.family);

        let prompt = prompt(&engine, &golden);
        let pad = engine.tokenizer().find_special("<|image_pad|>").unwrap();
        let want: Vec<_> = golden.ids("input_ids").into_iter().map(|id| (id != pad).then_some(id)).collect();
        assert_eq!(prompt.ids().collect::<Vec<_>>(), want, "{}", case.family);

        let mut session = Session::new(&engine, options()).unwrap();
        let logits = session.prefill_all_logits(&prompt).unwrap();
        let mut error = relative(&logits, golden.get("logits"));
        let n_vocab = engine.config().n_vocab;
        let mut last = logits[logits.len() - n_vocab..].to_vec();
        for (want, &id) in golden.get("gen_logits").chunks(n_vocab).zip(&golden.ids("gen_ids")) {
            assert_eq!(argmax(&last), id, "{}", case.family);
            last = session.decode(id).unwrap().to_vec();
            error = error.max(relative(&last, want));
        }
        println!("{} logits: {error:.1e}", case.family);
        assert!(error < VISION, "{}: {error}", case.family);
    }
}

/// Positions, and the logits when exactly the rows are evicted that a mask hides from the generated tokens.
#[test]
fn evicted_rows_are_masked_rows() {
    for (case, engine, golden) in cases() {
        let file = GgufFile::open(&testdata(&format!("models/{}/model-f32.gguf", case.folder))).unwrap();
        let (decoder, cx) = (Decoder::load(&file).unwrap(), Compute::new(2).unwrap());
        let c = decoder.config();
        let (ids, axes) = (golden.ids("input_ids"), golden.ids("position_ids"));
        let n = ids.len();
        let position = |i: usize| Position { index: i as u32, axes: [axes[i], axes[n + i], axes[2 * n + i]] };
        let positions: Vec<Position> = (0..n).map(position).collect();
        let pad = engine.tokenizer().find_special("<|image_pad|>").unwrap();
        let mut x = vec![0.0; n * c.n_embd];
        decoder.embed(&ids, &mut x);
        let mut recorded = golden.get("image_embeds").chunks(c.n_embd);
        for (x, _) in x.chunks_mut(c.n_embd).zip(&ids).filter(|(_, id)| **id == pad) {
            x.copy_from_slice(recorded.next().unwrap());
        }
        let hidden = golden.ids("hidden");
        let kept: Vec<u32> = (0..n as u32).filter(|&i| hidden[i as usize] == 0).collect();
        let mut cache = KvCache::new(c.n_layers, c.n_kv_heads, c.head_dim, KvType::F32);
        let logits = decoder.prefill(&cx, &mut x, &positions, &mut cache, Logits::All, |s| {
            s.cache.fill(&cx, s.rows, |_| Kept::Rows(kept.clone()), 8, &SlotRows::default());
            Ok(())
        });
        let mut error = relative(&logits.unwrap(), golden.get("logits"));
        let next = axes.iter().max().unwrap() + 1;
        let mut state = decoder.decode_state();
        let steps = golden.ids("gen_ids").into_iter().zip(golden.get("hidden_logits").chunks(c.n_vocab));
        for (step, (id, want)) in (0..).zip(steps) {
            let position = Position { index: n as u32 + step, axes: [next + step; 3] };
            error = error.max(relative(decoder.decode(&cx, id, position, &mut cache, &mut state), want));
        }
        println!("{} with hidden rows: {error:.1e}", case.family);
        assert!(error < VISION, "{}: {error}", case.family);
    }
}

#[test]
fn a_budget_that_holds_everything_changes_nothing() {
    for (case, engine, golden) in cases() {
        let prompt = prompt(&engine, &golden);
        let run = |eviction| {
            let mut session = Session::new(&engine, SessionOptions { eviction, ..options() }).unwrap();
            let mut all = session.prefill(&prompt).unwrap();
            golden.ids("gen_ids").iter().for_each(|&id| all.extend_from_slice(session.decode(id).unwrap()));
            all
        };
        let full = run(None);
        for method in methods::ALL.iter().filter(|m| !m.policy.needs().head_budgets) {
            let budget = prompt.n_tokens() as u32;
            let eviction = Eviction { policy: method.policy, layer_budget: method.layer_budget, budget };
            assert_eq!(run(Some(eviction)), full, "{} {}", case.family, method.name);
        }
    }
}

/// A picture advances the rotation by its longer side only: a later prompt must go on from there.
#[test]
fn a_prompt_after_a_picture_continues_its_positions() {
    for (case, engine, golden) in cases() {
        let (before, after) = PROMPT.rsplit_once("<__media__>").unwrap();
        let images = [0, 1, 2].map(|i| golden.image(&format!("{i}.image")));
        let mut session = Session::new(&engine, options()).unwrap();
        session.prefill(&Prompt::raw(&engine, &format!("{before}<__media__>"), &images).unwrap()).unwrap();
        let logits = session.prefill(&Prompt::raw(&engine, after, &[]).unwrap()).unwrap();
        let want = golden.get("logits");
        let error = relative(&logits, &want[want.len() - logits.len()..]);
        assert!(error < VISION, "{}: {error}", case.family);
    }
}

#[test]
fn going_back_stops_at_a_picture() {
    for (case, engine, golden) in cases() {
        let prompt = prompt(&engine, &golden);
        let n = prompt.n_tokens();
        let mut session = Session::new(&engine, options()).unwrap();
        let want = session.prefill(&prompt).unwrap();
        session.decode(300).unwrap();
        // Without the text behind the last picture, and without one of its rows.
        let ids: Vec<_> = prompt.ids().collect();
        let end = ids.iter().rposition(Option::is_none).unwrap() + 1;
        let error = session.rewind(end - 1).unwrap_err().to_string();
        assert!(error.contains(&end.to_string()), "{error}");
        session.rewind(end).unwrap();
        let after = session.prefill(&Prompt::tokens(&engine, ids[end..].iter().flatten().copied().collect()).unwrap());
        assert!(relative(&after.unwrap(), &want) < VISION, "{}", case.family);
        session.rewind(n).unwrap();
    }
}

#[test]
fn every_method_evicts_and_decodes() {
    for (case, engine, golden) in cases() {
        let prompt = prompt(&engine, &golden);
        for method in methods::ALL.iter().filter(|m| !m.policy.needs().head_budgets) {
            let eviction = Eviction { policy: method.policy, layer_budget: LayerBudget::Uniform, budget: 40 };
            let eviction = Some(eviction);
            let mut session = Session::new(&engine, SessionOptions { eviction, ..options() }).unwrap();
            session.prefill(&prompt).unwrap();
            assert!(session.stats().kept.iter().flatten().all(|&n| n <= 80), "{}", method.name);
            let logits = session.decode(300).unwrap();
            assert!(logits.iter().all(|l| l.is_finite()), "{} {}", case.family, method.name);
        }
    }
}

/// Sizes that transformers brings some hundred shapes to; a block is 16 pixels wide.
#[test]
fn sizes_are_those_of_transformers() {
    for (case, engine, golden) in cases() {
        let vision = engine.vision().unwrap();
        let shapes = golden.ids("resized");
        for shape in shapes.chunks(4) {
            let [w, h, wide, high] = [shape[0], shape[1], shape[2], shape[3]];
            let cost = vision.cost(w, h, &ImageLimits::default()).unwrap();
            let want = ((wide / 16 * high / 16) as usize, wide.max(high));
            assert_eq!((cost.n_tokens, cost.longest_edge), want, "{} {w}x{h}", case.family);
        }
        assert!(shapes.len() > 1000);
    }
}

#[test]
fn limits_are_kept() {
    let (_, engine, _) = cases().next().unwrap();
    let vision = engine.vision().unwrap();
    let none = ImageLimits::default();
    let cost = |limits: ImageLimits| vision.cost(640, 480, &limits).map(|c| (c.n_tokens, c.longest_edge));
    // 640x480 are 40x30 blocks. For a limit of 300 the shape 4:3 shrinks by a half: 20x15.
    assert_eq!(cost(none).unwrap(), (1200, 640));
    assert_eq!(cost(ImageLimits { max_tokens: Some(300), ..none }).unwrap(), (300, 320));
    assert_eq!(cost(ImageLimits { max_tokens: Some(1), ..none }).unwrap(), (1, 16));
    // The longest edge is a multiple of 16 as well.
    let (tokens, edge) = cost(ImageLimits { longest_edge: Some(330), ..none }).unwrap();
    assert!(edge == 320 && tokens >= 280, "{tokens} {edge}");
    // More than the model's own maximum of 1280 on request.
    let many = ImageLimits { max_tokens: Some(5000), ..none };
    assert_eq!(vision.cost(1600, 800, &many).unwrap().n_tokens, 100 * 50);
    for limits in [ImageLimits { max_tokens: Some(0), ..none }, ImageLimits { longest_edge: Some(15), ..none }] {
        let error = cost(limits).unwrap_err().to_string();
        assert!(error.contains("640x480") && error.contains("at least 1 tokens"), "{error}");
    }
    let tall = vision.cost(10, 2001, &none).unwrap_err().to_string();
    assert!(tall.contains("10x2001") && tall.contains("200"), "{tall}");
}

#[test]
fn wrong_projector_files_are_refused() {
    let int = Value::Int;
    let refused = |change: &dyn Fn(&mut Mmproj), parts: &[&str]| {
        let mut file = Mmproj::of("qwen25vl");
        change(&mut file);
        let error = VisionTower::load(&file.build(), 64).err().expect("must be refused").to_string();
        assert!(parts.iter().all(|p| error.contains(p)), "{error}: {parts:?}");
    };
    refused(&|f| drop(f.keys.remove("clip.vision.n_wa_pattern")), &["clip.vision.n_wa_pattern", "missing"]);
    refused(&|f| f.set("clip.vision.n_wa_pattern", int(0)), &["n_wa_pattern", "0"]);
    refused(&|f| f.set("clip.vision.window_size", int(15)), &["window_size", "15", "2x2"]);
    refused(&|f| f.set("clip.vision.spatial_merge_size", int(0)), &["spatial_merge_size", "0"]);
    refused(&|f| f.set("clip.vision.spatial_merge_size", int(3)), &["mm.0.weight", "288"]);
    refused(&|f| f.set("clip.vision.image_max_pixels", int(255)), &["image_max_pixels", "255", "1024"]);
    refused(&|f| f.set("clip.vision.attention.head_count", int(16)), &["head_count", "16", "multiple of 4"]);
    refused(&|f| f.set("clip.projector_type", Value::Str("qwen9vl".into())), &["qwen9vl", "qwen2.5vl_merger"]);
    for name in ["v.patch_embd.weight.1", "v.post_ln.weight", "v.blk.0.ffn_gate.weight", "v.blk.3.attn_q.bias"] {
        refused(&|f| f.remove_tensor(name), &[name]);
    }
    // An older projector has biases in its norms, which this one lacks.
    refused(&|f| f.set("clip.projector_type", Value::Str("qwen2vl_merger".into())), &["v.blk.0.ln1.bias"]);
    let error = VisionTower::load(&Mmproj::of("qwen2vl").build(), 65).err().unwrap().to_string();
    assert!(error.contains("64") && error.contains("65"), "{error}");
}

#[test]
fn wrong_sections_are_refused() {
    let bytes = std::fs::read(testdata("models/qwen2vl/model-f32.gguf")).unwrap();
    let key = b"qwen2vl.rope.dimension_sections";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap();
    // Behind the key: the types of the value and of its elements, their number, then the elements.
    let first = at + key.len() + 4 + 4 + 8;
    let refused = |change: &dyn Fn(&mut Vec<u8>), parts: &[&str]| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        let file = GgufFile::from_static("sections.gguf", bytes.leak()).unwrap();
        let error = Decoder::load(&file).err().expect("must be refused").to_string();
        let parts = [&["sections.gguf", "qwen2vl.rope.dimension_sections"], parts].concat();
        assert!(parts.iter().all(|p| error.contains(p)), "{error}: {parts:?}");
    };
    refused(&|b| b[at + key.len() - 1] = b'z', &["missing"]);
    refused(&|b| b[first] = 3, &["[3, 3, 3, 0]", "head size 16"]);
    refused(&|b| b[first..first + 4].fill(0xff), &["[-1, 3, 3, 0]"]);
    refused(&|b| b[first + 12] = 1, &["[2, 3, 3, 1]"]);
}
