/* What a program needs on the AN386 image of Arm's MPS2 board, a Cortex-M4: start, memory functions, text output and an end,
 * the last two by semihosting. */
#include <stddef.h>
#include <stdint.h>

int main(void);
void put(const char *text);
void reset(void);
void *memcpy(void *to, const void *from, size_t n);
void *memmove(void *to, const void *from, size_t n);
void *memset(void *to, int c, size_t n);
int memcmp(const void *a, const void *b, size_t n);
void __aeabi_memcpy(void *to, const void *from, size_t n);
void __aeabi_memcpy4(void *to, const void *from, size_t n);
void __aeabi_memcpy8(void *to, const void *from, size_t n);
void __aeabi_memclr(void *to, size_t n);
void __aeabi_memclr4(void *to, size_t n);
void __aeabi_memclr8(void *to, size_t n);
extern uint32_t stack_top;

__attribute__((section(".vectors"), used)) static const void *const vectors[2] = {&stack_top, (const void *)reset};

static int semihost(int operation, const void *argument) {
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

void put(const char *text) { semihost(4, text); }

void reset(void) {
    *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20; /* the floating-point unit */
    __asm__ volatile("dsb\n isb");
    const uint32_t end[2] = {0x20026, (uint32_t)main()};
    semihost(0x20, end); /* exit with main's result */
    for (;;) {
    }
}

void *memcpy(void *to, const void *from, size_t n) {
    char *t = to;
    const char *f = from;
    while (n--) *t++ = *f++;
    return to;
}

void *memmove(void *to, const void *from, size_t n) {
    char *t = to;
    const char *f = from;
    if (t <= f) return memcpy(to, from, n);
    while (n--) t[n] = f[n];
    return to;
}

void *memset(void *to, int c, size_t n) {
    char *t = to;
    while (n--) *t++ = (char)c;
    return to;
}

int memcmp(const void *a, const void *b, size_t n) {
    const unsigned char *x = a, *y = b;
    for (size_t i = 0; i < n; i++) {
        if (x[i] != y[i]) return x[i] - y[i];
    }
    return 0;
}

/* What compilers for Arm call instead. */
void __aeabi_memcpy(void *to, const void *from, size_t n) { memcpy(to, from, n); }
void __aeabi_memcpy4(void *to, const void *from, size_t n) { memcpy(to, from, n); }
void __aeabi_memcpy8(void *to, const void *from, size_t n) { memcpy(to, from, n); }
void __aeabi_memclr(void *to, size_t n) { memset(to, 0, n); }
void __aeabi_memclr4(void *to, size_t n) { memset(to, 0, n); }
void __aeabi_memclr8(void *to, size_t n) { memset(to, 0, n); }
