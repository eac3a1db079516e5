//! The bundled vision-language model answers 200 questions about document images, with the full cache and under eviction.
//!
//! Limits come from the same model in PyTorch: 161 of 200 right with the full cache; with 64 entries per KV head and windows
//! of 8 (4 for ecokv), on these questions and their 563 follow-ups: ecokv, snapkv and mixkv 83 % of 83.5 % with the full
//! cache, streaming 20 %, random 18 %; with 16 entries ecokv 68 % and snapkv 51 %.

#[path = "../../examples/tinyvlm/mod.rs"]
mod tinyvlm;

use std::sync::OnceLock;

use ecokv::ops::Precision;
use ecokv::template::Message;
use ecokv::{Engine, Eviction, MEDIA_MARKER, Prompt};
use ecokv_core::methods;
use tinyvlm::Question;

#[test]
fn chat_prompts_are_what_the_model_was_trained_on() {
    let set = Set::get();
    for (question, prompt) in set.questions.iter().zip(&set.prompts) {
        let message = Message::with_images("user", &question.question, 1).unwrap();
        let text = set.engine.template().unwrap().render(&[message], true).unwrap();
        let behind = format!("\n{}\nanswer:", question.question);
        assert_eq!(text, format!("{MEDIA_MARKER}{behind}"));
        let tokenizer = set.engine.tokenizer();
        assert!(tokenizer.needs_bos(&text));
        assert_eq!(tokenizer.encode(&behind, false, true), question.prompt_ids, "{behind:?}");
        assert_eq!(prompt.n_image_tokens(), 196);
        assert_eq!(prompt.n_tokens(), 1 + 196 + question.prompt_ids.len());
    }
}

#[test]
fn full_cache_answers_as_pytorch_does() {
    let set = Set::get();
    for (precision, engine) in
        [(Precision::Int16, &set.engine), (Precision::Float, &tinyvlm::engine(Precision::Float).unwrap())]
    {
        let answers = tinyvlm::answers(engine, &set.prompts, None).unwrap();
        let exact_match = tinyvlm::exact_match(&set.questions, &answers);
        let same = set.questions.iter().zip(&answers).filter(|(q, a)| q.pytorch == **a).count();
        println!("{precision:?}: {exact_match} % right, {same} of 200 as PyTorch");
        assert!((78.5..=82.5).contains(&exact_match), "{precision:?}: {exact_match} %, PyTorch 80.5 %");
        assert!(same >= 196, "{precision:?}: {same} answers are PyTorch's");
    }
}

#[test]
fn eviction_keeps_the_answers() {
    let set = Set::get();
    for (method, window) in [("ecokv", 4), ("snapkv", 8), ("mixkv", 8)] {
        let exact_match = set.exact_match(method, window, 64);
        assert!(exact_match >= 76.0, "{method}: {exact_match} %");
    }
    for (method, window) in [("streaming", 8), ("random", 8)] {
        let exact_match = set.exact_match(method, window, 64);
        assert!(exact_match < 40.0, "{method}: {exact_match} %");
    }
}

#[test]
fn a_short_window_pays_at_a_small_budget() {
    let set = Set::get();
    let (ecokv, snapkv) = (set.exact_match("ecokv", 4, 16), set.exact_match("snapkv", 8, 16));
    assert!(ecokv >= 60.0, "ecokv: {ecokv} %");
    assert!(ecokv >= snapkv + 8.0, "ecokv: {ecokv} %, snapkv: {snapkv} %");
}

/// What the tests share.
struct Set {
    engine: Engine,
    questions: Vec<Question>,
    prompts: Vec<Prompt>,
}

impl Set {
    fn get() -> &'static Set {
        static SET: OnceLock<Set> = OnceLock::new();
        SET.get_or_init(|| {
            let questions = tinyvlm::questions().unwrap();
            assert_eq!(questions.len(), 200);
            let engine = tinyvlm::engine(Precision::Int16).unwrap();
            let prompts = tinyvlm::prompts(&engine, &questions).unwrap();
            Set { engine, questions, prompts }
        })
    }

    fn exact_match(&self, name: &str, window: u32, budget: u32) -> f64 {
        let method = methods::by_name(name).unwrap();
        let policy = method.policy.with_window(window);
        let eviction = Eviction { policy, layer_budget: method.layer_budget, budget };
        let answers = tinyvlm::answers(&self.engine, &self.prompts, Some(eviction)).unwrap();
        let exact_match = tinyvlm::exact_match(&self.questions, &answers);
        println!("{name}, window {window}, budget {budget}: {exact_match} % right");
        exact_match
    }
}
