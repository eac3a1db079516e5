/* ecokv.h used well and used badly: MODEL MMPROJ IMAGE. The image asks for a total of 26.45. */
#include <pthread.h>

#include "model.h"

static ecokv_session_t *new_session(const ecokv_engine_t *engine, const char *method, uint32_t budget) {
    ecokv_policy_t policy;
    ecokv_session_params_t params;
    ecokv_session_t *session = NULL;
    memset(&policy, 0, sizeof policy);
    memset(&params, 0, sizeof params);
    policy.struct_size = sizeof policy;
    params.struct_size = sizeof params;
    if (method) {
        strncpy(policy.method, method, sizeof policy.method - 1);
        params.policy = &policy;
    }
    params.budget = budget;
    params.n_generate = 16;
    STATUS(ECOKV_OK, ecokv_session_new(engine, &params, &session));
    return session;
}

typedef struct {
    char text[200];
    size_t len, calls, stop_after;
    ecokv_session_t *session;
    int free_it;
} answer_t;

static int32_t on_token(void *user, uint32_t id, const char *text, size_t len) {
    answer_t *a = (answer_t *)user;
    (void)id;
    CHECK(a->len + len < sizeof a->text);
    memcpy(a->text + a->len, text, len);
    a->len += len;
    a->calls++;
    if (a->session) { /* the session is in use by the call that called back */
        uint32_t next = 7;
        STATUS(ECOKV_BUSY, ecokv_session_sample(a->session, &next));
        STATUS(ECOKV_BUSY, ecokv_session_reset(a->session));
        CHECK(next == 7 && strstr(ecokv_last_error(), "in use"));
        if (a->free_it) {
            ecokv_session_free(a->session);
            a->session = NULL;
        }
    }
    return a->stop_after && a->calls == a->stop_after;
}

static ecokv_generated_t generate(ecokv_session_t *session, answer_t *answer, uint32_t max_tokens) {
    ecokv_generate_params_t params;
    ecokv_generated_t result;
    memset(&params, 0, sizeof params);
    params.struct_size = sizeof params;
    params.max_tokens = max_tokens;
    params.on_token = on_token;
    params.user = answer;
    STATUS(ECOKV_OK, ecokv_session_generate(session, &params, &result));
    return result;
}

static void answers(const ecokv_engine_t *engine) {
    static const struct {
        const char *method;
        uint32_t budget;
    } cases[] = {{NULL, 0}, {"full", 5}, {"ecokv", 24}};
    ecokv_prompt_t *prompt = ask(engine);
    size_t n_tokens = 0, n_images = 0;
    STATUS(ECOKV_OK, ecokv_prompt_count(prompt, &n_tokens, &n_images));
    CHECK(n_images > 0 && n_tokens > n_images);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ecokv_session_t *session = new_session(engine, cases[i].method, cases[i].budget);
        answer_t answer;
        memset(&answer, 0, sizeof answer);
        STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, NULL));
        ecokv_generated_t end = generate(session, &answer, 16);
        CHECK(strcmp(answer.text, ANSWER) == 0 && end.end == ECOKV_END_TOKEN && end.n_tokens <= 16);

        ecokv_stats_t stats;
        ecokv_engine_info_t info;
        STATUS(ECOKV_OK, ecokv_session_stats(session, &stats, sizeof stats));
        STATUS(ECOKV_OK, ecokv_engine_info(engine, &info, sizeof info));
        CHECK(stats.prompt_tokens == n_tokens && stats.prefill_ns > 0 && info.has_vision && info.n_threads == 1);
        uint32_t kept[1000], total = 0;
        size_t n = 0;
        STATUS(ECOKV_OK, ecokv_session_kept(session, kept, 1000, &n));
        CHECK(n == (size_t)info.n_layers * info.n_kv_heads);
        for (size_t h = 0; h < n; h++) total += kept[h];
        CHECK(total == n * (i < 2 ? n_tokens : 24));
        if (i == 2) CHECK(stats.kv_bytes < stats.kv_bytes_full / 4);
        ecokv_session_free(session);
    }
    ecokv_prompt_free(prompt);
}

/* Token by token, stopped, and gone on with: the same words. */
static void in_pieces(const ecokv_engine_t *engine) {
    ecokv_prompt_t *prompt = ask(engine);
    ecokv_session_t *session = new_session(engine, NULL, 0);
    answer_t answer;
    memset(&answer, 0, sizeof answer);
    answer.session = session;
    answer.stop_after = 1;
    uint32_t id;
    STATUS(ECOKV_BAD_ORDER, ecokv_session_sample(session, &id));
    STATUS(ECOKV_BAD_ORDER, ecokv_session_decode(session, 3));
    STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, NULL));
    CHECK(generate(session, &answer, 9).end == ECOKV_END_STOPPED);
    CHECK(answer.calls == 1);
    CHECK(generate(session, &answer, 2).end == ECOKV_END_LIMIT);
    CHECK(answer.calls == 3);
    char rest[100] = "";
    for (;;) {
        uint32_t is_end;
        STATUS(ECOKV_OK, ecokv_session_sample(session, &id));
        STATUS(ECOKV_OK, ecokv_token_is_end(engine, id, &is_end));
        if (is_end) break;
        char bytes[32];
        size_t n;
        STATUS(ECOKV_OK, ecokv_token_bytes(engine, id, bytes, sizeof bytes, &n));
        strncat(rest, bytes, n);
        STATUS(ECOKV_OK, ecokv_session_decode(session, id));
    }
    strcat(answer.text, rest);
    CHECK(strcmp(answer.text, ANSWER) == 0);

    /* Freed by the callback that it calls. */
    STATUS(ECOKV_OK, ecokv_session_reset(session));
    STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, NULL));
    memset(&answer, 0, sizeof answer);
    answer.session = session;
    answer.free_it = 1;
    CHECK(generate(session, &answer, 16).end == ECOKV_END_TOKEN);
    CHECK(strcmp(answer.text, ANSWER) == 0);
    ecokv_prompt_free(prompt);
}

typedef struct {
    uint32_t calls, total, cancel_at;
} progress_t;

static int32_t on_progress(void *user, uint32_t done, uint32_t total) {
    progress_t *p = (progress_t *)user;
    p->calls++;
    p->total = total;
    CHECK(done == p->calls);
    return done == p->cancel_at;
}

static void cancelled(const ecokv_engine_t *engine) {
    ecokv_prompt_t *prompt = ask(engine);
    ecokv_session_t *session = new_session(engine, "snapkv", 40);
    progress_t progress = {0, 0, 2};
    ecokv_prefill_params_t params;
    ecokv_stats_t stats;
    answer_t answer;
    uint32_t id = 0;
    memset(&params, 0, sizeof params);
    params.struct_size = sizeof params;
    params.on_progress = on_progress;
    params.user = &progress;
    STATUS(ECOKV_CANCELLED, ecokv_session_prefill(session, prompt, &params));
    CHECK(progress.calls == 2 && progress.total > 2);
    STATUS(ECOKV_OK, ecokv_session_stats(session, &stats, sizeof stats));
    CHECK(stats.kv_bytes == 0);
    STATUS(ECOKV_BAD_ORDER, ecokv_session_sample(session, &id));
    progress.calls = progress.cancel_at = 0;
    STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, &params));
    CHECK(progress.calls == progress.total);
    memset(&answer, 0, sizeof answer);
    generate(session, &answer, 16);
    CHECK(answer.len > 0);
    ecokv_session_free(session);
    ecokv_prompt_free(prompt);
}

/* Pixels, token ids, raw text. */
static void other_prompts(const ecokv_engine_t *engine) {
    ecokv_prompt_t *prompt = NULL;
    size_t n = 0, n_images = 0;
    uint32_t ids[64];
    unsigned char pixels[4 * 3 * 3];
    memset(pixels, 200, sizeof pixels);
    STATUS(ECOKV_OK, ecokv_prompt_new(engine, ECOKV_PROMPT_CHAT, &prompt));
    STATUS(ECOKV_OK, ecokv_prompt_add_text(prompt, "what is this? ", 14));
    STATUS(ECOKV_OK, ecokv_prompt_add_pixels(prompt, 4, 3, pixels, sizeof pixels));
    STATUS(ECOKV_IMAGE, ecokv_prompt_add_pixels(prompt, 4, 3, pixels, sizeof pixels - 1));
    STATUS(ECOKV_IMAGE, ecokv_prompt_add_image(prompt, pixels, sizeof pixels));
    STATUS(ECOKV_BAD_ORDER, ecokv_prompt_add_tokens(prompt, ids, 1));
    STATUS(ECOKV_OK, ecokv_prompt_count(prompt, &n, &n_images));
    CHECK(n_images > 0);
    ecokv_prompt_free(prompt);

    STATUS(ECOKV_OK, ecokv_tokenize(engine, QUESTION, strlen(QUESTION), 0, NULL, 0, &n));
    CHECK(n > 0 && n <= 64);
    size_t unchanged = 99;
    STATUS(ECOKV_BUFFER_TOO_SMALL, ecokv_tokenize(engine, QUESTION, strlen(QUESTION), 0, ids, n - 1, &unchanged));
    CHECK(unchanged == 99);
    STATUS(ECOKV_OK, ecokv_tokenize(engine, QUESTION, strlen(QUESTION), 0, ids, 64, &n));
    char text[100] = "";
    for (size_t i = 0; i < n; i++) {
        char bytes[32];
        size_t n_bytes;
        STATUS(ECOKV_OK, ecokv_token_bytes(engine, ids[i], bytes, sizeof bytes, &n_bytes));
        strncat(text, bytes, n_bytes);
    }
    CHECK(strcmp(text, QUESTION) == 0);

    float from_text, from_ids;
    for (int i = 0; i < 2; i++) {
        ecokv_session_t *session = new_session(engine, NULL, 0);
        STATUS(ECOKV_OK, ecokv_prompt_new(engine, ECOKV_PROMPT_RAW, &prompt));
        STATUS(ECOKV_BAD_ORDER, ecokv_prompt_add_message(prompt, "user"));
        if (i == 0) STATUS(ECOKV_OK, ecokv_prompt_add_text(prompt, QUESTION, strlen(QUESTION)));
        size_t in_raw = n;
        if (i == 0) STATUS(ECOKV_OK, ecokv_prompt_count(prompt, &in_raw, NULL));
        if (i == 1) {
            STATUS(ECOKV_OK, ecokv_tokenize(engine, QUESTION, strlen(QUESTION), ECOKV_TOKENIZE_ADD_SPECIAL, ids, 64, &n));
            STATUS(ECOKV_OK, ecokv_prompt_add_tokens(prompt, ids, n));
            STATUS(ECOKV_BAD_ORDER, ecokv_prompt_add_text(prompt, "x", 1));
            ids[0] = 0x7fffffff;
            STATUS(ECOKV_PROMPT, ecokv_prompt_add_tokens(prompt, ids, 1));
        }
        STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, NULL));
        ecokv_engine_info_t info;
        STATUS(ECOKV_OK, ecokv_engine_info(engine, &info, sizeof info));
        float *logits = (float *)malloc(info.n_vocab * sizeof *logits);
        STATUS(ECOKV_BUFFER_TOO_SMALL, ecokv_session_logits(session, logits, info.n_vocab - 1, &n));
        STATUS(ECOKV_OK, ecokv_session_logits(session, logits, info.n_vocab, &n));
        CHECK(n == info.n_vocab);
        *(i == 0 ? &from_text : &from_ids) = logits[n / 2];
        free(logits);
        ecokv_session_free(session);
        ecokv_prompt_free(prompt);
    }
    CHECK(memcmp(&from_text, &from_ids, sizeof from_text) == 0);
}

static void sampling(const ecokv_engine_t *engine) {
    ecokv_prompt_t *prompt = ask(engine);
    ecokv_session_t *session = new_session(engine, NULL, 0);
    uint32_t drawn[2][30], different = 0;
    STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, NULL));
    for (int i = 0; i < 2; i++) {
        ecokv_sampling_t s;
        memset(&s, 0, sizeof s);
        s.struct_size = sizeof s;
        s.temperature = 50;
        s.seed = 11;
        STATUS(ECOKV_OK, ecokv_session_set_sampling(session, &s));
        for (int k = 0; k < 30; k++) STATUS(ECOKV_OK, ecokv_session_sample(session, &drawn[i][k]));
        s.temperature = -1;
        STATUS(ECOKV_CONFIG, ecokv_session_set_sampling(session, &s));
    }
    CHECK(memcmp(drawn[0], drawn[1], sizeof *drawn) == 0);
    for (int k = 1; k < 30; k++) different += drawn[0][k] != drawn[0][0];
    CHECK(different > 10);
    ecokv_session_free(session);
    ecokv_prompt_free(prompt);
}

/* Sessions of one engine on their own threads, the engine freed before them. */
static void *converse(void *engine) {
    for (int i = 0; i < 2; i++) {
        ecokv_prompt_t *prompt = ask((const ecokv_engine_t *)engine);
        ecokv_session_t *session = new_session((const ecokv_engine_t *)engine, "ecokv", 24);
        answer_t answer;
        memset(&answer, 0, sizeof answer);
        STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, NULL));
        generate(session, &answer, 16);
        CHECK(strcmp(answer.text, ANSWER) == 0);
        uint32_t is_end;
        STATUS(ECOKV_NULL_POINTER, ecokv_token_is_end(NULL, 0, &is_end));
        CHECK(strstr(ecokv_last_error(), "engine")); /* this thread's */
        ecokv_session_free(session);
        ecokv_prompt_free(prompt);
    }
    return NULL;
}

static void *intrude(void *session) {
    uint32_t id = 5;
    STATUS(ECOKV_BUSY, ecokv_session_sample((ecokv_session_t *)session, &id));
    STATUS(ECOKV_BUSY, ecokv_session_decode((ecokv_session_t *)session, 1));
    CHECK(id == 5);
    return NULL;
}

/* While a session is in use, another thread tries. */
static int32_t let_in(void *user, uint32_t done, uint32_t total) {
    pthread_t thread;
    (void)total;
    if (done > 1) return 0;
    CHECK(pthread_create(&thread, NULL, intrude, user) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    return 0;
}

static void threads(ecokv_engine_t *engine) {
    pthread_t all[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&all[i], NULL, converse, engine) == 0);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(all[i], NULL) == 0);

    ecokv_prompt_t *prompt = ask(engine);
    ecokv_session_t *session = new_session(engine, NULL, 0);
    ecokv_prefill_params_t params;
    answer_t answer;
    memset(&params, 0, sizeof params);
    memset(&answer, 0, sizeof answer);
    params.struct_size = sizeof params;
    params.on_progress = let_in;
    params.user = session;
    ecokv_engine_free(engine);
    STATUS(ECOKV_OK, ecokv_session_prefill(session, prompt, &params));
    generate(session, &answer, 16);
    CHECK(strcmp(answer.text, ANSWER) == 0);
    ecokv_prompt_free(prompt);
    ecokv_session_free(session);
}

static void misuse(const ecokv_engine_t *engine, const char *path) {
    ecokv_engine_params_t params;
    ecokv_engine_t *none = NULL;
    memset(&params, 0, sizeof params);
    STATUS(ECOKV_STRUCT_SIZE, ecokv_engine_open(&params, &none));
    params.struct_size = sizeof params;
    STATUS(ECOKV_NULL_POINTER, ecokv_engine_open(&params, &none));
    STATUS(ECOKV_NULL_POINTER, ecokv_engine_open(NULL, &none));
    params.model_path = "/no/such/model.gguf";
    STATUS(ECOKV_IO, ecokv_engine_open(&params, &none));
    CHECK(strstr(ecokv_last_error(), "/no/such/model.gguf"));
    STATUS(ECOKV_NULL_POINTER, ecokv_engine_open(&params, NULL));
    params.model_path = "\xff";
    STATUS(ECOKV_BAD_TEXT, ecokv_engine_open(&params, &none));
    params.model_path = path;
    params.precision = 9;
    STATUS(ECOKV_BAD_VALUE, ecokv_engine_open(&params, &none));
    params.precision = 0;
    params.model_data = image.data;
    params.model_size = image.size;
    STATUS(ECOKV_BAD_VALUE, ecokv_engine_open(&params, &none));
    params.model_path = NULL;
    STATUS(ECOKV_GGUF, ecokv_engine_open(&params, &none));
    CHECK(!none);

    ecokv_session_params_t s;
    ecokv_session_t *session = NULL;
    memset(&s, 0, sizeof s);
    s.struct_size = sizeof s;
    s.budget = 3;
    STATUS(ECOKV_NULL_POINTER, ecokv_session_new(engine, &s, &session));
    s.budget = 0;
    s.kv_type = 4;
    STATUS(ECOKV_BAD_VALUE, ecokv_session_new(engine, &s, &session));
    s.kv_type = 0;
    s.n_ctx = 1u << 30;
    STATUS(ECOKV_PROMPT, ecokv_session_new(engine, &s, &session));
    STATUS(ECOKV_NULL_POINTER, ecokv_session_new(NULL, &s, &session));
    CHECK(!session);

    ecokv_prompt_t *prompt = NULL;
    STATUS(ECOKV_BAD_VALUE, ecokv_prompt_new(engine, 2, &prompt));
    CHECK(!prompt);
    STATUS(ECOKV_OK, ecokv_prompt_new(engine, ECOKV_PROMPT_RAW, &prompt));
    STATUS(ECOKV_BAD_TEXT, ecokv_prompt_add_text(prompt, "\xc3(", 2));
    STATUS(ECOKV_NULL_POINTER, ecokv_prompt_add_text(prompt, NULL, 2));
    STATUS(ECOKV_PROMPT, ecokv_prompt_add_text(prompt, "<__media__>", 11));
    STATUS(ECOKV_OK, ecokv_prompt_add_text(prompt, QUESTION, strlen(QUESTION)));
    s.n_ctx = 2;
    STATUS(ECOKV_OK, ecokv_session_new(engine, &s, &session));
    STATUS(ECOKV_CONTEXT_FULL, ecokv_session_prefill(session, prompt, NULL));
    STATUS(ECOKV_NULL_POINTER, ecokv_session_prefill(session, NULL, NULL));
    ecokv_engine_t *other = open_engine();
    ecokv_prompt_t *foreign = ask(other);
    STATUS(ECOKV_BAD_ORDER, ecokv_session_prefill(session, foreign, NULL));
    ecokv_prompt_free(foreign);
    ecokv_engine_free(other);
    ecokv_session_free(session);
    ecokv_prompt_free(prompt);
    ecokv_engine_free(NULL);
    ecokv_session_free(NULL);
    ecokv_session_free(NULL);
    ecokv_prompt_free(NULL);

    ecokv_session_t *tight = new_session(engine, "snapkv", 1);
    ecokv_prompt_t *question = ask(engine);
    STATUS(ECOKV_OK, ecokv_session_prefill(tight, question, NULL)); /* the method's window shrinks */
    ecokv_session_free(tight);
    ecokv_prompt_free(question);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    read_files(argv + 1);
    CHECK(strlen(ecokv_last_error()) == 0);

    ecokv_engine_params_t params;
    ecokv_engine_t *engine = NULL;
    memset(&params, 0, sizeof params);
    params.struct_size = sizeof params;
    params.n_threads = 2;
    params.model_path = argv[1];
    params.mmproj_path = argv[2];
    STATUS(ECOKV_OK, ecokv_engine_open(&params, &engine));
    ecokv_prompt_t *prompt = ask(engine);
    ecokv_prompt_free(prompt);
    ecokv_engine_free(engine);

    engine = open_engine();
    answers(engine);
    in_pieces(engine);
    cancelled(engine);
    other_prompts(engine);
    sampling(engine);
    misuse(engine, argv[1]);
    threads(engine); /* frees it */
    free_files();
    printf("runtime: all as expected\n");
    return 0;
}
