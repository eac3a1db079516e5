//! A session that goes back does as if it had never been further.

use std::path::PathBuf;

use ecokv::{Engine, EngineOptions, Error, Eviction, Prompt, Session, SessionOptions, methods};

const PROMPT: [u32; 6] = [3, 1, 4, 1, 5, 9];
const OTHER: [u32; 4] = [2, 6, 5, 3];

#[test]
fn rewinding_forgets_steps_and_prompts() {
    let engine = engine();
    let fresh = |ids: &[u32]| -> Vec<Vec<f32>> {
        let mut session = Session::new(&engine, options(None)).unwrap();
        session.prefill(&tokens(&engine, &PROMPT)).unwrap();
        ids.iter().map(|&id| session.decode(id).unwrap().to_vec()).collect()
    };
    let mut session = Session::new(&engine, options(None)).unwrap();
    session.prefill(&tokens(&engine, &PROMPT)).unwrap();
    let bytes = session.cache().bytes();
    for ids in [[7, 8, 9], [9, 9, 2], [7, 8, 9]] {
        let steps: Vec<Vec<f32>> = ids.iter().map(|&id| session.decode(id).unwrap().to_vec()).collect();
        assert_eq!(steps, fresh(&ids));
        session.rewind(PROMPT.len()).unwrap();
        assert_eq!(session.cache().bytes(), bytes);
    }
    session.prefill(&tokens(&engine, &OTHER)).unwrap();
    session.rewind(PROMPT.len()).unwrap();
    assert_eq!(session.decode(7).unwrap(), fresh(&[7])[0]);

    session.rewind(0).unwrap();
    let again = session.prefill(&tokens(&engine, &OTHER)).unwrap();
    assert_eq!(again, Session::new(&engine, options(None)).unwrap().prefill(&tokens(&engine, &OTHER)).unwrap());
}

#[test]
fn an_eviction_is_not_undone() {
    let engine = engine();
    let method = methods::by_name("streaming").unwrap();
    let eviction = Eviction { policy: method.policy, layer_budget: method.layer_budget, budget: 5 };
    let mut session = Session::new(&engine, options(Some(eviction))).unwrap();
    session.prefill(&tokens(&engine, &PROMPT)).unwrap();
    let first = session.decode(7).unwrap().to_vec();
    for to in [5, 8] {
        let refused = session.rewind(to).unwrap_err();
        assert!(matches!(refused, Error::Rewind { first: 6, last: 7, .. }), "{refused}");
    }
    session.rewind(PROMPT.len()).unwrap();
    assert_eq!(session.decode(7).unwrap(), first);
    session.reset();
    session.decode(7).unwrap();
    session.rewind(0).unwrap();
}

#[test]
fn what_a_window_left_behind_is_lost() {
    let engine = open("gemma3");
    let window = *engine.config().windows.iter().flatten().min().expect("a layer with a window");
    let mut session = Session::new(&engine, options(None)).unwrap();
    session.prefill(&tokens(&engine, &PROMPT[..3])).unwrap();
    let first = session.decode(7).unwrap().to_vec();
    session.rewind(3).unwrap();
    assert_eq!(session.decode(7).unwrap(), first);
    for _ in 4..window {
        session.decode(7).unwrap();
    }
    let refused = session.rewind(3).unwrap_err();
    assert!(matches!(refused, Error::Rewind { to: 3, .. }), "{refused}");
    session.reset();
    session.prefill(&tokens(&engine, &PROMPT[..3])).unwrap();
    assert_eq!(session.decode(7).unwrap(), first);
}

/// Generated tokens count: 14 entries for a budget of 12 make a pyramid, the 10 of the prompts would not.
#[test]
fn a_prompt_after_an_answer_is_evicted() {
    let engine = engine();
    let method = methods::by_name("pyramidkv").unwrap();
    let eviction = Eviction { policy: method.policy, layer_budget: method.layer_budget, budget: 12 };
    let mut session = Session::new(&engine, options(Some(eviction))).unwrap();
    session.prefill(&tokens(&engine, &PROMPT)).unwrap();
    for id in OTHER {
        session.decode(id).unwrap();
    }
    session.prefill(&tokens(&engine, &OTHER)).unwrap();
    let kept = session.stats().kept;
    assert!(kept.first().unwrap()[0] > 12 && kept.last().unwrap()[0] < 12, "{kept:?}");
}

fn engine() -> Engine {
    open("llama")
}

fn open(model: &str) -> Engine {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testdata/models");
    let model = models.join(model).join("model-f32.gguf");
    Engine::open(&model, None, EngineOptions { n_threads: 1, ..EngineOptions::default() }).unwrap()
}

fn options(eviction: Option<Eviction>) -> SessionOptions {
    SessionOptions { n_ctx: 0, n_generate: 4, kv_type: Default::default(), eviction }
}

fn tokens(engine: &Engine, ids: &[u32]) -> Prompt {
    Prompt::tokens(engine, ids.to_vec()).unwrap()
}
