/* A text chat: chat MODEL.gguf [METHOD BUDGET]. One line is one turn; the end of the input ends the chat. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ecokv.h"

static char answer[1 << 16];
static size_t answer_len;

static void need(ecokv_status_t status) {
    if (status == ECOKV_OK) return;
    fprintf(stderr, "%s\n", ecokv_last_error());
    exit(2);
}

/* Shows a piece at once and remembers it for the next turn. */
static int32_t show(void *user, uint32_t id, const char *text, size_t len) {
    (void)user;
    (void)id;
    fwrite(text, 1, len, stdout);
    fflush(stdout);
    if (len > sizeof answer - answer_len) return 1;
    memcpy(answer + answer_len, text, len);
    answer_len += len;
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 4) return fprintf(stderr, "chat MODEL.gguf [METHOD BUDGET]\n"), 2;
    if (!ecokv_abi_is_compatible(ECOKV_ABI_VERSION)) return fprintf(stderr, "another ecokv was linked\n"), 2;

    ecokv_engine_params_t model = {0};
    model.struct_size = sizeof model;
    model.model_path = argv[1];
    ecokv_engine_t *engine;
    need(ecokv_engine_open(&model, &engine));

    ecokv_policy_t policy = {0};
    ecokv_session_params_t memory = {0};
    policy.struct_size = sizeof policy;
    memory.struct_size = sizeof memory;
    if (argc == 4) {
        snprintf(policy.method, sizeof policy.method, "%s", argv[2]);
        memory.policy = &policy;
        memory.budget = (uint32_t)strtoul(argv[3], NULL, 10);
    }
    ecokv_session_t *session;
    need(ecokv_session_new(engine, &memory, &session));

    /* The template wants the whole conversation, so every turn is read from the start, with the cache pruned anew. */
    ecokv_prompt_t *conversation;
    need(ecokv_prompt_new(engine, ECOKV_PROMPT_CHAT, &conversation));
    ecokv_generate_params_t wanted = {0};
    wanted.struct_size = sizeof wanted;
    wanted.max_tokens = 256;
    wanted.on_token = show;

    char line[4096];
    while (fgets(line, sizeof line, stdin)) {
        need(ecokv_prompt_add_message(conversation, "user"));
        need(ecokv_prompt_add_text(conversation, line, strcspn(line, "\n")));
        need(ecokv_session_reset(session));
        need(ecokv_session_prefill(session, conversation, NULL));
        answer_len = 0;
        need(ecokv_session_generate(session, &wanted, NULL));
        putchar('\n');
        need(ecokv_prompt_add_message(conversation, "assistant"));
        need(ecokv_prompt_add_text(conversation, answer, answer_len));
    }
    ecokv_prompt_free(conversation);
    ecokv_session_free(session);
    ecokv_engine_free(engine);
    return 0;
}
