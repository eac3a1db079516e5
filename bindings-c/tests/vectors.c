/* The program of core/firmware once more, through the C interface: every method on the same made-up caches. Its text must
 * equal that of the Rust program, byte for byte, on every processor. Freestanding: needs put(), and -ffp-contract=off. */
#include "ecokv_core.h"

void put(const char *text);

enum {
    N_KV_HEADS = 2,
    GROUP = 2,
    N_HEADS = N_KV_HEADS * GROUP,
    LEN = 280,
    ROWS = N_KV_HEADS * LEN,
    DIM = 32,
    BLOCK = 34,
    ODD_DIM = 19,
    N_QUERIES = 32,
    SLOTS = 8,
    BUDGET = 48,
    N_LAYERS = 8
};

static float keys[ROWS * DIM], strange[ROWS * DIM], values[ROWS * DIM], queries[N_HEADS * N_QUERIES * DIM];
static float query_mean[N_HEADS * DIM], query_covariance[N_HEADS * DIM * DIM];
static float column_sums[ROWS], output_norms[ROWS], given[ROWS];
static uint8_t blocks[ROWS * BLOCK], tags[ROWS];
static uint16_t halves[ROWS * DIM], brains[ROWS * DIM];

static float f32s[1 << 15], scores[ROWS], merged_keys[ROWS * DIM], merged_values[ROWS * DIM], stands_for[ROWS];
static float slot_keys[N_KV_HEADS * SLOTS * DIM], slot_values[N_KV_HEADS * SLOTS * DIM], slot_mass[N_KV_HEADS * SLOTS];
static uint32_t u32s[1 << 11], indices[ROWS], counts[N_KV_HEADS];

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint64_t next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static float number(void) { return (float)(uint32_t)(next() >> 40) / 8388608.0f - 1.0f; }

static float absolute(float x) { return x < 0 ? -x : x; }

static uint32_t bits_of(float x) {
    union {
        float f;
        uint32_t u;
    } pun;
    pun.f = x;
    return pun.u;
}

static float float_of(uint32_t u) {
    union {
        float f;
        uint32_t u;
    } pun;
    pun.u = u;
    return pun.f;
}

/* Rounds to nearest, ties to even; for normal halves and zero, which is all that occurs. */
static uint16_t to_half(float x) {
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude < 0x38800000) { /* below the normal halves: units of 2^-24 */
        float units = float_of(magnitude) * 16777216.0f;
        uint32_t whole = (uint32_t)units;
        float rest = units - (float)whole;
        if (rest > 0.5f || (rest == 0.5f && (whole & 1))) whole++;
        return (uint16_t)(sign | whole);
    }
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((magnitude - 0x38000000) >> 13));
}

static uint16_t to_brain(float x) {
    uint32_t u = bits_of(x);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void fill(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = number();
}

static void fill_absolute(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = absolute(number());
}

static void set_row(float *x, int row, float to) {
    for (int i = 0; i < DIM; i++) x[row * DIM + i] = to;
}

static void make_layer(void) {
    static const float common[4] = {0.0f, 0.75f, -0.5f, 0.25f};
    for (int i = 0; i < ROWS * DIM; i++) keys[i] = number() + common[i % 4];
    for (int i = 0; i < ROWS * DIM; i++) strange[i] = keys[i];
    set_row(strange, 5, 0.0f);
    set_row(strange, 70, 1e-41f);
    set_row(strange, 90, 1e17f);
    strange[(LEN + 7) * DIM] = float_of(0x7fc00000);
    strange[(LEN + 50) * DIM + 3] = float_of(0x7f800000);
    for (int b = 0; b < ROWS; b++) {
        uint16_t scale = to_half(0.01f + 0.002f * number());
        for (int i = 0; i < BLOCK; i++) blocks[b * BLOCK + i] = (uint8_t)(next() >> 56);
        blocks[b * BLOCK] = (uint8_t)scale;
        blocks[b * BLOCK + 1] = (uint8_t)(scale >> 8);
    }
    for (int i = 0; i < N_HEADS * DIM * DIM; i++) {
        query_covariance[i] = 0.01f * number() + (i % (DIM + 1) == 0 ? 0.5f : 0.0f);
    }
    for (int i = 0; i < ROWS; i++) {
        tags[i] = (uint8_t)((i % 97 == 13 ? ECOKV_TAG_PROTECTED : 0) | (i % 3 == 0 ? ECOKV_TAG_IMAGE : 0));
    }
    fill(values, ROWS * DIM);
    fill(queries, N_HEADS * N_QUERIES * DIM);
    fill(query_mean, N_HEADS * DIM);
    fill_absolute(column_sums, ROWS);
    fill_absolute(output_norms, ROWS);
    fill(given, ROWS);
    for (int i = 0; i < ROWS * DIM; i++) {
        halves[i] = to_half(keys[i]);
        brains[i] = to_brain(keys[i]);
    }
}

/* FNV-1a over the bits; all NaNs are one. */
static uint64_t hash(uint64_t h, const float *x, int n) {
    for (int i = 0; i < n; i++) {
        uint32_t u = x[i] != x[i] ? 0x7fc00000 : bits_of(x[i]);
        for (int b = 0; b < 4; b++) h = (h ^ (u >> 8 * b & 0xff)) * 0x100000001b3u;
    }
    return h;
}

static const uint64_t hash_start = 0xcbf29ce484222325u;

static void put_number(uint32_t n) {
    char text[11], *at = text + 10;
    *at = 0;
    do *--at = (char)('0' + n % 10);
    while (n /= 10);
    put(at);
}

static void put_hash(uint64_t h) {
    char text[17];
    for (int i = 0; i < 16; i++) text[i] = "0123456789abcdef"[h >> (60 - 4 * i) & 15];
    text[16] = 0;
    put(text);
}

static void put_list(const uint32_t *x, uint32_t n) {
    put("[");
    for (uint32_t i = 0; i < n; i++) {
        if (i) put(", ");
        put_number(x[i]);
    }
    put("]\n");
}

static int refused(const char *where, const ecokv_error_t *error) {
    char text[100];
    size_t n = error->what.len < sizeof text - 1 ? error->what.len : sizeof text - 1;
    for (size_t i = 0; i < n; i++) text[i] = error->what.data[i];
    text[n] = 0;
    put("refused: ");
    put(where);
    put(": ");
    put(ecokv_status_text(error->status));
    put(": ");
    put(text);
    put("\n");
    return 1;
}

static int one(const ecokv_policy_t *policy, const ecokv_needs_t *needs, uint32_t type, uint32_t dim, const void *rows) {
    static const uint32_t starts[N_KV_HEADS] = {0, LEN}, head_budgets[N_KV_HEADS] = {BUDGET + 8, BUDGET - 8};
    static const float head_weights[N_KV_HEADS] = {0.25f, 0.75f};
    uint32_t lens[N_KV_HEADS] = {LEN, LEN - 9};
    ecokv_layer_t layer = {0};
    layer.struct_size = sizeof layer;
    layer.n_kv_heads = N_KV_HEADS;
    layer.group = GROUP;
    layer.head_dim = dim;
    layer.layer = 3;
    layer.n_layers = N_LAYERS;
    layer.scale = 0.25f;
    layer.key_type = type;
    layer.value_type = ECOKV_ROWS_F32;
    layer.n_queries = N_QUERIES;
    layer.rows = ROWS;
    layer.starts = starts;
    layer.lens = lens;
    layer.keys = rows;
    layer.values = values;
    layer.queries = queries;
    layer.column_sums = column_sums;
    layer.query_mean = query_mean;
    layer.query_covariance = query_covariance;
    layer.output_norms = output_norms;
    layer.given = given;
    layer.head_weights = head_weights;
    layer.head_budgets = head_budgets;
    layer.tags = tags;

    ecokv_error_t error;
    ecokv_report_t report;
    ecokv_workspace_size_t size;
    if (ecokv_workspace_size(policy, &layer, &size, &error)) return refused(policy->method, &error);
    if (size.n_f32s > sizeof f32s / sizeof *f32s || size.n_u32s > sizeof u32s / sizeof *u32s) return 1;
    ecokv_workspace_t workspace = {f32s, u32s, size.n_f32s, size.n_u32s};
    ecokv_keep_t keep = {indices, counts, ROWS, N_KV_HEADS};
    ecokv_status_t status = ecokv_evict_layer(policy, BUDGET, &layer, &workspace, &keep, &report, &error);
    if (status == ECOKV_CONFIG) { /* heads of one list of entries must be equally long */
        lens[1] = LEN;
        status = ecokv_evict_layer(policy, BUDGET, &layer, &workspace, &keep, &report, &error);
    }
    if (status) return refused(policy->method, &error);
    for (int i = 0; i < ROWS; i++) scores[i] = 0;
    if (ecokv_score_layer(policy, BUDGET, &layer, &workspace, scores, ROWS, &report, &error)) {
        return refused(policy->method, &error);
    }
    put(" scores ");
    put_hash(hash(hash_start, scores, ROWS));
    put(" recent ");
    put_number(report.recent_kept);
    put(report.nan_scores ? " nan 1\n" : " nan 0\n");
    for (int h = 0; h < N_KV_HEADS; h++) {
        put("  ");
        put_list(indices + starts[h], counts[h]);
    }

    if (needs->fate == ECOKV_FATE_RETAIN) {
        for (int i = 0; i < N_KV_HEADS * SLOTS * DIM; i++) slot_keys[i] = slot_values[i] = 0;
        for (int i = 0; i < N_KV_HEADS * SLOTS; i++) slot_mass[i] = 0;
        ecokv_slots_t slots = {slot_keys, slot_values, slot_mass, (size_t)N_KV_HEADS * needs->slots};
        if (needs->slots > SLOTS) return 1;
        if (ecokv_retain_layer(policy, BUDGET, &layer, &workspace, &keep, &slots, &error)) {
            return refused("retain", &error);
        }
        uint64_t h = hash(hash_start, slot_keys, N_KV_HEADS * SLOTS * DIM);
        h = hash(h, slot_values, N_KV_HEADS * SLOTS * DIM);
        put("  slots ");
        put_hash(hash(h, slot_mass, N_KV_HEADS * SLOTS));
        put("\n");
    }
    if (needs->fate == ECOKV_FATE_MERGE && type == ECOKV_ROWS_F32) {
        for (uint32_t i = 0; i < ROWS * dim; i++) merged_keys[i] = ((const float *)rows)[i];
        for (int i = 0; i < ROWS * DIM; i++) merged_values[i] = values[i];
        for (int i = 0; i < ROWS; i++) stands_for[i] = 1;
        if (ecokv_merge_workspace_size(&layer, &size, &error)) return refused("merge", &error);
        workspace.n_f32s = size.n_f32s;
        workspace.n_u32s = size.n_u32s;
        if (ecokv_merge_layer(policy, &layer, merged_keys, merged_values, stands_for, &keep, &workspace, &error)) {
            return refused("merge", &error);
        }
        uint64_t h = hash(hash_start, merged_keys, (int)(ROWS * dim));
        h = hash(h, merged_values, ROWS * DIM);
        put("  merged ");
        put_hash(hash(h, stands_for, ROWS));
        put("\n");
    }
    return 0;
}

int main(void) {
    static const struct {
        const char *name;
        uint32_t type, dim;
        const void *rows;
    } formats[] = {
        {"f32", ECOKV_ROWS_F32, DIM, keys},     {"f16", ECOKV_ROWS_F16, DIM, halves},
        {"bf16", ECOKV_ROWS_BF16, DIM, brains}, {"q8_0", ECOKV_ROWS_Q8_0, DIM, blocks},
        {"odd", ECOKV_ROWS_F32, ODD_DIM, keys}, {"strange", ECOKV_ROWS_F32, DIM, strange},
    };
    make_layer();
    for (size_t m = 0; m < ecokv_method_count(); m++) {
        ecokv_method_t method;
        ecokv_needs_t needs;
        ecokv_error_t error;
        ecokv_policy_t policy = {0};
        if (ecokv_method_get(m, &method)) return 1;
        policy.struct_size = sizeof policy;
        for (int i = 0; i < ECOKV_NAME_SIZE; i++) policy.method[i] = method.name[i];
        if (ecokv_policy_needs(&policy, &needs, &error)) return refused(method.name, &error);
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
            put(method.name);
            put(" ");
            put(formats[f].name);
            if (one(&policy, &needs, formats[f].type, formats[f].dim, formats[f].rows)) return 1;
        }
        uint32_t budgets[N_LAYERS];
        if (ecokv_layer_budgets(&policy, BUDGET, LEN, N_LAYERS, budgets, &error)) return refused("layers", &error);
        put(method.name);
        put(" layers ");
        put_list(budgets, N_LAYERS);
    }
    float cos[DIM / 2], sin[DIM / 2];
    ecokv_error_t error;
    if (ecokv_expected_rotation(values, DIM / 2, LEN, 512, cos, sin, &error)) return refused("rotation", &error);
    put("rotation ");
    put_hash(hash(hash(hash_start, cos, DIM / 2), sin, DIM / 2));
    put("\n");
    return 0;
}
