//! A decode step takes no memory once the session has decoded.

mod counting;

use std::path::Path;

use counting::measured;
use ecokv::cache::KvType;
use ecokv::template::Message;
use ecokv::{Engine, EngineOptions, Prompt, Session, SessionOptions};

#[test]
fn a_decode_step_allocates_nothing() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/tinyvlm-q8_0.gguf");
    for n_threads in [1, 2] {
        let engine = Engine::open(&model, None, EngineOptions { n_threads, ..EngineOptions::default() }).unwrap();
        let prompt = Prompt::messages(&engine, &[Message::text("user", "How many red shapes?")], &[]).unwrap();
        let options = SessionOptions { n_ctx: 0, n_generate: 100, kv_type: KvType::F16, eviction: None };
        let mut session = Session::new(&engine, options).unwrap();
        session.prefill(&prompt).unwrap();
        session.decode(1).unwrap();
        // Past 64 rows a head is cut in two.
        let ((), cost) = measured(|| {
            for i in 0..80 {
                session.decode(i % 7).unwrap();
            }
        });
        assert_eq!(cost.peak, 0, "{n_threads} threads");
    }
}
