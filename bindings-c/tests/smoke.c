/* Compiles against the header as C11 or C++17, links, and prints what it found. */
#include <stdio.h>
#include <string.h>

#include "ecokv.h"

int main(void) {
    printf("ecokv %s, interface %u\n", ecokv_version(), (unsigned)ecokv_abi_version());
    if (ecokv_abi_version() != ECOKV_ABI_VERSION) return 1;
    if (strcmp(ecokv_status_text(ECOKV_OK), "done") != 0) return 2;
    if (strcmp(ecokv_status_text(ECOKV_OK), ecokv_status_text(12345)) == 0) return 3;
    return 0;
}
