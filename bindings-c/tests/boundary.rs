//! What crosses the interface: the same numbers as in Rust, and no panic.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use ecokv::cache::KvType;
use ecokv::image::{Limits, RgbImage};
use ecokv::{Engine, EngineOptions, Error, Eviction, Prompt, Session, SessionOptions, methods};
use ecokv_c::core::*;
use ecokv_c::*;

const QUESTION: &str = "how much is the total?";

fn models(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models").join(name)
}

/// The logits after an image question with a pruned cache, whether the image comes as a file or as pixels.
#[test]
fn logits_are_those_of_rust() {
    let (model, mmproj) = (models("tinyvlm-q8_0.gguf"), models("mmproj-cls-f16.gguf"));
    let png = std::fs::read(models("demo.png")).unwrap();
    let image = RgbImage::from_encoded(&png, &Limits::default()).unwrap();
    let engine = Engine::open(&model, Some(&mmproj), EngineOptions { n_threads: 2, ..Default::default() }).unwrap();
    let method = methods::by_name("ecokv").unwrap();
    let eviction = Eviction { policy: method.policy.with_sinks(2), layer_budget: method.layer_budget, budget: 30 };
    let options = SessionOptions { n_ctx: 0, n_generate: 0, kv_type: KvType::F32, eviction: Some(eviction) };
    let prompt = Prompt::chat(&engine, QUESTION, std::slice::from_ref(&image)).unwrap();
    let mut session = Session::new(&engine, options).unwrap();
    session.prefill(&prompt).unwrap();
    let expected = session.decode(5).unwrap().to_vec();

    let path = |p: &Path| std::ffi::CString::new(p.to_str().unwrap()).unwrap();
    let (model, mmproj) = (path(&model), path(&mmproj));
    for as_pixels in [false, true] {
        // SAFETY: zeros are parameters; what they point to lives in this function.
        let logits = unsafe {
            let mut p: ecokv_engine_params_t = std::mem::zeroed();
            (p.struct_size, p.n_threads) = (size_of_val(&p) as u32, 1);
            (p.model_path, p.mmproj_path) = (model.as_ptr(), mmproj.as_ptr());
            let (mut e, mut prompt, mut session) = (null_mut(), null_mut(), null_mut());
            assert_eq!(ecokv_engine_open(&p, &mut e), ECOKV_OK);
            assert_eq!(ecokv_prompt_new(e, ECOKV_PROMPT_CHAT, &mut prompt), ECOKV_OK);
            let status = match as_pixels {
                true => {
                    let pixels = image.pixels();
                    ecokv_prompt_add_pixels(prompt, image.width(), image.height(), pixels.as_ptr(), pixels.len())
                }
                false => ecokv_prompt_add_image(prompt, png.as_ptr(), png.len()),
            };
            assert_eq!(status, ECOKV_OK);
            assert_eq!(ecokv_prompt_add_text(prompt, QUESTION.as_ptr().cast(), QUESTION.len()), ECOKV_OK);
            let mut policy: ecokv_policy_t = std::mem::zeroed();
            policy.struct_size = size_of_val(&policy) as u32;
            (policy.set, policy.sinks) = (ECOKV_SET_SINKS, 2);
            policy.method.iter_mut().zip(b"ecokv").for_each(|(to, &from)| *to = from as std::ffi::c_char);
            let mut s: ecokv_session_params_t = std::mem::zeroed();
            (s.struct_size, s.budget, s.kv_type) = (size_of_val(&s) as u32, 30, ECOKV_KV_F32);
            s.policy = &policy;
            assert_eq!(ecokv_session_new(e, &s, &mut session), ECOKV_OK);
            assert_eq!(ecokv_session_prefill(session, prompt, null()), ECOKV_OK);
            assert_eq!(ecokv_session_decode(session, 5), ECOKV_OK);
            let (mut logits, mut n) = (vec![0.0; expected.len()], 0);
            assert_eq!(ecokv_session_logits(session, logits.as_mut_ptr(), logits.len(), &mut n), ECOKV_OK);
            assert_eq!(n, expected.len());
            ecokv_engine_free(e);
            ecokv_session_free(session);
            ecokv_prompt_free(prompt);
            logits
        };
        assert!(logits.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()), "pixels: {as_pixels}");
    }
}

/// Every variant of the runtime's error has a number of its own.
#[test]
fn errors_have_their_numbers() {
    let text = String::new;
    let expected = [
        ("Io", Error::Io { path: PathBuf::new(), source: std::io::ErrorKind::NotFound.into() }, 200),
        ("Gguf", Error::Gguf { file: text(), what: text() }, 201),
        ("Metadata", Error::Metadata { file: text(), key: text(), what: text() }, 202),
        ("Tensor", Error::Tensor { file: text(), tensor: text(), what: text() }, 203),
        ("Image", Error::Image { what: text() }, 204),
        ("Threads", Error::Threads { n_threads: 1, what: text() }, 205),
        ("Model", Error::Model { file: text(), what: text() }, 206),
        ("Prompt", Error::Prompt { what: text() }, 207),
        ("ContextFull", Error::ContextFull { prompt: 1, generate: 1, context: 1 }, 208),
        ("Rewind", Error::Rewind { to: 1, first: 2, last: 3 }, 211),
        ("Dispatch", Error::Dispatch { name: text(), available: Vec::new() }, 212),
        ("KvType", Error::KvType { kv_type: "q8_0", head_dim: 20, of: 32 }, 213),
        ("Cancelled", Error::Cancelled, 9),
        ("Route", ecokv_core::parse_route("", 1, &mut []).unwrap_err().into(), 209),
        ("Evict", ecokv_core::Error::BudgetTooSmall { protected: 2, budget: 1 }.into(), 102),
        ("Template", Error::Template { what: text() }, 210),
    ];
    // The compiler cannot tell: another crate has to expect more variants.
    let source = include_str!("../../runtime-cpu/src/error.rs");
    let variant = |line: &'static str| {
        let name = line.strip_prefix("    ")?.split(|c: char| !c.is_alphanumeric()).next()?;
        name.starts_with(|c: char| c.is_uppercase()).then_some(name)
    };
    let variants: Vec<&str> = source.lines().filter_map(variant).collect();
    assert_eq!(variants, expected.each_ref().map(|(name, _, _)| *name));
    for (name, error, number) in expected {
        assert_eq!(call::Refusal::from(error).status, number, "{name}");
    }
}

/// A panic inside becomes a status and a text; the next call is none the worse.
#[test]
fn panics_stop_at_the_boundary() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let status = call::run(|| panic!("a {} test", "deliberate"));
    std::panic::set_hook(hook);
    assert_eq!(status, ECOKV_BUG);
    // SAFETY: the text ends in NUL and lives until the next failure.
    let text = unsafe { CStr::from_ptr(ecokv_last_error()) }.to_str().unwrap();
    assert_eq!(text, "a bug in the library: a deliberate test");
    assert_eq!(call::run(|| Ok(())), ECOKV_OK);
}
