//! What the user can mend ends in one line that names the thing and the numbers, and status 2.

mod ecokv_bin;
mod gguf_bytes;

use ecokv_bin::{ecokv, repo, scratch};
use gguf_bytes::{Gguf, STRING, U32, string};

#[test]
fn model_files() {
    let bytes = std::fs::read(repo(TOY)).unwrap();
    let llama = || Gguf::new().entry("general.architecture", STRING, string("llama"));

    let missing = repo("testdata/no-such-file.gguf");
    refused(&run(&missing), &["no-such-file.gguf", "No such file"]);
    refused(&run(&repo("testdata")), &["testdata", "directory"]);
    refused(&run(&scratch("empty.gguf", b"")), &["empty.gguf", "empty"]);
    refused(&run(&scratch("text.gguf", b"This is not a model at all.")), &["text.gguf", "GGUF"]);
    let half = scratch("half.gguf", &bytes[..bytes.len() / 2]);
    refused(&run(&half), &["half.gguf", &(bytes.len() / 2).to_string()]);
    let header = scratch("header.gguf", &bytes[..100]);
    refused(&run(&header), &["header.gguf"]);

    let outside = llama().tensor("far.weight", 0, &[32], 1 << 40).data(128).build();
    refused(&run(&scratch("outside.gguf", &outside)), &["outside.gguf", "far.weight", &(1u64 << 40).to_string()]);
    let huge = llama().tensor("huge.weight", 0, &[1 << 40, 1 << 40], 0).data(128).build();
    refused(&run(&scratch("huge.gguf", &huge)), &["huge.gguf", "huge.weight"]);
    let liar = llama().n_tensors(1 << 60).build();
    refused(&run(&scratch("liar.gguf", &liar)), &["liar.gguf", &(1u64 << 60).to_string()]);
    let unknown_type = llama().tensor("odd.weight", 99, &[32], 0).data(128).build();
    refused(&run(&scratch("type.gguf", &unknown_type)), &["type.gguf", "odd.weight", "99"]);

    let key = [&string("general.architecture")[..], &STRING.to_le_bytes(), &string("")[..]].concat();
    let at = bytes.windows(key.len() - 8).position(|w| *w == key[..key.len() - 8]).unwrap() + key.len();
    assert_eq!(&bytes[at..at + 5], b"llama");
    let mut mamba = bytes.clone();
    mamba[at..at + 5].copy_from_slice(b"mamba");
    refused(&run(&scratch("mamba.gguf", &mamba)), &["mamba.gguf", "\"mamba\"", "llama"]);

    let counts = ["block_count", "embedding_length", "attention.head_count"];
    let sized = || counts.iter().fold(llama(), |f, key| f.entry(&format!("llama.{key}"), U32, 4_u32.to_le_bytes()));
    let moe = sized().entry("llama.attention.key_length", U32, 2_u32.to_le_bytes());
    let moe = moe.entry("llama.expert_count", U32, 8_u32.to_le_bytes()).build();
    refused(&run(&scratch("moe.gguf", &moe)), &["moe.gguf", "llama.expert_count", "8", "not supported"]);
    let window = sized().entry("llama.attention.key_length", U32, 2_u32.to_le_bytes());
    let window = window.entry("llama.attention.sliding_window", U32, 4096_u32.to_le_bytes()).build();
    refused(&run(&scratch("window.gguf", &window)), &["window.gguf", "sliding_window", "4096", "not supported"]);
}

#[test]
fn hostile_names_stay_on_one_line() {
    let odd = Gguf::new().entry("general.architecture", STRING, string("a\n\u{1b}[31merror: b")).build();
    refused(&run(&scratch("odd.gguf", &odd)), &["odd.gguf", "not supported"]);
    refused(&["-m", "no\nsuch\nfile", "-p", "a"].map(String::from), &["no such file"]);
}

#[test]
fn projector_files() {
    let image = repo("testdata/images/rgb.png");
    let with = |model: &str, mmproj: &str| {
        ["-m", &repo(model), "--mmproj", &repo(mmproj), "--image", &image, "-p", "a"].map(String::from)
    };
    let (tinyvlm, llava15) = ("examples/models/tinyvlm-q8_0.gguf", "testdata/models/llava15/mmproj-f32.gguf");
    refused(&with(tinyvlm, llava15), &["mmproj-f32.gguf", "64", "256"]);
    refused(&with(tinyvlm, TOY), &["model-f32.gguf", "general.architecture", "mmproj"]);
    refused(&with(llava15, llava15), &["mmproj-f32.gguf", "\"clip\" is not supported"]);
    refused(&with(tinyvlm, "testdata/no-such-file.gguf"), &["no-such-file.gguf", "No such file"]);
}

#[test]
fn images() {
    let (model, mmproj) = (repo("examples/models/tinyvlm-q8_0.gguf"), repo("examples/models/mmproj-cls-f16.gguf"));
    let image = repo("testdata/images/rgb.png");
    let see = |image: &str| ["-m", &model, "--mmproj", &mmproj, "--image", image, "-p", "a"].map(String::from);
    refused(&see(&repo("testdata/no-such.png")), &["no-such.png", "No such file"]);
    refused(&see(&repo("testdata")), &["testdata", "directory"]);
    refused(&see(&scratch("note.png", b"a letter, not a picture")), &["note.png", "23 bytes", "PNG"]);
    let whole = std::fs::read(&image).unwrap();
    let half = scratch("half.png", &whole[..whole.len() / 2]);
    refused(&see(&half), &["half.png"]);
    let mut vast = whole.clone();
    vast[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    refused(&see(&scratch("vast.png", &vast)), &["vast.png", "65536x65536"]);

    refused(&["-m", &model, "--image", &image, "-p", "a"].map(String::from), &["rgb.png", "--mmproj"]);
    let marked = ["-m", &model, "--mmproj", &mmproj, "-p", "what is <__media__>?"].map(String::from);
    refused(&marked, &["1 <__media__>", "0 images"]);
    refused(&["--image", &image, "-p", "<__media__><__media__>"].map(String::from), &["2 <__media__>", "1 images"]);
    refused(&["--mmproj", &mmproj].map(String::from), &["-m <MODEL.gguf>"]);
}

#[test]
fn prompts_and_budgets() {
    let toy = repo(TOY);
    let with =
        |args: &[&str]| -> Vec<String> { ["-m", &toy, "--raw"].iter().chain(args).map(|&a| a.to_owned()).collect() };
    refused(&with(&[]), &["-p"]);
    refused(&with(&["-p", ""]), &["-p", "empty"]);
    let long = "word ".repeat(200);
    let n_tokens = prompt_tokens(&with(&["-p", &long]));
    refused(&with(&["-p", &long, "-c", "50"]), &[&n_tokens.to_string(), "256 to generate", "50"]);
    refused(&with(&["-p", "a", "-c", "99999"]), &["99999", "4096"]);

    let exact = with(&["-p", &long, "--keep-recent", "50", "--budget", "10"]);
    refused(&exact, &["budget of 10", "50 protected"]);
    refused(&with(&["-p", &long, "--budget", "0"]), &["budget of 0", "1 protected"]);
    refused(&with(&["-p", &long, "--method", "streaming", "--budget", "3"]), &["budget of 3", "4 protected"]);

    // Byte-level BPE without chat tokens: no built-in template is for that.
    let mut bytes = std::fs::read(repo("examples/models/tinyvlm-q8_0.gguf")).unwrap();
    let key = b"tokenizer.chat_template";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap();
    bytes[at] = b'T';
    let base = scratch("base.gguf", &bytes);
    refused(&["-m", &base, "-p", "a"].map(String::from), &["base.gguf", "template", "--raw"]);
}

#[test]
fn flags() {
    let cases: [(&[&str], &[&str]); 29] = [
        (&["--budgte", "3"], &["--budgte", "--budget"]),
        (&["--budget", "-1"], &["--budget", "-1"]),
        (&["--budget", "4294967296"], &["--budget", "4294967296"]),
        (&["--method", "lru"], &["lru", "--method", "ecokv", "snapkv"]),
        (&["--temp", "-0.5"], &["--temp", "-0.5"]),
        (&["--temp", "nan"], &["--temp", "nan"]),
        (&["--top-p", "0"], &["--top-p"]),
        (&["--top-p", "1.5"], &["--top-p", "1.5"]),
        (&["-t", "0"], &["-t", "0"]),
        (&["-c", "0"], &["-c", "0"]),
        (&["-n", "many"], &["-n", "many"]),
        (&["--kv-type", "q8"], &["--kv-type", "q8", "f16"]),
        (&["--layer-budget", "cone"], &["--layer-budget", "cone", "pyramid"]),
        (&["--head-budget", "none"], &["--head-budget", "none", "adaptive"]),
        (&["--window", "0", "--budget", "9"], &["--window", "0"]),
        (&["--window", "8"], &["--window", "full"]),
        (&["--method", "full", "--budget", "9"], &["--budget", "full"]),
        (&["--method", "full", "--layer-budget", "pyramid"], &["--layer-budget", "full"]),
        (&["--method", "keydiff", "--window", "4"], &["--window", "keydiff"]),
        (&["--method", "snapkv", "--beta", "0.5"], &["--beta", "snapkv"]),
        (&["--method", "streaming", "--head-budget", "adaptive"], &["--head-budget", "streaming"]),
        (&["--budget", "9", "--alpha", "2"], &["--alpha 2", "--beta"]),
        (&["--budget", "9", "--alpha", "0", "--beta", "0"], &["--alpha 0", "--beta 0"]),
        (&["--route", "no-such-route"], &["no-such-route", "No such file"]),
        (&["--route", "a", "--method", "ecokv"], &["--route", "--method"]),
        (&["--route", "a", "--window", "4"], &["--window", "route"]),
        (&["--method", "sparsemm"], &["profile of head scores"]),
        (&["serve"], &["serve"]),
        (&["inspect"], &["<FILE>"]),
    ];
    for (args, named) in cases {
        refused(&args.iter().map(|&a| a.to_owned()).collect::<Vec<_>>(), named);
    }
}

#[test]
fn inspect() {
    let inspect = |path: String| ["inspect".to_owned(), path];
    refused(&inspect(repo("testdata/no-such-file.gguf")), &["no-such-file.gguf", "No such file"]);
    refused(&inspect(scratch("plain.txt", b"plain text, plainly")), &["plain.txt", "GGUF"]);
    refused(&inspect(scratch("nameless.gguf", &Gguf::new().build())), &["nameless.gguf", "general.architecture"]);
}

const TOY: &str = "testdata/models/llama/model-f32.gguf";

fn run(model: &str) -> [String; 5] {
    ["-m", model, "--raw", "-p", "a"].map(String::from)
}

/// One line, `error: ` and all of `named`; nothing on stdout; status 2.
fn refused(args: &[String], named: &[&str]) {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = ecokv(&args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    assert!(stderr.starts_with("error: ") && !stderr.contains("panicked"), "{args:?}: {stderr}");
    assert!(!stderr.trim_end().contains(char::is_control), "{args:?}: {stderr:?}");
    for text in named {
        assert!(stderr.contains(text), "{args:?}: no {text:?} in {stderr}");
    }
    assert!(output.stdout.is_empty(), "{args:?}");
}

fn prompt_tokens(args: &[String]) -> u64 {
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.extend(["--json", "-n", "0"]);
    let output = ecokv(&args);
    serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["prompt_tokens"].as_u64().unwrap()
}
