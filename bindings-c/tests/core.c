/* ecokv_core.h used well and used badly. Compiles as C11 and as C++17. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "ecokv_core.h"

enum { HEADS = 2, ROWS = 12, DIM = 4 };

static const uint32_t starts[HEADS] = {0, 6}, lens[HEADS] = {6, 5};
static float keys[ROWS * DIM], given[ROWS], f32s[4096];
static uint32_t u32s[256], indices[ROWS], counts[HEADS];

static ecokv_layer_t a_layer(void) {
    ecokv_layer_t layer;
    memset(&layer, 0, sizeof layer);
    layer.struct_size = sizeof layer;
    layer.n_kv_heads = HEADS;
    layer.group = 1;
    layer.head_dim = DIM;
    layer.n_layers = 1;
    layer.scale = 0.5f;
    layer.rows = ROWS;
    layer.starts = starts;
    layer.lens = lens;
    layer.keys = keys;
    layer.given = given;
    return layer;
}

static ecokv_policy_t a_policy(const char *method) {
    ecokv_policy_t policy;
    memset(&policy, 0, sizeof policy);
    policy.struct_size = sizeof policy;
    strncpy(policy.method, method, sizeof policy.method - 1);
    return policy;
}

static const ecokv_workspace_t workspace = {f32s, u32s, sizeof f32s / sizeof *f32s, sizeof u32s / sizeof *u32s};
static const ecokv_keep_t keep = {indices, counts, ROWS, HEADS};

/* The host's own scores: the three best of six and of five, the newest entry protected. */
static void own_scores(void) {
    static const float scores[ROWS] = {9, 1, 2, 8, 0, 0, 1, 1, 7, 1, 0, 99};
    ecokv_policy_t policy = a_policy("knorm");
    ecokv_layer_t layer = a_layer();
    ecokv_report_t report;
    memcpy(given, scores, sizeof given);
    policy.set = ECOKV_SET_GIVEN | ECOKV_SET_KEEP_RECENT;
    policy.keep_recent = 1;
    STATUS(ECOKV_OK, ecokv_evict_layer(&policy, 3, &layer, &workspace, &keep, &report, NULL));
    CHECK(counts[0] == 3 && counts[1] == 3 && report.recent_kept == 1 && report.nan_scores == 0);
    CHECK(indices[0] == 0 && indices[1] == 3 && indices[2] == 5);
    CHECK(indices[6] == 0 && indices[7] == 2 && indices[8] == 4); /* of equals, the oldest */

    float written[ROWS];
    STATUS(ECOKV_OK, ecokv_score_layer(&policy, 3, &layer, &workspace, written, ROWS, NULL, NULL));
    CHECK(written[0] == 9 && written[3] == 8 && isinf(written[5]) && isinf(written[10]));

    /* Rows of three bytes, compacted in place and gathered elsewhere. */
    char data[ROWS * 3 + 1] = "aaabbbcccdddeeefffgggggghhhiiijjjkkk", gathered[19] = {0};
    STATUS(ECOKV_OK, ecokv_gather(data, 3, ROWS, starts, HEADS, &keep, gathered, 18, NULL));
    CHECK(strcmp(gathered, "aaadddfffggghhhjjj") == 0);
    STATUS(ECOKV_BUFFER_TOO_SMALL, ecokv_gather(data, 3, ROWS, starts, HEADS, &keep, gathered, 17, NULL));
    STATUS(ECOKV_OK, ecokv_compact(data, 3, ROWS, starts, HEADS, &keep, NULL));
    CHECK(memcmp(data, "aaadddfff", 9) == 0 && memcmp(data + 18, "ggghhhjjj", 9) == 0);
}

static void budgets(void) {
    ecokv_policy_t policy = a_policy("snapkv");
    uint32_t layers[3] = {7, 7, 7}, heads[2];
    const float profile[2] = {3, 1};
    policy.set = ECOKV_SET_LAYER_BUDGET | ECOKV_SET_WINDOW;
    policy.layer_budget = ECOKV_LAYERS_PYRAMID;
    policy.pyramid_beta = 2;
    policy.window = 1;
    STATUS(ECOKV_OK, ecokv_layer_budgets(&policy, 21, 1000, 3, layers, NULL));
    CHECK(layers[0] == 31 && layers[1] == 21 && layers[2] == 11); /* 1 + 20 * {3/2, 1, 1/2} */
    policy.pyramid_beta = 0;
    STATUS(ECOKV_CONFIG, ecokv_layer_budgets(&policy, 21, 1000, 3, layers, NULL));
    CHECK(layers[0] == 31);
    STATUS(ECOKV_OK, ecokv_head_budgets(profile, 2, 10, 2, 0.0f, heads, NULL));
    CHECK(heads[0] == 14 && heads[1] == 6); /* 2 + 16 * {3/4, 1/4} */
}

/* Equal keys repeat each other; keys at right angles do not. */
static void redundancy(void) {
    ecokv_layer_t layer = a_layer();
    ecokv_workspace_size_t size;
    float rho[HEADS] = {-1, -1};
    for (int i = 0; i < ROWS * DIM; i++) keys[i] = 0;
    for (int i = 0; i < 6; i++) keys[i * DIM] = 2;
    for (int i = 6; i < 10; i++) keys[i * DIM + i % DIM] = 1;
    uint32_t four[HEADS] = {6, 4};
    layer.lens = four;
    STATUS(ECOKV_OK, ecokv_redundancy_workspace_size(&layer, &size, NULL));
    CHECK(size.n_f32s <= workspace.n_f32s && size.n_u32s <= workspace.n_u32s);
    STATUS(ECOKV_OK, ecokv_redundancy_layer(0, 1, 0, &layer, &workspace, rho, HEADS, NULL));
    CHECK(fabsf(rho[0] - 1) < 1e-6f && fabsf(rho[1]) < 1e-6f);
    STATUS(ECOKV_BAD_VALUE, ecokv_redundancy_layer(0, 1, 4, &layer, &workspace, rho, HEADS, NULL));
}

/* Two equal entries written into a slot are an entry that counts twice. */
static void slots(void) {
    ecokv_policy_t policy = a_policy("retentivekv");
    const float key[DIM] = {1, 0, 0, 0}, value[DIM] = {0, 3, 0, 0}, query[DIM] = {2, 0, 0, 0};
    float slot_keys[DIM] = {0}, slot_values[DIM] = {0}, mass = 0, out[DIM] = {0};
    const ecokv_slots_t one = {slot_keys, slot_values, &mass, 1};
    const ecokv_evictee_t entry = {key, value, DIM, 0.5f, 0.5f, 0};
    ecokv_reading_t reading = {out, -INFINITY, 0};
    STATUS(ECOKV_OK, ecokv_slots_absorb(&policy, 4, &entry, &one, NULL));
    STATUS(ECOKV_OK, ecokv_slots_absorb(&policy, 4, &entry, &one, NULL));
    CHECK(mass > 0 && fabsf(slot_keys[0] - 1) < 1e-5f && fabsf(slot_values[1] - 3) < 1e-5f);
    mass = 2;
    STATUS(ECOKV_OK, ecokv_slots_read(query, DIM, 0.5f, &one, &reading, NULL));
    CHECK(fabsf(reading.max - (1 + logf(2))) < 1e-5f && fabsf(out[1] / reading.sum - 3) < 1e-5f);
    policy = a_policy("snapkv");
    STATUS(ECOKV_CONFIG, ecokv_slots_absorb(&policy, 4, &entry, &one, NULL));
}

/* Every mistake has its number, and nothing is written. */
static void misuse(void) {
    ecokv_policy_t policy = a_policy("knorm");
    ecokv_layer_t layer = a_layer();
    ecokv_error_t error;
    ecokv_workspace_size_t size = {5, 5};
    memset(indices, 0xee, sizeof indices);
    memset(counts, 0xee, sizeof counts);

    STATUS(ECOKV_NULL_POINTER, ecokv_evict_layer(NULL, 3, &layer, &workspace, &keep, NULL, &error));
    CHECK(error.status == ECOKV_NULL_POINTER && memcmp(error.what.data, "policy", error.what.len) == 0);
    STATUS(ECOKV_NULL_POINTER, ecokv_evict_layer(&policy, 3, NULL, &workspace, &keep, NULL, NULL));
    STATUS(ECOKV_NULL_POINTER, ecokv_evict_layer(&policy, 3, &layer, NULL, &keep, NULL, NULL));
    STATUS(ECOKV_NULL_POINTER, ecokv_evict_layer(&policy, 3, &layer, &workspace, NULL, NULL, NULL));
    STATUS(ECOKV_NULL_POINTER, ecokv_policy_needs(&policy, NULL, NULL));
    STATUS(ECOKV_NULL_POINTER, ecokv_method_get(0, NULL));
    ecokv_method_t method;
    STATUS(ECOKV_BAD_VALUE, ecokv_method_get(ecokv_method_count(), &method));

    ecokv_workspace_t small = workspace;
    STATUS(ECOKV_OK, ecokv_workspace_size(&policy, &layer, &size, &error));
    small.n_f32s = size.n_f32s - 1;
    STATUS(ECOKV_WORKSPACE_TOO_SMALL, ecokv_evict_layer(&policy, 3, &layer, &small, &keep, NULL, &error));
    CHECK(error.need == size.n_f32s && error.got == size.n_f32s - 1);
    ecokv_keep_t few = keep;
    few.n_indices = ROWS - 1;
    STATUS(ECOKV_LENGTH_MISMATCH, ecokv_evict_layer(&policy, 3, &layer, &workspace, &few, NULL, &error));
    few = keep;
    few.n_counts = 1;
    STATUS(ECOKV_LENGTH_MISMATCH, ecokv_evict_layer(&policy, 3, &layer, &workspace, &few, NULL, &error));

    layer.starts = (const uint32_t *)((const char *)starts + 1);
    STATUS(ECOKV_MISALIGNED, ecokv_evict_layer(&policy, 3, &layer, &workspace, &keep, NULL, &error));
    CHECK(error.need == 4);
    layer = a_layer();
    layer.key_type = 4;
    STATUS(ECOKV_BAD_VALUE, ecokv_evict_layer(&policy, 3, &layer, &workspace, &keep, NULL, &error));
    CHECK(error.need == 3 && error.got == 4);
    layer = a_layer();
    layer.keys = NULL;
    STATUS(ECOKV_NULL_POINTER, ecokv_evict_layer(&policy, 3, &layer, &workspace, &keep, NULL, NULL));
    layer = a_layer();
    layer.rows = SIZE_MAX / 4;
    STATUS(ECOKV_OVERFLOW, ecokv_evict_layer(&policy, 3, &layer, &workspace, &keep, NULL, NULL));
    layer.rows = 10;
    STATUS(ECOKV_HEAD_RANGE, ecokv_evict_layer(&policy, 3, &layer, &workspace, &keep, NULL, &error));
    CHECK(error.head == 1 && error.need == 11 && error.got == 10);
    layer = a_layer();
    layer.head_dim = 0;
    STATUS(ECOKV_CONFIG, ecokv_evict_layer(&policy, 3, &layer, &workspace, &keep, NULL, NULL));

    layer = a_layer();
    policy.method[0] = (char)0xff;
    STATUS(ECOKV_BAD_TEXT, ecokv_workspace_size(&policy, &layer, &size, NULL));
    memset(policy.method, 'x', sizeof policy.method);
    STATUS(ECOKV_BAD_TEXT, ecokv_workspace_size(&policy, &layer, &size, NULL));
    policy = a_policy("no such method");
    STATUS(ECOKV_UNKNOWN_METHOD, ecokv_workspace_size(&policy, &layer, &size, NULL));
    policy = a_policy("knorm");
    policy.set = 512;
    STATUS(ECOKV_BAD_VALUE, ecokv_workspace_size(&policy, &layer, &size, NULL));
    policy.set = ECOKV_SET_CENTROID;
    STATUS(ECOKV_CONFIG, ecokv_workspace_size(&policy, &layer, &size, NULL)); /* measures no distance */
    policy = a_policy("ecokv");
    policy.set = ECOKV_SET_CENTROID;
    policy.centroid = 2;
    STATUS(ECOKV_BAD_VALUE, ecokv_workspace_size(&policy, &layer, &size, NULL));
    policy = a_policy("knorm");
    policy.set = ECOKV_SET_HEAD_BUDGET;
    policy.head_budget = 3;
    STATUS(ECOKV_BAD_VALUE, ecokv_workspace_size(&policy, &layer, &size, NULL));
    policy.set = ECOKV_SET_GEOMETRY;
    STATUS(ECOKV_CONFIG, ecokv_workspace_size(&policy, &layer, &size, NULL));
    policy = a_policy("snapkv");
    STATUS(ECOKV_MISSING_OBSERVATION, ecokv_evict_layer(&policy, 3, &layer, &workspace, &keep, NULL, NULL));
    policy = a_policy("knorm");
    STATUS(ECOKV_BUDGET_TOO_SMALL, ecokv_evict_layer(&policy, 0, &layer, &workspace, &keep, NULL, NULL));

    indices[0] = 3;
    indices[1] = 3;
    counts[0] = 2;
    counts[1] = 0;
    char data[ROWS] = {0};
    STATUS(ECOKV_HEAD_RANGE, ecokv_compact(data, 1, ROWS, starts, HEADS, &keep, NULL));
    indices[1] = 12;
    STATUS(ECOKV_HEAD_RANGE, ecokv_compact(data, 1, ROWS, starts, HEADS, &keep, &error));
    counts[0] = 0xffffffff;
    STATUS(ECOKV_HEAD_RANGE, ecokv_compact(data, 1, ROWS, starts, HEADS, &keep, &error));
    for (int i = 2; i < ROWS; i++) CHECK(indices[i] == 0xeeeeeeee);
}

/* A newer header's struct is longer; that is fine while the rest is zeros. */
static void versions(void) {
    struct {
        ecokv_policy_t policy;
        uint32_t more[4];
    } newer;
    ecokv_needs_t needs;
    memset(&newer, 0, sizeof newer);
    newer.policy = a_policy("snapkv");
    newer.policy.struct_size = sizeof newer;
    STATUS(ECOKV_OK, ecokv_policy_needs(&newer.policy, &needs, NULL));
    CHECK(needs.window_queries == 32 && needs.fate == ECOKV_FATE_DROP);
    newer.more[1] = 1;
    STATUS(ECOKV_STRUCT_SIZE, ecokv_policy_needs(&newer.policy, &needs, NULL));
    newer.policy.struct_size = sizeof newer.policy - 4;
    STATUS(ECOKV_STRUCT_SIZE, ecokv_policy_needs(&newer.policy, &needs, NULL));
    newer.policy.struct_size = 0xffffffff;
    STATUS(ECOKV_STRUCT_SIZE, ecokv_policy_needs(&newer.policy, &needs, NULL));
    CHECK(ecokv_abi_version() == ECOKV_ABI_VERSION && ecokv_abi_is_compatible(ECOKV_ABI_VERSION));
    CHECK(strcmp(ecokv_status_text(ECOKV_OK), "done") == 0 && strlen(ecokv_status_text(12345)) > 0);
}

int main(void) {
    own_scores();
    budgets();
    redundancy();
    slots();
    misuse();
    versions();
    printf("core: all as expected (%s)\n", ecokv_dispatch_name());
    return 0;
}
