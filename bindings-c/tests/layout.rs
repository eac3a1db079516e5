//! Sizes and offsets as the C compiler sees them in the header, against those of Rust; and what the build script repeats.

#[path = "layout/mod.rs"]
mod layout;

use ecokv_c::*;
use layout::{header_layout, layout_of};

#[test]
fn c_and_rust_agree() {
    let rust = [
        layout_of!(ecokv_engine_params_t {
            struct_size,
            n_threads,
            precision,
            flags,
            model_path,
            mmproj_path,
            model_data,
            model_size,
            mmproj_data,
            mmproj_size,
            dispatch,
            image_max_tokens,
            image_max_tiles,
            image_longest_edge,
            reserved
        }),
        layout_of!(ecokv_engine_info_t {
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            n_embd,
            n_vocab,
            n_ctx_train,
            has_vision,
            has_template,
            n_threads,
            bos,
            eos,
            adds_bos,
            precision,
            dispatch,
            architecture
        }),
        layout_of!(ecokv_generate_params_t { struct_size, max_tokens, on_token, user }),
        layout_of!(ecokv_generated_t { n_tokens, end }),
        layout_of!(ecokv_image_cost_t { n_tokens, n_tiles, longest_edge }),
        layout_of!(ecokv_stats_t {
            prefill_ns,
            evict_ns,
            decode_ns,
            prompt_tokens,
            decoded_tokens,
            kv_bytes_full,
            kv_bytes,
            nan_scores,
            n_past
        }),
        layout_of!(ecokv_sampling_t { struct_size, temperature, top_k, top_p, seed }),
        layout_of!(ecokv_session_params_t {
            struct_size,
            n_ctx,
            n_generate,
            kv_type,
            budget,
            protect,
            policy,
            route,
            head_scores,
            n_head_scores,
            image_budget,
            reserved
        }),
        layout_of!(ecokv_prefill_params_t { struct_size, reserved, on_progress, user }),
    ];
    assert_eq!(header_layout("ecokv.h"), rust.concat());
}

#[test]
fn the_shared_library_is_named_after_the_interface() {
    let line = format!("const ABI: u32 = {};", core::ECOKV_ABI_VERSION);
    assert!(include_str!("../build.rs").contains(&line));
}

/// Numbers are a promise to compiled callers: this list only ever grows.
#[test]
fn numbers_are_fixed() {
    let header = include_str!("../include/ecokv.h");
    let define = |line: &'static str| line.strip_prefix("#define ECOKV_")?.split_once(' ');
    let mut there: Vec<_> = header.lines().filter_map(define).collect();
    there.sort_unstable();
    let mut expected = [
        ("PRECISION_DEFAULT", "0"),
        ("PRECISION_INT8", "1"),
        ("PRECISION_INT16", "2"),
        ("PRECISION_FLOAT", "3"),
        ("END_TOKEN", "0"),
        ("END_LIMIT", "1"),
        ("END_CONTEXT", "2"),
        ("END_STOPPED", "3"),
        ("NO_TOKEN", "UINT32_MAX"),
        ("PROMPT_CHAT", "0"),
        ("PROMPT_RAW", "1"),
        ("KV_DEFAULT", "0"),
        ("KV_F32", "1"),
        ("KV_F16", "2"),
        ("KV_Q8_0", "3"),
        ("PROTECT_NONE", "0"),
        ("PROTECT_TEXT", "1"),
        ("PROTECT_IMAGE", "2"),
        ("IMAGE_BUDGET_NONE", "UINT32_MAX"),
        ("ENGINE_NO_REPACK", "1"),
        ("TOKENIZE_ADD_SPECIAL", "1"),
        ("TOKENIZE_PARSE_SPECIAL", "2"),
    ];
    expected.sort_unstable();
    assert_eq!(there, expected);
}
