/* Times llama.cpp's vision tower (mtmd) on a picture of noise: a line with rows, squares and seconds for each repetition.
   The arguments are those of ecokv's example encode_picture. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "llama.h"
#include "mtmd.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void quiet(enum ggml_log_level level, const char *text, void *data) {
    (void)level, (void)text, (void)data;
}

static int fail(const char *what) {
    fprintf(stderr, "%s failed\n", what);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 7) return fail("MODEL.gguf MMPROJ.gguf WIDTH HEIGHT REPETITIONS THREADS");
    unsigned width = (unsigned)atoi(argv[3]), height = (unsigned)atoi(argv[4]);
    llama_log_set(quiet, NULL);
    mtmd_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    struct mtmd_context_params params = mtmd_context_params_default();
    params.use_gpu = false;
    params.print_timings = false;
    params.warmup = false;
    params.n_threads = atoi(argv[6]);
    mtmd_context *context = model ? mtmd_init_from_file(argv[2], model, params) : NULL;
    if (!context) return fail("loading");

    unsigned n_bytes = 3 * width * height;
    unsigned char *pixels = malloc(n_bytes);
    for (unsigned i = 0; i < n_bytes; i++) pixels[i] = (unsigned char)((i * 2654435761u) >> 13);
    const mtmd_bitmap *bitmap = mtmd_bitmap_init(width, height, pixels);
    mtmd_input_text text;
    memset(&text, 0, sizeof text);
    text.text = "<__media__>";
    text.text_len = strlen(text.text);
    text.parse_special = true;
    mtmd_input_chunks *chunks = mtmd_input_chunks_init();
    for (int i = 0; i < atoi(argv[5]); i++) {
        /* Scaling the picture is part of it, as it is in ecokv. */
        double start = now();
        if (mtmd_tokenize(context, chunks, &text, &bitmap, 1)) return fail("mtmd_tokenize");
        size_t n_rows = 0, n_squares = 0;
        for (size_t c = 0; c < mtmd_input_chunks_size(chunks); c++) {
            const mtmd_input_chunk *chunk = mtmd_input_chunks_get(chunks, c);
            if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) continue;
            if (mtmd_encode_chunk(context, chunk)) return fail("mtmd_encode_chunk");
            n_rows += mtmd_input_chunk_get_n_tokens(chunk);
            n_squares++;
        }
        printf("%zu %zu %.4f\n", n_rows, n_squares, now() - start);
        fflush(stdout);
    }
    return 0;
}
