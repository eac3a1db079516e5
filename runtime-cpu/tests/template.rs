//! Prompts against Python's jinja2, set up as Hugging Face's `apply_chat_template` sets it up, and against hand-written
//! expectations for the built-in templates.

mod vocab_file;

use ecokv::Error;
use ecokv::gguf::GgufFile;
use ecokv::template::{ChatTemplate, Message, Part, Source};
use ecokv::tokenizer::Tokenizer;
use serde::Deserialize;
use vocab_file::{Value, testdata, vocab_file};

#[derive(Deserialize)]
struct Golden {
    name: String,
    template: String,
    bos: String,
    eos: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    messages: Vec<Turn>,
    generate: bool,
    /// Nothing if the template refuses the conversation. `<__media__>` is in the place of the model's own placeholder.
    expected: Option<String>,
}

#[derive(Deserialize)]
struct Turn {
    role: String,
    /// `null` is an image.
    parts: Vec<Option<String>>,
}

/// `templates.json`: the templates of SmolLM2, tinyvlm, Qwen2-VL, LLaVA-1.5 (Hugging Face), SmolVLM, Mistral (string
/// content only), Qwen2.5 and Mistral-Nemo.
#[test]
fn prompts_equal_those_of_python() {
    let mut rendered = 0;
    for Golden { name, template, bos, eos, cases } in golden() {
        let template = load(&[&bos, &eos], &[], Some(&template)).expect(&name);
        assert_eq!(template.source(), Source::File);
        for case in cases {
            let messages: Vec<Message> = case
                .messages
                .into_iter()
                .map(|turn| Message {
                    role: turn.role,
                    content: turn.parts.into_iter().map(|part| part.map_or(Part::Image, Part::Text)).collect(),
                })
                .collect();
            let prompt = template.render(&messages, case.generate);
            match case.expected {
                Some(expected) => assert_eq!(prompt.expect(&name), expected, "{name}: {messages:?}"),
                None => assert!(matches!(prompt, Err(Error::Template { .. })), "{name}: {messages:?}: {prompt:?}"),
            }
            rendered += 1;
        }
    }
    assert_eq!(rendered, 72);
}

/// The prompt that tinyvlm's training code writes.
#[test]
fn tinyvlm_asks_as_it_was_trained() {
    let golden = golden().into_iter().find(|golden| golden.name == "tinyvlm").expect("tinyvlm");
    let template = load(&["<s>", "</s>"], &[], Some(&golden.template)).expect("template");
    let message = Message::with_images("user", "what is the value of QX7?", 1).expect("one image");
    let prompt = template.render(&[message], true).expect("prompt");
    assert_eq!(prompt, "<__media__>\nwhat is the value of QX7?\nanswer:");
}

#[test]
fn built_in_templates() {
    let talk = [
        Message::with_images("user", "What is this?", 1).expect("one image"),
        Message::text("assistant", "A cat."),
        Message::text("user", "Sure?"),
    ];
    let with_system = [Message::text("system", "Be brief."), Message::text("user", "Hi")];

    // Conversation "v1" of LLaVA's own code: SYSTEM USER: .. ASSISTANT: ..</s>USER: ..
    let vicuna = spm("llava-v1.5-7b");
    assert_eq!(vicuna.source(), Source::Vicuna);
    assert_eq!(
        vicuna.render(&talk, true).expect("prompt"),
        "A chat between a curious human and an artificial intelligence assistant. The assistant gives helpful, \
         detailed, and polite answers to the human's questions. USER: <__media__>\nWhat is this? ASSISTANT: \
         A cat.</s>USER: Sure? ASSISTANT:"
    );
    assert_eq!(vicuna.render(&with_system, true).expect("prompt"), "Be brief. USER: Hi ASSISTANT:");

    let inst = spm("LLaVA v1.6 Mistral 7B");
    assert_eq!(inst.source(), Source::Inst);
    assert_eq!(
        inst.render(&talk, true).expect("prompt"),
        "[INST] <__media__>\nWhat is this? [/INST] A cat.</s>[INST] Sure? [/INST]"
    );
    assert_eq!(inst.render(&with_system, true).expect("prompt"), "[INST] Be brief.\n\nHi [/INST]");

    let chatml = load(&["<s>", "</s>"], &["<|im_start|>", "<|im_end|>"], None).expect("template");
    assert_eq!(chatml.source(), Source::ChatMl);
    assert_eq!(
        chatml.render(&talk, true).expect("prompt"),
        "<|im_start|>user\n<__media__>\nWhat is this?<|im_end|>\n<|im_start|>assistant\nA cat.<|im_end|>\n\
         <|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    );

    // A byte-level vocabulary without turn tokens says nothing about how to chat.
    let error = load(&["<s>", "</s>"], &[], None).expect_err("no template").to_string();
    assert_eq!(error, "chat template: test.gguf: the file has none, and no built-in one fits its vocabulary");
}

#[test]
fn where_images_go() {
    let parts = |text, n| Message::with_images("user", text, n).map(|m| m.content);
    let text = |text: &str| Part::Text(text.into());
    assert_eq!(parts("a<__media__>b", 1).expect("parts"), [text("a"), Part::Image, text("b")]);
    assert_eq!(parts("<__media__>b", 2).expect("parts"), [Part::Image, Part::Image, text("b")]);
    assert_eq!(parts("q", 0).expect("parts"), [text("q")]);
    assert_eq!(
        parts("<__media__><__media__>", 1).expect_err("too few images").to_string(),
        "chat template: 2 media markers in the user message, but 1 images for it"
    );
}

/// An unknown placeholder is taken from the vocabulary.
#[test]
fn placeholders_of_other_families() {
    let pixtral = "{% for m in messages %}[INST]{% if m.content is string %}{{ m.content }}{% else %}\
                   {% for c in m.content %}{% if c.type == 'image' %}[IMG]{% else %}{{ c.text }}{% endif %}\
                   {% endfor %}{% endif %}[/INST]{% endfor %}";
    let question = [Message::with_images("user", "Is [IMG] a token?", 1).expect("one image")];
    let known = load(&["<s>", "</s>"], &["[IMG]"], Some(pixtral)).expect("template");
    assert_eq!(known.render(&question, true).expect("prompt"), "[INST]<__media__>Is [IMG] a token?[/INST]");

    let unknown = load(&["<s>", "</s>"], &[], Some(pixtral)).expect("template");
    let error = unknown.render(&question, true).expect_err("no placeholder").to_string();
    assert_eq!(error, "chat template: it writes \"[IMG]\" for an image, in which no placeholder token is known");
    assert_eq!(unknown.render(&[Message::text("user", "Hi")], true).expect("prompt"), "[INST]Hi[/INST]");
}

#[test]
fn begin_token_is_not_doubled() {
    let file = file(&["<s>", "</s>"], &[], Some("{{ bos_token }}{{ messages[0].content }}"));
    let tokenizer = Tokenizer::from_gguf(&file).expect("tokenizer");
    let template = ChatTemplate::from_gguf(&file, &tokenizer).expect("template");
    let prompt = template.render(&[Message::text("user", "a")], true).expect("prompt");
    assert_eq!(prompt, "<s>a");
    assert!(!tokenizer.needs_bos(&prompt));
    assert!(tokenizer.needs_bos("a"));
}

#[test]
fn templates_that_cannot_be_used() {
    let error = |text: &str| load(&["<s>", "</s>"], &[], Some(text)).expect_err(text).to_string();
    assert!(error("{% for %}").starts_with("chat template: test.gguf: syntax error"));
    assert!(error("Hello").ends_with("it does not show the user's text"));
    assert!(error("{{ raise_exception('no chat') }}").contains("no chat"));
    assert!(error("{{ strftime_now('%Q') }}").contains("%Q is not supported"));
    // Endless work and endless text.
    let long = "{% for a in range(99999) %}{% for b in range(99999) %}{{ messages }}{% endfor %}{% endfor %}";
    assert!(error(long).contains("fuel"));
    let doubling = "{% set ns = namespace(t='ab') %}{% for a in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}";
    assert!(error(doubling).contains("fuel"));

    let template =
        load(&["<s>", "</s>"], &[], Some("{% for m in messages %}{{ m.content }}{% endfor %}")).expect("template");
    let marker = template.render(&[Message::text("user", "a <__media__> b")], true).expect_err("marker in the text");
    assert_eq!(marker.to_string(), "chat template: the user message holds <__media__> as text");
    let loses = load(&["<s>", "</s>"], &[], Some("{{ messages[0].content }}")).expect("template");
    let image = Message { role: "user".into(), content: vec![Part::Image] };
    let lost = loses.render(&[Message::text("user", "a"), image], true).expect_err("lost image");
    assert_eq!(lost.to_string(), "chat template: 1 images given, but the template shows 0");
}

fn golden() -> Vec<Golden> {
    let golden = std::fs::read(testdata("tokenizers/templates.json")).expect("golden file");
    serde_json::from_slice(&golden).expect("golden file")
}

fn load(ends: &[&str; 2], specials: &[&str], template: Option<&str>) -> Result<ChatTemplate, Error> {
    let file = file(ends, specials, template);
    ChatTemplate::from_gguf(&file, &Tokenizer::from_gguf(&file)?)
}

/// A byte-level vocabulary: "a", the begin and the end token, and further control tokens.
fn file(ends: &[&str; 2], specials: &[&str], template: Option<&str>) -> GgufFile {
    let texts: Vec<String> = std::iter::once(&"a").chain(ends).chain(specials).map(|t| t.to_string()).collect();
    let mut types = vec![3; texts.len()];
    types[0] = 1;
    let mut entries = vec![
        ("tokenizer.ggml.model", Value::Str("gpt2".into())),
        ("tokenizer.ggml.pre", Value::Str("gpt-2".into())),
        ("tokenizer.ggml.tokens", Value::Strs(texts)),
        ("tokenizer.ggml.token_type", Value::I32s(types)),
        ("tokenizer.ggml.merges", Value::Strs(vec![])),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(!ends[0].is_empty())),
    ];
    entries.extend(template.map(|text| ("tokenizer.chat_template", Value::Str(text.into()))));
    vocab_file(&entries)
}

/// A SentencePiece vocabulary without a template.
fn spm(name: &str) -> ChatTemplate {
    let tokens = ["<unk>", "<s>", "</s>", "a"].map(String::from);
    let file = vocab_file(&[
        ("general.name", Value::Str(name.into())),
        ("tokenizer.ggml.model", Value::Str("llama".into())),
        ("tokenizer.ggml.tokens", Value::Strs(tokens.into())),
        ("tokenizer.ggml.token_type", Value::I32s(vec![2, 3, 3, 1])),
        ("tokenizer.ggml.scores", Value::F32s(vec![0.0; 4])),
    ]);
    ChatTemplate::from_gguf(&file, &Tokenizer::from_gguf(&file).expect("tokenizer")).expect("template")
}
