//! Token ids against llama.cpp, Hugging Face and naive implementations of both schemes.
//!
//! `testdata/tokenizers/<name>.json` holds llama.cpp's ids for the vocabulary of that name, `huggingface.json` those of
//! Hugging Face's tokenizers. Tests of vocabularies that `testdata/fetch.sh` has not brought are reported as ignored.

mod vocab_file;

use ecokv::Error;
use ecokv::gguf::GgufFile;
use ecokv::template::{ChatTemplate, Message};
use ecokv::tokenizer::Tokenizer;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vocab_file::{Value, testdata, vocab_bytes, vocab_file};

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for (name, path) in VOCABULARIES {
        let path = testdata(path);
        add(&mut trials, format!("llama_cpp::{name}"), &path, move |t| llama_cpp(name, t));
        add(&mut trials, format!("round_trip::{name}"), &path, round_trip);
        if ["llama-spm", "gpt-2", "llama-bpe", "qwen2"].contains(&name) {
            add(&mut trials, format!("hugging_face::{name}"), &path, move |t| hugging_face(name, t));
        }
    }
    trials.push(chat_prompt());
    let plain: [(&str, Test); 9] = [
        ("naive::spm", naive_spm),
        ("naive::bpe", naive_bpe),
        ("long_words_and_texts", long_words_and_texts),
        ("special_tokens", special_tokens),
        ("begin_token", begin_token),
        ("careless_files", careless_files),
        ("bad_files", bad_files),
        ("damaged_files", damaged_files),
        ("utf8_stream", utf8_stream),
    ];
    trials.extend(plain.map(|(name, test)| Trial::test(name, test)));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

type Test = fn() -> Result<(), Failed>;

const VOCABULARIES: [(&str, &str); 8] = [
    ("toy-llama", "models/llama/model-f32.gguf"),
    ("toy-qwen2vl", "models/qwen2vl/model-f32.gguf"),
    ("toy-idefics3", "models/idefics3/model-f32.gguf"),
    ("smollm2", "fetched/SmolLM2-135M-Instruct.Q4_1.gguf"),
    ("llama-spm", "fetched/ggml-vocab-llama-spm.gguf"),
    ("gpt-2", "fetched/ggml-vocab-gpt-2.gguf"),
    ("llama-bpe", "fetched/ggml-vocab-llama-bpe.gguf"),
    ("qwen2", "fetched/ggml-vocab-qwen2.gguf"),
];

/// A test of the vocabulary in `path`, ignored if that file is not there.
fn add(
    trials: &mut Vec<Trial>,
    name: String,
    path: &Path,
    test: impl FnOnce(&Tokenizer) -> Result<(), Failed> + Send + 'static,
) {
    let path: PathBuf = path.into();
    trials.push(Trial::ignorable_test(name, move || {
        if !path.exists() {
            return Ok(missing(&path));
        }
        test(&Tokenizer::from_gguf(&GgufFile::open(&path)?)?)?;
        Ok(Completion::Completed)
    }));
}

fn missing(path: &Path) -> Completion {
    Completion::ignored_with(format!("{} is missing: run testdata/fetch.sh", path.display()))
}

// ------------------------------------------------------------------------------------------------ against others

#[derive(Deserialize)]
struct Golden {
    meta: Meta,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Meta {
    n: usize,
    bos: u32,
    eos: u32,
    add_bos: bool,
    eog: Vec<u32>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    plain: Vec<u32>,
    full: Vec<u32>,
}

fn llama_cpp(name: &str, tokenizer: &Tokenizer) -> Result<(), Failed> {
    let golden: Golden = read(&format!("tokenizers/{name}.json"))?;
    let meta = golden.meta;
    same("n_tokens", tokenizer.n_tokens(), meta.n)?;
    same("bos", tokenizer.bos(), Some(meta.bos))?;
    same("eos", tokenizer.eos(), Some(meta.eos))?;
    same("add_bos", tokenizer.add_bos(), meta.add_bos)?;
    let ends: Vec<u32> = (0..meta.n as u32).filter(|&id| tokenizer.is_end_of_generation(id)).collect();
    same("end of generation", ends, meta.eog)?;
    for case in &golden.cases {
        same(&format!("plain {:?}", case.text), tokenizer.encode(&case.text, false, false), case.plain.clone())?;
        same(&format!("full {:?}", case.text), tokenizer.encode(&case.text, true, true), case.full.clone())?;
    }
    same("cases", golden.cases.len() >= 49, true)
}

#[derive(Deserialize)]
struct HuggingFace {
    texts: Vec<String>,
    ids: HashMap<String, Vec<Vec<u32>>>,
}

fn hugging_face(name: &str, tokenizer: &Tokenizer) -> Result<(), Failed> {
    let golden: HuggingFace = read("tokenizers/huggingface.json")?;
    let ids = &golden.ids[name];
    same("cases", golden.texts.len(), ids.len())?;
    for (text, ids) in golden.texts.iter().zip(ids) {
        same(&format!("{text:?}"), &tokenizer.encode(text, false, false), ids)?;
    }
    Ok(())
}

/// Decoding gives the text back (after the space that SPM puts in front), byte for byte and as a stream.
fn round_trip(tokenizer: &Tokenizer) -> Result<(), Failed> {
    let golden: HuggingFace = read("tokenizers/huggingface.json")?;
    for text in &golden.texts {
        let mut stream = ecokv::tokenizer::Utf8Stream::default();
        let mut bytes = Vec::new();
        let mut shown = String::new();
        for id in tokenizer.encode(text, false, false) {
            let start = bytes.len();
            tokenizer.decode_bytes(id, &mut bytes);
            shown.push_str(stream.push(&bytes[start..]));
        }
        shown.push_str(stream.finish());
        let spm = tokenizer.token_text(tokenizer.bos().unwrap_or(0)) == Some("<s>");
        let wanted = if spm && !text.is_empty() { format!(" {text}") } else { text.clone() };
        same("bytes", String::from_utf8_lossy(&bytes).as_ref(), &wanted)?;
        same("stream", &shown, &wanted)?;
    }
    Ok(())
}

/// SmolLM2's own template, from its file. Ids 1 and 2 are `<|im_start|>` and `<|im_end|>`.
fn chat_prompt() -> Trial {
    Trial::ignorable_test("chat_prompt::smollm2", || {
        let path = testdata("fetched/SmolLM2-135M-Instruct.Q4_1.gguf");
        if !path.exists() {
            return Ok(missing(&path));
        }
        let file = GgufFile::open(&path)?;
        let tokenizer = Tokenizer::from_gguf(&file)?;
        let template = ChatTemplate::from_gguf(&file, &tokenizer)?;
        let prompt = template.render(&[Message::text("user", "What is the capital of France?")], true)?;
        same(
            "prompt",
            prompt.as_str(),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
             <|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
        )?;
        let ids = tokenizer.encode(&prompt, tokenizer.needs_bos(&prompt), true);
        let turns: Vec<u32> = ids.iter().copied().filter(|&id| id < 3).collect();
        same("turns", (ids[0], turns), (1, vec![1, 2, 1, 2, 1]))?;
        Ok(Completion::Completed)
    })
}

// ------------------------------------------------------------------------------------------ against naive versions

/// Repeats "join the best pair" over the whole text, as the definition says.
fn naive_spm() -> Result<(), Failed> {
    let file = GgufFile::open(&testdata("models/llama/model-f32.gguf"))?;
    let tokenizer = Tokenizer::from_gguf(&file)?;
    let tokens = file.metadata().str_array("tokenizer.ggml.tokens")?;
    let types = file.metadata().i32_array("tokenizer.ggml.token_type")?;
    let scores = file.metadata().f32_array("tokenizer.ggml.scores")?;
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(i, t)| (t.as_str(), i)).collect();
    let score = |text: &str| ids.get(text).filter(|&&i| types[i] == 1).map(|&i| scores[i]);
    for text in random_texts() {
        let mut pieces: Vec<String> =
            format!(" {text}").chars().map(|c| if c == ' ' { '▁' } else { c }.into()).collect();
        loop {
            let mut best: Option<(f32, usize)> = None;
            for i in 1..pieces.len() {
                let union = score(&format!("{}{}", pieces[i - 1], pieces[i]));
                if let Some(score) = union.filter(|&score| best.is_none_or(|(b, _)| score > b)) {
                    best = Some((score, i));
                }
            }
            let Some((_, i)) = best else { break };
            let right = pieces.remove(i);
            pieces[i - 1].push_str(&right);
        }
        let mut wanted = Vec::new();
        for piece in &pieces {
            match ids.get(piece.as_str()) {
                Some(&id) => wanted.push(id as u32),
                None => wanted.extend(piece.bytes().map(|b| ids[format!("<0x{b:02X}>").as_str()] as u32)),
            }
        }
        same(&format!("{text:?}"), tokenizer.encode(&text, false, false), wanted)?;
    }
    Ok(())
}

/// The same with merge ranks, on texts that are one word each: letters only.
fn naive_bpe() -> Result<(), Failed> {
    let file = GgufFile::open(&testdata("models/qwen2vl/model-f32.gguf"))?;
    let tokenizer = Tokenizer::from_gguf(&file)?;
    let tokens = file.metadata().str_array("tokenizer.ggml.tokens")?;
    let merges = file.metadata().str_array("tokenizer.ggml.merges")?;
    let rank = |a: &str, b: &str| merges.iter().position(|m| *m == format!("{a} {b}"));
    for text in random_texts() {
        let word: String = text.chars().filter(char::is_ascii_alphabetic).collect();
        let mut pieces: Vec<String> = word.chars().map(String::from).collect();
        while let Some((_, i)) = (1..pieces.len()).filter_map(|i| Some((rank(&pieces[i - 1], &pieces[i])?, i))).min() {
            let right = pieces.remove(i);
            pieces[i - 1].push_str(&right);
        }
        let wanted: Vec<u32> =
            pieces.iter().filter_map(|p| tokens.iter().position(|t| t == p)).map(|i| i as u32).collect();
        same(&format!("{word:?}"), tokenizer.encode(&word, false, false), wanted)?;
    }
    Ok(())
}

/// Texts rich in the toy vocabularies' merges.
fn random_texts() -> Vec<String> {
    const PARTS: [&str; 16] =
        ["the", "t", "h", "e", " ", "in", "er", "image", "s", "ss", "tt", "x", "é", "\u{1F600}", "  ", "question"];
    let mut next = random();
    (0..300).map(|i| (0..1 + i / 4).map(|_| PARTS[next(PARTS.len())]).collect()).collect()
}

/// Numbers below the argument, the same in every run.
fn random() -> impl FnMut(usize) -> usize {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    move |n| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    }
}

// ------------------------------------------------------------------------------------------------------- the rest

/// Quadratic merging would need minutes here.
fn long_words_and_texts() -> Result<(), Failed> {
    for model in ["models/llama/model-f32.gguf", "models/qwen2vl/model-f32.gguf"] {
        let tokenizer = Tokenizer::from_gguf(&GgufFile::open(&testdata(model))?)?;
        let start = std::time::Instant::now();
        for text in ["the".repeat(100_000), "<|im_start|> x".repeat(20_000), " ".repeat(300_000), "é".repeat(100_000)]
        {
            let mut bytes = Vec::new();
            tokenizer.encode(&text, false, false).iter().for_each(|&id| tokenizer.decode_bytes(id, &mut bytes));
            same("length", bytes.len() - usize::from(model.contains("llama")), text.len())?;
        }
        same("under 20 s", start.elapsed().as_secs() < 20, true)?;
    }
    Ok(())
}

fn special_tokens() -> Result<(), Failed> {
    // Ids: 0 "a", 1 "<|x|>" control, 2 "<|x|>y" control, 3 "[U]" user-defined, 4 "b"
    let tokenizer = Tokenizer::from_gguf(&bpe(&["a", "<|x|>", "<|x|>y", "[U]", "b"], &[1, 3, 3, 4, 1], &[], &[]))?;
    same("longest wins", tokenizer.encode("a<|x|>yb<|x|>", false, true), vec![0, 2, 4, 1])?;
    same("user-defined always", tokenizer.encode("a[U]<|x|>", false, false), vec![0, 3])?;
    same("text of a control token", tokenizer.find_special("<|x|>"), Some(1))?;
    same("text of a user-defined token", tokenizer.find_special("[U]"), Some(3))?;
    same("text of a normal token", tokenizer.find_special("a"), None)?;
    let mut bytes = Vec::new();
    [1, 3, 4, 99].iter().for_each(|&id| tokenizer.decode_bytes(id, &mut bytes));
    same("control tokens are silent", bytes, b"[U]b".to_vec())
}

fn begin_token() -> Result<(), Failed> {
    let with = [("tokenizer.ggml.bos_token_id", Value::U32(1)), ("tokenizer.ggml.add_bos_token", Value::Bool(true))];
    let tokenizer = Tokenizer::from_gguf(&bpe(&["a", "<s>"], &[1, 3], &[], &with))?;
    same("put in front", tokenizer.encode("a", true, true), vec![1, 0])?;
    same("also of nothing", tokenizer.encode("", true, true), vec![1])?;
    same("needed", tokenizer.needs_bos("a"), true)?;
    same("there already", tokenizer.needs_bos("<s>a"), false)?;
    let tokenizer = Tokenizer::from_gguf(&bpe(&["a", "<s>"], &[1, 3], &[], &with[..1]))?;
    same("not asked for", (tokenizer.encode("a", true, true), tokenizer.needs_bos("a")), (vec![0], false))
}

/// Files that need mending but are understood.
fn careless_files() -> Result<(), Failed> {
    // An end token marked as normal text is a control token all the same.
    let tokenizer = Tokenizer::from_gguf(&bpe(&["a", "<|im_end|>"], &[1, 1], &[], &[]))?;
    same("found in the text", tokenizer.encode("a<|im_end|>", false, true), vec![0, 1])?;
    same("ends", tokenizer.is_end_of_generation(1), true)?;
    // A word learnt from text that happens to look like one is not.
    let tokens = ["<", "/s>", "</s>", "/", "s", ">", "s>"];
    let tokenizer = Tokenizer::from_gguf(&bpe(&tokens, &[1; 7], &["s >", "/ s>", "< /s>"], &[]))?;
    same("cut like text", tokenizer.encode("</s>", false, true), vec![0, 3, 4, 5])?;
    // Ids that do not exist.
    let tokenizer = Tokenizer::from_gguf(&bpe(&["a"], &[1], &[], &[("tokenizer.ggml.bos_token_id", Value::U32(7))]))?;
    same("no such token", (tokenizer.bos(), tokenizer.warnings().len()), (None, 1))?;
    same("warning", tokenizer.warnings()[0].contains("tokenizer.ggml.bos_token_id = 7"), true)?;
    // No pre-tokenizer named.
    let file = vocab_file(&[
        ("tokenizer.ggml.model", Value::Str("gpt2".into())),
        ("tokenizer.ggml.tokens", Value::Strs(vec!["a".into()])),
        ("tokenizer.ggml.merges", Value::Strs(vec![])),
    ]);
    let tokenizer = Tokenizer::from_gguf(&file)?;
    same("warned", tokenizer.warnings()[0].contains("tokenizer.ggml.pre"), true)
}

fn bad_files() -> Result<(), Failed> {
    let spm = |extra: Vec<(&'static str, Value)>| {
        let mut entries = vec![
            ("tokenizer.ggml.model", Value::Str("llama".into())),
            ("tokenizer.ggml.tokens", Value::Strs(["<unk>", "<s>", "</s>"].map(String::from).into())),
        ];
        entries.extend(extra);
        vocab_file(&entries)
    };
    let named = |key, value: &str| {
        vocab_file(&[("tokenizer.ggml.model", Value::Str("gpt2".into())), (key, Value::Str(value.into()))])
    };
    let add_bos = [("tokenizer.ggml.add_bos_token", Value::Bool(true))];
    let no_tokens = [
        ("tokenizer.ggml.model", Value::Str("gpt2".into())),
        ("tokenizer.ggml.pre", Value::Str("gpt-2".into())),
        ("tokenizer.ggml.tokens", Value::Strs(vec![])),
    ];
    let scores = || ("tokenizer.ggml.scores", Value::F32s(vec![0.0; 3]));
    let cases: Vec<(GgufFile, &str, &str)> = vec![
        (vocab_file(&[]), "tokenizer.ggml.model", "missing"),
        (vocab_file(&[("tokenizer.ggml.model", Value::Str("bert".into()))]), "tokenizer.ggml.model", "\"bert\""),
        (named("tokenizer.ggml.pre", "gpt-9"), "tokenizer.ggml.pre", "\"gpt-9\""),
        (named("tokenizer.ggml.pre", "gpt-2"), "tokenizer.ggml.tokens", "missing"),
        (vocab_file(&no_tokens), "tokenizer.ggml.tokens", "0 tokens"),
        (spm(vec![]), "tokenizer.ggml.scores", "missing"),
        (spm(vec![("tokenizer.ggml.scores", Value::F32s(vec![0.0; 2]))]), "tokenizer.ggml.scores", "2 entries for 3"),
        (
            spm(vec![scores(), ("tokenizer.ggml.token_type", Value::I32s(vec![1; 4]))]),
            "tokenizer.ggml.token_type",
            "4 entries for 3",
        ),
        (
            spm(vec![scores(), ("tokenizer.ggml.eos_token_id", Value::Str("x".into()))]),
            "tokenizer.ggml.eos_token_id",
            "\"x\"",
        ),
        (bpe(&["a", "b"], &[1, 1], &["ab"], &[]), "tokenizer.ggml.merges", "entry 0, \"ab\""),
        (bpe(&["a", "b"], &[1, 1], &["a b"], &[]), "tokenizer.ggml.merges", "entry 0, \"a b\""),
        (bpe(&["a", "b"], &[1, 1], &[], &add_bos), "tokenizer.ggml.add_bos_token", "does not name that token"),
    ];
    for (file, wanted_key, wanted_text) in cases {
        match Tokenizer::from_gguf(&file) {
            Err(Error::Metadata { key, what, .. }) => {
                same("key", key.as_str(), wanted_key)?;
                same(&what, what.contains(wanted_text), true)?;
            }
            other => return Err(format!("{wanted_key}, {wanted_text}: {other:?}").into()),
        }
    }
    Ok(())
}

/// Whatever a file says, it is an error or it works: random damage to the header, then encoding, decoding and chat.
fn damaged_files() -> Result<(), Failed> {
    let strings = |list: &[&str]| Value::Strs(list.iter().map(|s| s.to_string()).collect());
    let template = "{% for m in messages %}{{ bos_token + m['content'] | trim }}{% endfor %}";
    let common = |model: &str| {
        vec![
            ("tokenizer.ggml.model", Value::Str(model.into())),
            ("tokenizer.ggml.tokens", strings(&["<unk>", "<s>", "</s>", "<0x0A>", "\u{2581}", "a", "b", "ab", "[U]"])),
            ("tokenizer.ggml.token_type", Value::I32s(vec![2, 3, 3, 6, 1, 1, 1, 1, 4])),
            ("tokenizer.ggml.bos_token_id", Value::U32(1)),
            ("tokenizer.ggml.eos_token_id", Value::U32(2)),
            ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
            ("tokenizer.chat_template", Value::Str(template.into())),
        ]
    };
    let mut spm = common("llama");
    spm.push(("tokenizer.ggml.scores", Value::F32s((0..9u8).map(f32::from).collect())));
    let mut bpe = common("gpt2");
    bpe.push(("tokenizer.ggml.pre", Value::Str("llama3".into())));
    bpe.push(("tokenizer.ggml.merges", strings(&["a b"])));
    let mut usable = 0;
    for entries in [spm, bpe] {
        let bytes = vocab_bytes(&entries);
        let mut next = random();
        for _ in 0..500 {
            let mut damaged = bytes.clone();
            for _ in 0..1 + next(3) {
                let at = 24 + next(bytes.len() - 24);
                damaged[at] = [0, 0xFF, damaged[at] ^ (1 << next(8)), next(256) as u8][next(4)];
            }
            let Ok(file) = GgufFile::from_static("damaged", Box::leak(damaged.into_boxed_slice())) else { continue };
            let Ok(tokenizer) = Tokenizer::from_gguf(&file) else { continue };
            let mut text = Vec::new();
            for id in tokenizer.encode("ab a\nb<s>[U] \u{1F600}", true, true) {
                tokenizer.decode_bytes(id, &mut text);
            }
            let template = ChatTemplate::from_gguf(&file, &tokenizer);
            usable += usize::from(template.is_ok_and(|t| t.render(&[Message::text("user", "a")], true).is_ok()));
        }
    }
    same("some survive", usable > 50, true)
}

/// However the bytes are cut, the text is that of the standard library's lossy conversion of all of them.
fn utf8_stream() -> Result<(), Failed> {
    const PARTS: [&[u8]; 9] = [
        b"a",
        "é".as_bytes(),
        "你".as_bytes(),
        "\u{1F600}".as_bytes(),
        b"\xFF",
        b"\xC3",
        b"\xE4\xBD",
        b"\xF0\x9F\x98",
        b"\x80",
    ];
    let mut next = random();
    for _ in 0..500 {
        let bytes: Vec<u8> = (0..next(12)).flat_map(|_| PARTS[next(PARTS.len())]).copied().collect();
        let mut stream = ecokv::tokenizer::Utf8Stream::default();
        let mut text = String::new();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(1 + next(rest.len()));
            text.push_str(stream.push(now));
            rest = later;
        }
        text.push_str(stream.finish());
        same(&format!("{bytes:?}"), text, String::from_utf8_lossy(&bytes).into_owned())?;
    }
    Ok(())
}

/// A byte-level vocabulary with GPT-2's pre-tokenizer.
fn bpe(tokens: &[&str], types: &[i32], merges: &[&str], extra: &[(&str, Value)]) -> GgufFile {
    let strings = |list: &[&str]| Value::Strs(list.iter().map(|s| s.to_string()).collect());
    let mut entries = vec![
        ("tokenizer.ggml.model", Value::Str("gpt2".into())),
        ("tokenizer.ggml.pre", Value::Str("gpt-2".into())),
        ("tokenizer.ggml.tokens", strings(tokens)),
        ("tokenizer.ggml.token_type", Value::I32s(types.to_vec())),
        ("tokenizer.ggml.merges", strings(merges)),
    ];
    entries.extend(extra.iter().cloned());
    vocab_file(&entries)
}

fn read<T: for<'de> Deserialize<'de>>(name: &str) -> Result<T, Failed> {
    Ok(serde_json::from_slice(&std::fs::read(testdata(name))?)?)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Result<(), Failed> {
    if got == wanted { Ok(()) } else { Err(format!("{what}: got {got:?}, wanted {wanted:?}").into()) }
}
