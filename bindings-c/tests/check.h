/* A test says what it expects; the first thing that is otherwise ends it. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);      \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

#define STATUS(expected, call)                                                                                  \
    do {                                                                                                        \
        ecokv_status_t status_ = (call);                                                                        \
        if (status_ != (expected)) {                                                                            \
            fprintf(stderr, "%s:%d: %s gave %u (%s), expected %s\n", __FILE__, __LINE__, #call, (unsigned)status_, \
                    ecokv_status_text(status_), #expected);                                                     \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)

#endif
