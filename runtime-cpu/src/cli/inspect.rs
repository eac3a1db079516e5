//! `ecokv inspect`: what a GGUF file holds.

use ecokv::gguf::{GgufFile, LanguageSummary, ModelSummary, ProjectorSummary, Summary};
use serde_json::{Map, Value, json};

use super::args::InspectArgs;
use super::output::{Failure, bytes, columns, print};

pub fn run(args: &InspectArgs) -> Result<(), Failure> {
    let summary = Summary::new(&GgufFile::open(&args.file)?)?;
    let fields = fields(&summary);
    if args.json {
        let object: Map<String, Value> = fields.into_iter().map(|(key, value)| (key.into(), value)).collect();
        return print(&format!("{}\n", Value::from(object)));
    }
    let shown = fields.iter().filter(|(key, value)| !value.is_null() && *key != "types");
    let rows: Vec<Vec<String>> = shown.map(|(key, value)| vec![(*key).into(), text(key, value)]).collect();
    let mut types: Vec<Vec<String>> = vec![["type", "tensors", "parameters", "bytes"].map(String::from).to_vec()];
    types.extend(
        summary
            .types
            .iter()
            .map(|t| vec![t.ty.to_string(), t.n_tensors.to_string(), t.n_parameters.to_string(), bytes(t.n_bytes)]),
    );
    print(&format!("{}\n{}", columns(&rows), columns(&types)))
}

/// The same names in text and JSON. `null` is what the file does not say.
fn fields(s: &Summary) -> Vec<(&'static str, Value)> {
    let types = s.types.iter().map(|t| {
        json!({"type": t.ty.to_string(), "n_tensors": t.n_tensors, "n_parameters": t.n_parameters, "n_bytes": t.n_bytes})
    });
    let mut fields = vec![
        ("file", json!(s.file)),
        ("file_bytes", json!(s.file_bytes)),
        ("architecture", json!(s.architecture)),
        ("name", json!(s.name)),
        ("n_tensors", json!(s.n_tensors)),
        ("n_parameters", json!(s.n_parameters)),
        ("tensor_bytes", json!(s.tensor_bytes)),
        ("types", types.collect()),
    ];
    match &s.model {
        ModelSummary::Language(m) => fields.extend(language(m)),
        ModelSummary::Projector(m) => fields.extend(projector(m)),
        // A kind of file that is newer than this command has its general part only.
        _ => {}
    }
    fields
}

fn language(m: &LanguageSummary) -> [(&'static str, Value); 14] {
    [
        ("kind", json!("language model")),
        ("n_layers", json!(m.n_layers)),
        ("n_embd", json!(m.n_embd)),
        ("n_ff", json!(m.n_ff)),
        ("n_heads", json!(m.n_heads)),
        ("n_kv_heads", json!(m.n_kv_heads)),
        ("key_length", json!(m.key_length)),
        ("value_length", json!(m.value_length)),
        ("context_length", json!(m.context_length)),
        ("vocab_size", json!(m.vocab_size)),
        ("rope_freq_base", json!(m.rope_freq_base)),
        ("tied_head", json!(m.tied_head)),
        ("kv_bytes_per_token_f32", json!(m.kv_bytes_per_token_f32)),
        ("kv_bytes_per_token_f16", json!(m.kv_bytes_per_token_f16)),
    ]
}

fn projector(m: &ProjectorSummary) -> [(&'static str, Value); 9] {
    [
        ("kind", json!("vision tower and projector")),
        ("projector_type", json!(m.projector_type)),
        ("image_size", json!(m.image_size)),
        ("patch_size", json!(m.patch_size)),
        ("n_layers", json!(m.n_layers)),
        ("n_embd", json!(m.n_embd)),
        ("n_ff", json!(m.n_ff)),
        ("n_heads", json!(m.n_heads)),
        ("projection_width", json!(m.projection_width)),
    ]
}

fn text(key: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // Most models have the same heads and widths in every layer.
        Value::Array(values) if values.iter().all(|v| Some(v) == values.first()) => {
            values.first().map_or("none".into(), Value::to_string)
        }
        Value::Number(n) if key.ends_with("_bytes") => {
            n.as_u64().map_or(n.to_string(), |n| format!("{n} ({})", bytes(n)))
        }
        other => other.to_string(),
    }
}
