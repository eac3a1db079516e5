/* The model that the tests talk to, its tower, and a picture that asks for a total of 26.45. */
#ifndef MODEL_H
#define MODEL_H

#include <string.h>

#include "check.h"
#include "ecokv.h"

#define QUESTION "how much is the total?"
#define ANSWER "26.45"

typedef struct {
    unsigned char *data;
    size_t size;
} file_t;

static file_t read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    CHECK(f);
    CHECK(fseek(f, 0, SEEK_END) == 0);
    file_t file = {NULL, (size_t)ftell(f)};
    rewind(f);
    file.data = (unsigned char *)malloc(file.size);
    CHECK(file.data && fread(file.data, 1, file.size, f) == file.size);
    fclose(f);
    return file;
}

static file_t model, mmproj, image;

static void read_files(char **paths) {
    model = read_file(paths[0]);
    mmproj = read_file(paths[1]);
    image = read_file(paths[2]);
}

static void free_files(void) {
    free(model.data);
    free(mmproj.data);
    free(image.data);
}

static ecokv_engine_params_t engine_params(void) {
    ecokv_engine_params_t params;
    memset(&params, 0, sizeof params);
    params.struct_size = sizeof params;
    params.n_threads = 1;
    params.model_data = model.data;
    params.model_size = model.size;
    params.mmproj_data = mmproj.data;
    params.mmproj_size = mmproj.size;
    return params;
}

static ecokv_engine_t *open_engine(void) {
    ecokv_engine_params_t params = engine_params();
    ecokv_engine_t *engine = NULL;
    STATUS(ECOKV_OK, ecokv_engine_open(&params, &engine));
    return engine;
}

static ecokv_prompt_t *ask(const ecokv_engine_t *engine) {
    ecokv_prompt_t *prompt = NULL;
    STATUS(ECOKV_OK, ecokv_prompt_new(engine, ECOKV_PROMPT_CHAT, &prompt));
    STATUS(ECOKV_OK, ecokv_prompt_add_message(prompt, "user"));
    STATUS(ECOKV_OK, ecokv_prompt_add_image(prompt, image.data, image.size));
    STATUS(ECOKV_OK, ecokv_prompt_add_text(prompt, QUESTION, strlen(QUESTION)));
    return prompt;
}

#endif
