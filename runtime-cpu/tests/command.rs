//! The command as scripts see it: flags, streams, JSON, exit status.

mod ecokv_bin;

use std::io::Read;
use std::process::Stdio;

use ecokv_bin::{command, ecokv, repo, stdout};
use serde_json::Value;

/// The bundled model: 5 layers, 2 KV heads of 64, 196 positions for an image.
const HEADS: usize = 5 * 2;
const HEAD_DIM: usize = 64;
const IMAGE_TOKENS: usize = 196;

#[test]
fn json_has_exactly_the_promised_fields() {
    let run = json(&["run", "--json", "--method", "ecokv", "--budget", "40"]);
    let object = run.as_object().unwrap();
    let mut names: Vec<&str> = object.keys().map(String::as_str).collect();
    names.sort_unstable();
    let mut promised = [
        "text",
        "tokens",
        "prompt_tokens",
        "image_tokens",
        "image_tiles",
        "method",
        "budget",
        "kept",
        "kv_bytes_full",
        "kv_bytes",
        "prefill_s",
        "evict_s",
        "decode_s",
        "prompt_tokens_per_s",
        "decode_tokens_per_s",
        "peak_rss_bytes",
    ];
    promised.sort_unstable();
    assert_eq!(names, promised);
    assert_eq!(run["text"], demo("answer"));
    assert_eq!(run["method"], "ecokv");
    assert_eq!(run["budget"], 40);
    assert_eq!(number(&run["image_tokens"]), IMAGE_TOKENS);
    assert!(number(&run["prompt_tokens"]) > IMAGE_TOKENS);
    // One token per character of an answer.
    assert_eq!(run["tokens"].as_array().unwrap().len(), demo("answer").chars().count());
    assert!(run["tokens"].as_array().unwrap().iter().all(Value::is_u64));
    for seconds in ["prefill_s", "evict_s", "decode_s"] {
        assert!(run[seconds].as_f64().unwrap() >= 0.0, "{seconds}");
    }
    let rate = |n: usize, seconds: &str| n as f64 / run[seconds].as_f64().unwrap();
    // The last character is decoded too: the end token comes after it.
    let steps = demo("answer").chars().count();
    close(&run["prompt_tokens_per_s"], rate(number(&run["prompt_tokens"]), "prefill_s"));
    close(&run["decode_tokens_per_s"], rate(steps, "decode_s"));
    if cfg!(target_os = "linux") {
        assert!(number(&run["peak_rss_bytes"]) > number(&run["kv_bytes"]));
    }
}

#[test]
fn kept_entries_and_bytes_agree() {
    for (kv_type, element) in [("f16", 2), ("f32", 4)] {
        // Keys and values, and the position of each entry.
        let entry = 2 * HEAD_DIM * element + 4;
        let run = json(&["--json", "--budget", "24", "--kv-type", kv_type]);
        assert_eq!(run["method"], "ecokv", "with a budget alone");
        assert_eq!(kept(&run), vec![vec![24; 2]; 5]);
        assert_eq!(number(&run["kv_bytes"]), 24 * HEADS * entry);
        assert_eq!(number(&run["kv_bytes_full"]), number(&run["prompt_tokens"]) * HEADS * entry);
    }
}

#[test]
fn without_flags_everything_is_kept() {
    let run = json(&["--json"]);
    assert_eq!(run["method"], "full");
    assert_eq!(run["budget"], Value::Null);
    assert_eq!(kept(&run), vec![vec![number(&run["prompt_tokens"]); 2]; 5]);
    assert_eq!(run["kv_bytes"], run["kv_bytes_full"]);
    assert_eq!(json(&["--json", "--method", "snapkv"])["budget"], 128);
    assert_eq!(json(&["run", "--json"])["tokens"], run["tokens"], "run is the default");
    assert_eq!(json(&["--json", "-t", "1"])["tokens"], run["tokens"], "threads change nothing");
}

#[test]
fn budgets_are_shared_as_asked() {
    let total = 24 * HEADS;
    let pyramid = kept(&json(&["--json", "--budget", "24", "--layer-budget", "pyramid"]));
    assert_eq!(pyramid.iter().flatten().sum::<usize>(), total);
    assert!(pyramid.windows(2).all(|l| l[0][0] > l[1][0]), "fewer entries in higher layers: {pyramid:?}");
    assert!(pyramid.iter().all(|layer| layer[0] == layer[1]));

    let adaptive = kept(&json(&["--json", "--budget", "24", "--head-budget", "adaptive"]));
    assert!(adaptive.iter().all(|layer| layer.iter().sum::<usize>() == 2 * 24), "{adaptive:?}");
    assert!(adaptive.iter().any(|layer| layer[0] != layer[1]), "ragged: {adaptive:?}");

    let flat = ["--json", "--budget", "24", "--method", "pyramidkv", "--layer-budget", "uniform"];
    assert_eq!(kept(&json(&flat)), vec![vec![24; 2]; 5]);
    let flat = ["--json", "--budget", "24", "--method", "adakv", "--head-budget", "uniform"];
    assert_eq!(kept(&json(&flat)), vec![vec![24; 2]; 5]);
}

#[test]
fn the_demo_compares_three_methods() {
    let text = stdout(&[]);
    assert!(text.contains(&demo("question")), "{text}");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    for (method, entries) in [("full", None), ("ecokv", Some("24")), ("snapkv", Some("24"))] {
        let row = rows.iter().find(|row| row.first() == Some(&method)).unwrap_or_else(|| panic!("{method}: {text}"));
        let verdict = if row[1] == demo("answer") { "right" } else { "wrong" };
        assert_eq!(row[2], verdict, "{text}");
        if let Some(entries) = entries {
            assert_eq!(row[3], entries, "{text}");
        } else {
            assert_eq!(verdict, "right", "the full cache answers the demo question: {text}");
        }
    }
}

#[test]
fn images_go_where_the_markers_are() {
    let question = demo("question");
    let chat = json(&["--json"]);
    let raw = |text: &str| json(&["--json", "--raw", "-p", text]);
    // The model's own template: image, line, question, line, "answer:".
    let in_front = raw(&format!("\n{question}\nanswer:"));
    let marked = raw(&format!("<__media__>\n{question}\nanswer:"));
    for run in [&in_front, &marked] {
        assert_eq!(run["tokens"], chat["tokens"]);
        assert_eq!(run["prompt_tokens"], chat["prompt_tokens"]);
    }
    let behind = raw(&format!("\n{question}\nanswer:<__media__>"));
    assert_eq!(behind["prompt_tokens"], chat["prompt_tokens"]);
    assert_ne!(behind["tokens"], chat["tokens"], "an image behind the question is another prompt");

    let image = repo("testdata/images/rgb.png");
    let two = json(&["--json", "-n", "0", "--image", &image, "--image", &image, "-p", "<__media__> and <__media__>?"]);
    assert_eq!(number(&two["image_tokens"]), 2 * IMAGE_TOKENS);
}

#[test]
fn a_model_with_its_projector_answers() {
    let (model, mmproj) = (repo("examples/models/tinyvlm-q8_0.gguf"), repo("examples/models/mmproj-cls-f16.gguf"));
    let (image, question) = (repo("examples/models/demo.png"), demo("question"));
    let output = ecokv(&["run", "-m", &model, "--mmproj", &mmproj, "--image", &image, "-p", &question]);
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}\n", demo("answer")));
    let table = String::from_utf8(output.stderr).unwrap();
    for row in ["prompt", "answer", "sampling  greedy", "method", "kept", "KV cache", "prefill", "decode", "memory"] {
        assert!(table.lines().any(|line| line.starts_with(row)), "{row}: {table}");
    }
    assert!(!table.contains('\u{1b}'), "no progress where nobody watches: {table:?}");
}

#[test]
fn image_limits_bound_the_cost_and_are_stated() {
    let folder = |name: &str| repo(&format!("testdata/models/idefics3/{name}"));
    let (model, mmproj) = (folder("model-f32.gguf"), folder("mmproj-f32.gguf"));
    // The tiny tower gives 4 rows for a square of 32 pixels; a picture is scaled to a longer side of 64 at most.
    let image = repo("testdata/images/rgb.png");
    let base = ["-m", &model, "--mmproj", &mmproj, "--image", &image, "--raw", "-p", "What?", "-n", "1"];
    for (flag, value) in [("--image-max-tokens", "4"), ("--image-max-tiles", "1"), ("--image-longest-edge", "32")] {
        let run = json(&[&base[..], &["--json", flag, value]].concat());
        assert_eq!((number(&run["image_tokens"]), number(&run["image_tiles"])), (4, 1), "{flag}");
    }
    let output = ecokv(&[&base[..], &["--image-max-tokens", "4"]].concat());
    let table = String::from_utf8(output.stderr).unwrap();
    let row = table.lines().find(|line| line.starts_with("images")).unwrap_or_else(|| panic!("{table}"));
    assert!(row.contains("1 in 1 tiles, 4 tokens, longest edge 32; limits for each: tokens 4; "), "{row}");
    let output = ecokv(&[&base[..], &["--image-max-tokens", "3"]].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("take at least 4 tokens"), "{error}");
}

#[test]
fn text_and_images_are_told_apart_by_flags() {
    // The bundled model's prompt has 196 entries of an image.
    let run = |flags: &[&str]| json(&[&["--json", "--budget", "64", "-n", "1"], flags].concat());
    let plain = kept(&run(&[]));
    for flags in [&["--protect", "text"][..], &["--image-budget", "20"], &["--centroid", "modality"]] {
        assert_eq!(kept(&run(flags)), plain, "{flags:?}: the budget is the same");
    }
    assert_eq!(run(&["--protect", "none"])["tokens"], run(&[])["tokens"]);
    for (flags, parts) in [
        (&["--budget", "64", "--protect", "image"][..], ["196", "64"]),
        (&["--budget", "64", "--image-budget", "65"], ["--image-budget 65", "64"]),
        (&["--budget", "64", "--method", "snapkv", "--centroid", "modality"], ["--centroid", "snapkv"]),
        (&["--method", "full", "--protect", "text"], ["--protect", "full"]),
    ] {
        let output = ecokv(flags);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn text_streams_as_it_is_made() {
    let model = toy_model();
    let args = ["-m", &model, "--raw", "-p", "once upon a time", "-n", "1500"];
    // Written at the end, the text would always come in one piece. A reader that is slower than the model sees few
    // pieces too, so there are several tries.
    let (mut text, mut pieces) = (Vec::new(), 0);
    for _ in 0..50 {
        (text, pieces) = pieces_of(&args);
        if pieces > 5 {
            break;
        }
    }
    assert!(pieces > 5, "{} bytes in {pieces} pieces", text.len());
    let whole = json(&[&args[..], &["--json"]].concat());
    assert_eq!(
        String::from_utf8(text).unwrap().trim_end_matches('\n'),
        whole["text"].as_str().unwrap().trim_end_matches('\n')
    );
}

/// What the command prints, and in how many reads it arrives.
fn pieces_of(args: &[&str]) -> (Vec<u8>, usize) {
    let mut child = command(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let (mut text, mut pieces, mut buffer) = (Vec::new(), 0, vec![0; 1 << 20]);
    loop {
        match out.read(&mut buffer).unwrap() {
            0 => break,
            n => text.extend_from_slice(&buffer[..n]),
        }
        pieces += 1;
    }
    assert!(child.wait().unwrap().success());
    (text, pieces)
}

#[test]
fn answers_end_where_they_must() {
    let model = toy_model();
    let base = ["-m", &model, "--raw", "-p", "once upon a time"];
    let with = |more: &[&str]| json(&[&base[..], &["--json"], more].concat());
    let ten = with(&["-n", "10"]);
    assert_eq!(ten["tokens"].as_array().unwrap().len(), 10);
    let n_prompt = number(&ten["prompt_tokens"]);

    let none = with(&["-n", "0"]);
    assert_eq!((&none["text"], &none["tokens"]), (&"".into(), &Value::Array(vec![])));
    assert_eq!(none["decode_tokens_per_s"], Value::Null);
    assert_eq!(stdout(&[&base[..], &["-n", "0"]].concat()), "");

    let context = (n_prompt + 4).to_string();
    let cut = ecokv(&[&base[..], &["--json", "-c", &context]].concat());
    let tokens = serde_json::from_slice::<Value>(&cut.stdout).unwrap()["tokens"].clone();
    assert_eq!(tokens.as_array().unwrap()[..], ten["tokens"].as_array().unwrap()[..4]);
    let stderr = String::from_utf8(cut.stderr).unwrap();
    assert!(stderr.starts_with("note: ") && stderr.contains(&context), "{stderr}");
}

#[test]
fn sampling_follows_the_seed() {
    let model = toy_model();
    let run = |seed: &str, top_k: &str| {
        let args = ["--raw", "-p", "a", "-n", "30", "--json", "--temp", "2", "--top-k", top_k, "--seed", seed];
        json(&[&["-m", &model[..]][..], &args].concat())["tokens"].clone()
    };
    assert_eq!(run("1", "0"), run("1", "0"));
    assert_ne!(run("1", "0"), run("2", "0"));
    let greedy = json(&["-m", &model, "--raw", "-p", "a", "-n", "30", "--json"])["tokens"].clone();
    assert_eq!(run("1", "1"), greedy, "the most likely token only");
}

#[test]
fn fallbacks_are_said_aloud() {
    let said = |args: &[&str]| String::from_utf8(ecokv(args).stderr).unwrap();
    let model = toy_model();
    let template = said(&["-m", &model, "-p", "hello", "-n", "1", "--json"]);
    assert!(
        template.contains("note: the model file has no chat template") && template.contains("vicuna"),
        "{template}"
    );
    let window = said(&["--json", "--method", "snapkv", "--budget", "24"]);
    assert_eq!(window, "note: snapkv: of the window of 32 entries only 23 are kept, as the budget is 24\n");
    assert_eq!(said(&["--json", "--budget", "24"]), "", "a window of 8 fits");
    assert!(said(&["--json", "--top-k", "3"]).contains("--temp 0 is greedy"));
}

#[test]
fn methods_are_listed_by_their_axes() {
    let text = stdout(&["methods"]);
    let row = |name: &str| text.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap().to_owned();
    assert!(row("ecokv").contains("0.5 Euclidean + 0.5 cosine") && row("ecokv").contains("last 8"), "{text}");
    assert!(row("pyramidkv").contains("pyramid, beta 20") && row("adakv").contains("floor 0.2"), "{text}");
    let markdown = stdout(&["methods", "--markdown"]);
    let lines: Vec<&str> = markdown.lines().collect();
    assert_eq!(lines.len(), 2 + ecokv_core::methods::ALL.len(), "{markdown}");
    assert!(lines.iter().all(|line| line.starts_with('|') && line.matches('|').count() == 10), "{markdown}");
}

#[test]
fn inspect_shows_text_and_json() {
    let model = repo("examples/models/tinyvlm-q8_0.gguf");
    let summary = json(&["inspect", &model, "--json"]);
    for (key, value) in [("n_layers", 5), ("n_embd", 256), ("key_length", 64), ("context_length", 1024)] {
        assert_eq!(summary[key], value, "{key}");
    }
    assert_eq!(summary["architecture"], "llama");
    assert_eq!(number(&summary["kv_bytes_per_token_f16"]), HEADS * 2 * HEAD_DIM * 2);
    assert_eq!(summary["types"][0]["type"], "Q8_0");
    let text = stdout(&["inspect", &model]);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    for expected in [["architecture", "llama"], ["n_kv_heads", "2"], ["kv_bytes_per_token_f16", "2560"]] {
        assert!(lines.iter().any(|line| line[..] == expected), "{expected:?}: {text}");
    }
    let projector = json(&["inspect", &repo("examples/models/mmproj-cls-f16.gguf"), "--json"]);
    assert_eq!((&projector["image_size"], &projector["projection_width"]), (&168.into(), &256.into()));
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    let model = toy_model();
    let lists: [&[&str]; 2] = [&["methods"], &["-m", &model, "--raw", "-p", "a", "-n", "500"]];
    for args in lists {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{args:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{args:?}");
    }
}

#[test]
fn help_and_version_succeed() {
    assert!(stdout(&["--help"]).contains("--keep-recent"));
    assert!(stdout(&["run", "--help"]).contains("--keep-recent"));
    assert_eq!(stdout(&["--version"]), format!("ecokv {}\n", env!("CARGO_PKG_VERSION")));
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).unwrap()
}

fn demo(key: &str) -> String {
    let text = std::fs::read_to_string(repo("examples/models/demo.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()[key].as_str().unwrap().to_owned()
}

fn toy_model() -> String {
    repo("testdata/models/llama/model-f32.gguf")
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count")) as usize
}

fn kept(run: &Value) -> Vec<Vec<usize>> {
    let layers = run["kept"].as_array().unwrap();
    layers.iter().map(|layer| layer.as_array().unwrap().iter().map(number).collect()).collect()
}

fn close(value: &Value, expected: f64) {
    let value = value.as_f64().unwrap();
    assert!((value - expected).abs() <= 1e-9 * expected, "{value} is not {expected}");
}
