/* The same without an operating system or a C library: static memory, half-precision rows, one call after prefill.
 * Entry i of head h is row h * MAX_LEN + i. */
#include "ecokv_core.h"

enum { N_KV_HEADS = 2, HEAD_DIM = 32, MAX_LEN = 256, ROWS = N_KV_HEADS * MAX_LEN, BUDGET = 48, N_F32S = 8192 };

typedef struct {
    uint16_t keys[ROWS][HEAD_DIM], values[ROWS][HEAD_DIM];
    uint32_t positions[ROWS], lens[N_KV_HEADS];
} cache_t;

static float f32s[N_F32S];
static uint32_t u32s[ROWS], indices[ROWS], counts[N_KV_HEADS];

static ecokv_status_t prune(cache_t *cache) {
    static const uint32_t starts[N_KV_HEADS] = {0, MAX_LEN};
    const ecokv_policy_t policy = {
        .struct_size = sizeof policy, .method = "keydiff", .set = ECOKV_SET_SINKS, .sinks = 4};
    const ecokv_layer_t layer = {
        .struct_size = sizeof layer, .n_kv_heads = N_KV_HEADS, .group = 1,          .head_dim = HEAD_DIM,
        .n_layers = 1,               .scale = 1.0f,            .rows = ROWS,        .key_type = ECOKV_ROWS_F16,
        .starts = starts,            .lens = cache->lens,      .keys = cache->keys, .value_type = ECOKV_ROWS_F16,
    };
    const ecokv_workspace_t workspace = {f32s, u32s, N_F32S, ROWS};
    const ecokv_keep_t keep = {indices, counts, ROWS, N_KV_HEADS};
    ecokv_status_t status = ecokv_evict_layer(&policy, BUDGET, &layer, &workspace, &keep, 0, 0);
    if (!status) status = ecokv_compact(cache->keys, sizeof *cache->keys, ROWS, starts, N_KV_HEADS, &keep, 0);
    if (!status) status = ecokv_compact(cache->values, sizeof *cache->values, ROWS, starts, N_KV_HEADS, &keep, 0);
    if (!status) status = ecokv_compact(cache->positions, sizeof(uint32_t), ROWS, starts, N_KV_HEADS, &keep, 0);
    for (int h = 0; !status && h < N_KV_HEADS; h++) cache->lens[h] = counts[h];
    return status;
}

static cache_t cache;

/* Keys along one axis, but for every tenth: those are kept, with the first four entries. */
int main(void) {
    for (uint32_t h = 0; h < N_KV_HEADS; h++) {
        for (uint32_t i = 0; i < 200; i++) {
            const uint32_t row = h * MAX_LEN + i;
            cache.keys[row][i % 10 ? 0 : 1 + i / 10] = 0x3c00; /* 1.0 */
            cache.positions[row] = i;
        }
        cache.lens[h] = 200;
    }
    if (prune(&cache)) return 1;
    for (uint32_t h = 0; h < N_KV_HEADS; h++) {
        uint32_t odd = 0;
        for (uint32_t i = 0; i < cache.lens[h]; i++) odd += cache.positions[h * MAX_LEN + i] % 10 == 0;
        if (cache.lens[h] != BUDGET || odd != 20 || cache.positions[h * MAX_LEN + 3] != 3) return 2;
    }
    return 0;
}
