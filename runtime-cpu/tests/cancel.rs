//! Breaking off a prefill, and what the session is afterwards.

use std::ops::ControlFlow;
use std::path::Path;

use ecokv::cache::KvType;
use ecokv::template::Message;
use ecokv::{Engine, EngineOptions, Error, Prompt, Session, SessionOptions};

#[test]
fn a_cancelled_session_is_empty() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/tinyvlm-q8_0.gguf");
    let engine = Engine::open(&model, None, EngineOptions { n_threads: 1, ..EngineOptions::default() }).unwrap();
    let prompt = Prompt::messages(&engine, &[Message::text("user", "How many red shapes?")], &[]).unwrap();
    let options = SessionOptions { n_ctx: 0, n_generate: 4, kv_type: KvType::F32, eviction: None };
    let mut session = Session::new(&engine, options).unwrap();
    let n_layers = engine.config().n_layers;
    let mut seen = Vec::new();
    let first = session
        .prefill_with(&prompt, &mut |done, all| {
            seen.push((done, all));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen, (1..=n_layers).map(|done| (done, n_layers)).collect::<Vec<_>>());
    assert!(session.stats().kv_bytes > 0);
    let result = session.prefill_with(&prompt, &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    assert_eq!(session.stats().kv_bytes, 0);
    assert_eq!(session.prefill(&prompt).unwrap(), first);
}
