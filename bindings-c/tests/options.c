/* How an engine computes and what a session keeps, as ecokv.h lets a program choose: MODEL MMPROJ IMAGE. */
#include <stddef.h>

#include "model.h"

static ecokv_session_params_t session_params(const ecokv_policy_t *policy, uint32_t budget) {
    ecokv_session_params_t params;
    memset(&params, 0, sizeof params);
    params.struct_size = sizeof params;
    params.policy = policy;
    params.budget = budget;
    params.n_generate = 16;
    return params;
}

static ecokv_policy_t named(const char *method) {
    ecokv_policy_t policy;
    memset(&policy, 0, sizeof policy);
    policy.struct_size = sizeof policy;
    strncpy(policy.method, method, sizeof policy.method - 1);
    return policy;
}

static ecokv_stats_t stats_of(ecokv_session_t *session) {
    ecokv_stats_t stats;
    STATUS(ECOKV_OK, ecokv_session_stats(session, &stats, sizeof stats));
    return stats;
}

typedef struct {
    char text[200];
    size_t len;
} answer_t;

static int32_t on_token(void *user, uint32_t id, const char *text, size_t len) {
    answer_t *a = (answer_t *)user;
    (void)id;
    CHECK(a->len + len < sizeof a->text);
    memcpy(a->text + a->len, text, len);
    a->len += len;
    return 0;
}

/* What a session answers to its prompt. */
static answer_t answer(ecokv_session_t *session) {
    ecokv_generate_params_t params;
    answer_t a;
    memset(&params, 0, sizeof params);
    memset(&a, 0, sizeof a);
    params.struct_size = sizeof params;
    params.max_tokens = 16;
    params.on_token = on_token;
    params.user = &a;
    STATUS(ECOKV_OK, ecokv_session_generate(session, &params, NULL));
    return a;
}

static void check_answer(const ecokv_engine_t *engine, const ecokv_session_params_t *params) {
    ecokv_session_t *session = NULL;
    ecokv_prompt_t *prompt = ask(engine);
    STATUS(ECOKV_OK, ecokv_session_new(engine, params, &session));
    STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, NULL));
    CHECK(strcmp(answer(session).text, ANSWER) == 0);
    ecokv_session_free(session);
    ecokv_prompt_free(prompt);
}

/* Every way to compute gives the answer, and the engine says how it computes. */
static void ways_to_compute(void) {
    static const struct {
        uint32_t precision, flags, n_threads;
        const char *dispatch;
    } ways[] = {
        {ECOKV_PRECISION_INT8, 0, 1, NULL},
        {ECOKV_PRECISION_INT16, ECOKV_ENGINE_NO_REPACK, 2, NULL},
        {ECOKV_PRECISION_FLOAT, 0, 1, "scalar"},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        ecokv_engine_params_t params = engine_params();
        ecokv_session_params_t keep_all = session_params(NULL, 0);
        ecokv_engine_t *engine = NULL;
        ecokv_engine_info_t info;
        params.precision = ways[i].precision;
        params.flags = ways[i].flags;
        params.n_threads = ways[i].n_threads;
        params.dispatch = ways[i].dispatch;
        STATUS(ECOKV_OK, ecokv_engine_open(&params, &engine));
        STATUS(ECOKV_OK, ecokv_engine_info(engine, &info, sizeof info));
        CHECK(info.precision == ways[i].precision && info.n_threads == ways[i].n_threads);
        CHECK(info.architecture.len == 5 && memcmp(info.architecture.data, "llama", 5) == 0);
        if (ways[i].dispatch) CHECK(info.dispatch.len == 6 && memcmp(info.dispatch.data, "scalar", 6) == 0);
        uint32_t is_end = 0;
        STATUS(ECOKV_OK, ecokv_token_is_end(engine, info.eos, &is_end));
        CHECK(is_end == 1 && info.bos != info.eos && info.adds_bos <= 1);
        char line[8];
        size_t n = 9;
        STATUS(ECOKV_OK, ecokv_engine_warnings(engine, line, sizeof line, &n));
        CHECK(n == 0);
        check_answer(engine, &keep_all);
        ecokv_engine_free(engine);
    }

    ecokv_engine_params_t params = engine_params();
    ecokv_engine_t *none = NULL;
    params.dispatch = "sse2";
    STATUS(ECOKV_DISPATCH, ecokv_engine_open(&params, &none));
    CHECK(strstr(ecokv_last_error(), "sse2") && strstr(ecokv_last_error(), "scalar"));
    params.dispatch = "\xff";
    STATUS(ECOKV_BAD_TEXT, ecokv_engine_open(&params, &none));
    params.dispatch = NULL;
    params.flags = 2;
    STATUS(ECOKV_BAD_VALUE, ecokv_engine_open(&params, &none));
    params.flags = 0;
    params.reserved = 1;
    STATUS(ECOKV_BAD_VALUE, ecokv_engine_open(&params, &none));
    CHECK(!none);
}

/* A program that was compiled with the first header knows fewer fields; what lies behind them is not read. */
static void older_programs(void) {
    ecokv_engine_params_t params = engine_params();
    ecokv_engine_t *engine = NULL;
    params.struct_size = offsetof(ecokv_engine_params_t, dispatch);
    params.dispatch = "nonsense";
    params.image_max_tokens = 1;
    params.reserved = 1;
    STATUS(ECOKV_OK, ecokv_engine_open(&params, &engine));
    params.struct_size -= 4;
    ecokv_engine_t *none = NULL;
    STATUS(ECOKV_STRUCT_SIZE, ecokv_engine_open(&params, &none));
    CHECK(!none);

    ecokv_policy_t policy = named("ecokv");
    ecokv_session_params_t s = session_params(&policy, 24);
    s.struct_size = offsetof(ecokv_session_params_t, image_budget);
    s.image_budget = 1000;
    s.reserved = 1;
    check_answer(engine, &s);

    uint32_t few[11];
    memset(few, 0xee, sizeof few);
    STATUS(ECOKV_OK, ecokv_engine_info(engine, (ecokv_engine_info_t *)(void *)few, 10 * sizeof *few));
    CHECK(few[9] == 1 && few[10] == 0xeeeeeeee); /* n_threads was the last */
    ecokv_engine_free(engine);
}

/* Images cost what the prompt says, and are refused when that is too much. */
static void image_limits(void) {
    ecokv_engine_params_t params = engine_params();
    ecokv_engine_t *engine = open_engine();
    ecokv_prompt_t *prompt = ask(engine);
    ecokv_image_cost_t costs[2];
    size_t n = 0, n_tokens = 0, n_images = 0;
    STATUS(ECOKV_OK, ecokv_prompt_add_image(prompt, image.data, image.size));
    STATUS(ECOKV_OK, ecokv_prompt_image_costs(prompt, costs, 2, &n));
    STATUS(ECOKV_OK, ecokv_prompt_count(prompt, &n_tokens, &n_images));
    CHECK(n == 2 && costs[0].n_tiles == 1 && costs[0].longest_edge > 0);
    CHECK(costs[0].n_tokens + costs[1].n_tokens == n_images);
    n = 77;
    STATUS(ECOKV_BUFFER_TOO_SMALL, ecokv_prompt_image_costs(prompt, costs, 1, &n));
    STATUS(ECOKV_NULL_POINTER, ecokv_prompt_image_costs(NULL, costs, 2, &n));
    CHECK(n == 77);
    ecokv_prompt_free(prompt);
    ecokv_engine_free(engine);

    for (int i = 0; i < 4; i++) {
        params.image_max_tokens = i == 1 ? costs[0].n_tokens - 1 : costs[0].n_tokens;
        params.image_max_tiles = i == 2 ? 0 : 1;
        params.image_longest_edge = i == 3 ? costs[0].longest_edge - 1 : costs[0].longest_edge;
        STATUS(ECOKV_OK, ecokv_engine_open(&params, &engine));
        prompt = ask(engine);
        STATUS(i % 2 ? ECOKV_IMAGE : ECOKV_OK, ecokv_prompt_count(prompt, &n_tokens, NULL));
        ecokv_prompt_free(prompt);
        ecokv_engine_free(engine);
    }
}

/* Bytes of the cache by its element type; a Q8_0 row takes 34 bytes for 32 values. */
static void cache_types(const ecokv_engine_t *engine) {
    static const uint32_t types[] = {ECOKV_KV_F32, ECOKV_KV_F16, ECOKV_KV_DEFAULT, ECOKV_KV_Q8_0};
    ecokv_engine_info_t info;
    STATUS(ECOKV_OK, ecokv_engine_info(engine, &info, sizeof info));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        ecokv_session_params_t params = session_params(NULL, 0);
        ecokv_session_t *session = NULL;
        params.kv_type = types[i];
        if (types[i] == ECOKV_KV_Q8_0 && info.head_dim % 32) {
            STATUS(ECOKV_KV_TYPE, ecokv_session_new(engine, &params, &session));
            CHECK(!session && strstr(ecokv_last_error(), "q8_0"));
            continue;
        }
        const uint32_t row = types[i] == ECOKV_KV_F32 ? 4 * info.head_dim
            : types[i] == ECOKV_KV_Q8_0               ? info.head_dim / 32 * 34
                                                      : 2 * info.head_dim;
        ecokv_prompt_t *prompt = ask(engine);
        STATUS(ECOKV_OK, ecokv_session_new(engine, &params, &session));
        STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, NULL));
        const ecokv_stats_t stats = stats_of(session);
        CHECK(stats.kv_bytes == stats.n_past * info.n_layers * info.n_kv_heads * (2 * row + 4));
        CHECK(stats.n_past == stats.prompt_tokens && strcmp(answer(session).text, ANSWER) == 0);
        ecokv_session_free(session);
        ecokv_prompt_free(prompt);
    }
}

/* The image's rows are one run of positions; text is the rest. */
static void text_and_images(const ecokv_engine_t *engine) {
    ecokv_policy_t policy = named("knorm");
    ecokv_prompt_t *prompt = ask(engine);
    size_t n_tokens = 0, n_images = 0, n = 0;
    STATUS(ECOKV_OK, ecokv_prompt_count(prompt, &n_tokens, &n_images));
    const uint32_t n_text = (uint32_t)(n_tokens - n_images);
    uint32_t rows[2][1000];
    for (int i = 0; i < 2; i++) {
        ecokv_session_params_t params = session_params(&policy, i ? n_text : (uint32_t)n_images);
        ecokv_session_t *session = NULL;
        if (i) params.image_budget = ECOKV_IMAGE_BUDGET_NONE;
        else params.protect = ECOKV_PROTECT_IMAGE;
        STATUS(ECOKV_OK, ecokv_session_new(engine, &params, &session));
        STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, NULL));
        STATUS(ECOKV_OK, ecokv_session_positions(session, 0, 0, rows[i], 1000, &n));
        CHECK(n == (i ? n_text : n_images));
        n = 55;
        STATUS(ECOKV_BUFFER_TOO_SMALL, ecokv_session_positions(session, 0, 0, rows[i], 1, &n));
        STATUS(ECOKV_BAD_VALUE, ecokv_session_positions(session, 1000, 0, rows[i], 1000, &n));
        STATUS(ECOKV_BAD_VALUE, ecokv_session_positions(session, 0, 1000, rows[i], 1000, &n));
        CHECK(n == 55);
        ecokv_session_free(session);
    }
    for (size_t i = 0; i < n_images; i++) CHECK(rows[0][i] == rows[0][0] + i);
    for (size_t i = 0; i < n_text; i++) CHECK(rows[1][i] == (i < rows[0][0] ? i : i + n_images));

    /* Seven entries of images among the ten of each head. */
    ecokv_session_params_t params = session_params(&policy, 10);
    ecokv_session_t *session = NULL;
    params.image_budget = 7;
    STATUS(ECOKV_OK, ecokv_session_new(engine, &params, &session));
    STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, NULL));
    STATUS(ECOKV_OK, ecokv_session_positions(session, 1, 0, rows[1], 1000, &n));
    uint32_t of_images = 0;
    for (size_t i = 0; i < n; i++) of_images += rows[1][i] - rows[0][0] < n_images;
    CHECK(n_text >= 3 && n == 10 && of_images == 7);
    ecokv_session_free(session);

    params = session_params(&policy, n_text - 1);
    params.protect = ECOKV_PROTECT_TEXT;
    STATUS(ECOKV_OK, ecokv_session_new(engine, &params, &session));
    STATUS(ECOKV_BUDGET_TOO_SMALL, ecokv_session_prefill(session, prompt, NULL));
    CHECK(stats_of(session).n_past == 0);
    ecokv_session_free(session);
    ecokv_prompt_free(prompt);

    session = NULL;
    params.protect = 3;
    STATUS(ECOKV_BAD_VALUE, ecokv_session_new(engine, &params, &session));
    params.protect = ECOKV_PROTECT_IMAGE;
    params.policy = NULL;
    params.budget = 0;
    STATUS(ECOKV_NULL_POINTER, ecokv_session_new(engine, &params, &session));
    params = session_params(&policy, 20);
    params.image_budget = 21;
    STATUS(ECOKV_PROMPT, ecokv_session_new(engine, &params, &session));
    params.image_budget = 0;
    params.reserved = 1;
    STATUS(ECOKV_BAD_VALUE, ecokv_session_new(engine, &params, &session));
    CHECK(!session);
}

/* Going back and on again gives the same words; not behind an eviction. */
static void going_back(const ecokv_engine_t *engine) {
    ecokv_policy_t policy = named("snapkv");
    ecokv_prompt_t *prompt = ask(engine);
    for (int i = 0; i < 2; i++) {
        ecokv_session_params_t params = session_params(i ? &policy : NULL, i ? 40 : 0);
        ecokv_session_t *session = NULL;
        uint32_t first, id = 0;
        STATUS(ECOKV_OK, ecokv_session_new(engine, &params, &session));
        STATUS(ECOKV_BAD_ORDER, ecokv_session_decode(session, 3));
        STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, NULL));
        const uint32_t after_prompt = (uint32_t)stats_of(session).n_past;
        STATUS(ECOKV_OK, ecokv_session_sample(session, &first));
        const answer_t once = answer(session);
        CHECK(once.len > 0 && stats_of(session).n_past > after_prompt);

        STATUS(ECOKV_REWIND, ecokv_session_rewind(session, (uint32_t)stats_of(session).n_past + 1));
        STATUS(ECOKV_OK, ecokv_session_rewind(session, after_prompt));
        CHECK(stats_of(session).n_past == after_prompt);
        STATUS(ECOKV_BAD_ORDER, ecokv_session_sample(session, &id));
        STATUS(ECOKV_OK, ecokv_session_decode(session, first));
        char again[200];
        size_t len = 0;
        STATUS(ECOKV_OK, ecokv_token_bytes(engine, first, again, sizeof again, &len));
        const answer_t rest = answer(session);
        memcpy(again + len, rest.text, rest.len);
        CHECK(len + rest.len == once.len && memcmp(again, once.text, once.len) == 0);

        if (i) {
            STATUS(ECOKV_REWIND, ecokv_session_rewind(session, after_prompt - 1));
            CHECK(strstr(ecokv_last_error(), "cannot go back"));
            CHECK(stats_of(session).n_past > after_prompt);
        } else {
            STATUS(ECOKV_OK, ecokv_session_rewind(session, 0));
            STATUS(ECOKV_BAD_ORDER, ecokv_session_decode(session, first));
            STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, NULL));
            CHECK(strcmp(answer(session).text, once.text) == 0);
        }
        ecokv_session_free(session);
    }
    STATUS(ECOKV_NULL_POINTER, ecokv_session_rewind(NULL, 0));
    ecokv_prompt_free(prompt);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    read_files(argv + 1);
    ways_to_compute();
    older_programs();
    image_limits();
    ecokv_engine_t *engine = open_engine();
    cache_types(engine);
    text_and_images(engine);
    going_back(engine);
    ecokv_engine_free(engine);
    free_files();
    printf("options: all as expected\n");
    return 0;
}
