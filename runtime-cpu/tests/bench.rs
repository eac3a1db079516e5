//! `ecokv bench` as scripts see it.

mod ecokv_bin;

use ecokv_bin::{ecokv, repo, stdout};
use serde_json::Value;

/// 5 layers of 2 KV heads of 64: keys and values in f16, and a position, for every entry.
const ENTRY: usize = 2 * 64 * 2 + 4;
const HEADS: usize = 5 * 2;

#[test]
fn json_has_a_result_for_every_test() {
    let run = json(&["-p", "24,0,7", "-n", "3", "-d", "0,40", "-t", "1,2", "-r", "2"]);
    let shape = |r: &Value| (text(&r["test"]), number(&r["n"]), number(&r["depth"]), number(&r["threads"]));
    let shapes: Vec<_> = results(&run).iter().map(shape).collect();
    let mut expected = Vec::new();
    for threads in [1, 2] {
        for depth in [0, 40] {
            expected.extend([("pp", 24), ("pp", 7), ("tg", 3)].map(|(test, n)| (test.to_owned(), n, depth, threads)));
        }
    }
    assert_eq!(shapes, expected);
    for r in results(&run) {
        assert!(r["tokens_per_s"].as_f64().unwrap() > 0.0 && r["spread"].as_f64().unwrap() >= 0.0, "{r}");
        assert_eq!(number(&r["kv_bytes"]), (number(&r["depth"]) + number(&r["n"])) * HEADS * ENTRY, "{r}");
        if cfg!(target_os = "linux") {
            assert!(number(&r["peak_rss_bytes"]) > number(&r["kv_bytes"]), "{r}");
        }
        let mut names: Vec<&str> = r.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["depth", "kv_bytes", "n", "peak_rss_bytes", "spread", "test", "threads", "tokens_per_s"]);
    }
}

#[test]
fn an_evicted_depth_is_as_small_as_the_budget() {
    let run = json(&["-p", "30", "-n", "4", "-d", "60", "-t", "1", "-r", "2", "--budget", "16"]);
    assert_eq!((text(&run["method"]), number(&run["budget"])), ("ecokv".into(), 16));
    let bytes: Vec<usize> = results(&run).iter().map(|r| number(&r["kv_bytes"])).collect();
    // The prompt is evicted at its end; generated tokens come on top.
    assert_eq!(bytes, [16 * HEADS * ENTRY, (16 + 4) * HEADS * ENTRY]);
}

#[test]
fn every_instruction_set_can_be_forced() {
    let base = ["-p", "4", "-n", "0", "-t", "1", "-r", "1"];
    let asked = |name: &str| text(&json(&[&base[..], &["--dispatch", name]].concat())["dispatch"]);
    let levels = ecokv::kernels::Dispatch::available();
    for level in &levels {
        assert_eq!(asked(level.name()), level.name());
    }
    assert_eq!(text(&json(&base)["dispatch"]), levels.last().unwrap().name(), "the best one");

    let said = refused(&["--dispatch", "mmx"]);
    assert!(levels.iter().all(|l| said.contains(l.name())) && said.contains("mmx"), "{said}");
}

#[test]
fn the_activations_can_be_chosen() {
    let base = ["-p", "4", "-n", "0", "-t", "1", "-r", "1"];
    for precision in ["int8", "int16", "float"] {
        let run = json(&[&base[..], &["--precision", precision]].concat());
        assert_eq!(text(&run["precision"]), precision);
    }
    assert!(refused(&["--precision", "int4"]).contains("int4"));
}

#[test]
fn weights_may_stay_in_the_map() {
    let base = ["-p", "4", "-n", "1", "-t", "1", "-r", "1"];
    for (more, repack) in [(&[][..], true), (&["--no-repack"][..], false)] {
        let run = json(&[&base[..], more].concat());
        assert_eq!((&run["repack"], results(&run).len()), (&repack.into(), 2));
    }
}

#[test]
fn the_table_names_every_test() {
    let table = bench(&["-p", "4", "-n", "2", "-d", "0,8", "-t", "1", "-r", "1", "--kv-type", "f32"]);
    for name in ["pp4 ", "tg2 ", "pp4 @ d8 ", "tg2 @ d8 ", "test "] {
        assert!(table.lines().any(|line| line.starts_with(name)), "{name}: {table}");
    }
    assert!(table.contains("f32 cache, method full; medians of 1"), "{table}");
}

#[test]
fn what_cannot_be_measured_is_refused_at_once() {
    assert!(refused(&["-p", "0", "-n", "0"]).contains("-p 0"));
    let deep = refused(&["-p", "24", "-n", "2", "-d", "0,1001"]);
    assert!(deep.contains("pp24 @ d1001") && deep.contains("1024"), "{deep}");
    assert!(refused(&["-d", "deep"]).contains("deep"));
    assert!(refused(&["-r", "0"]).contains("-r"));
    assert!(refused(&["-t", "0"]).contains("-t"));
    assert!(refused(&["--window", "4"]).contains("--window"));
}

fn bench(args: &[&str]) -> String {
    stdout(&with_model(args).iter().map(String::as_str).collect::<Vec<_>>())
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&bench(&[args, &["--json"]].concat())).unwrap()
}

/// The one line on stderr.
fn refused(args: &[&str]) -> String {
    let output = ecokv(&with_model(args).iter().map(String::as_str).collect::<Vec<_>>());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{args:?}: {stderr}");
    assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{args:?}: {stderr}");
    stderr
}

fn with_model(args: &[&str]) -> Vec<String> {
    let model = repo("examples/models/tinyvlm-q8_0.gguf");
    ["bench", "-m", &model].iter().chain(args).map(|&a| a.to_owned()).collect()
}

fn results(run: &Value) -> &[Value] {
    run["results"].as_array().unwrap()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count")) as usize
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not text")).to_owned()
}
