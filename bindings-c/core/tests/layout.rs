//! Sizes and offsets as the C compiler sees them in the header, against those of Rust.

#[path = "../../tests/layout/mod.rs"]
mod layout;

use ecokv_core_c::*;
use layout::{header_layout, layout_of};

#[test]
fn c_and_rust_agree() {
    let rust = [
        layout_of!(ecokv_text_t { data, len }),
        layout_of!(ecokv_error_t { status, head, what, need, got }),
        layout_of!(ecokv_policy_t {
            struct_size,
            set,
            method,
            seed,
            window,
            keep_recent,
            sinks,
            head_budget,
            floor,
            alpha,
            beta,
            layer_budget,
            pyramid_beta,
            centroid
        }),
        layout_of!(ecokv_layer_t {
            struct_size,
            n_kv_heads,
            group,
            head_dim,
            layer,
            n_layers,
            scale,
            key_type,
            value_type,
            n_queries,
            rows,
            starts,
            lens,
            keys,
            values,
            queries,
            column_sums,
            query_mean,
            query_covariance,
            output_norms,
            given,
            head_weights,
            head_budgets,
            tags
        }),
        layout_of!(ecokv_workspace_t { f32s, u32s, n_f32s, n_u32s }),
        layout_of!(ecokv_keep_t { indices, counts, n_indices, n_counts }),
        layout_of!(ecokv_slots_t { keys, values, mass, n }),
        layout_of!(ecokv_workspace_size_t { n_f32s, n_u32s }),
        layout_of!(ecokv_evictee_t { key, value, head_dim, entropy, mean_entropy, reserved }),
        layout_of!(ecokv_reading_t { out, max, sum }),
        layout_of!(ecokv_report_t { recent_kept, nan_scores }),
        layout_of!(ecokv_method_t { name, summary, source, proof }),
        layout_of!(ecokv_needs_t { window_queries, reads, fate, slots }),
    ];
    assert_eq!(header_layout("ecokv_core.h"), rust.concat());
}
