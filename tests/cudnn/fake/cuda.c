/* A driver with one card, whose memory is the host's: it counts what is allocated and which contexts are current. */
#include <stdlib.h>
#include <string.h>

static int live, depth_now;
static char context;

int fake_live(void) { return live; }
int fake_depth(void) { return depth_now; }

int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *card, int ordinal) { *card = ordinal; return 0; }
int cuDeviceGetName(char *text, int length, int card) {
    (void)card;
    strncpy(text, "Fake H100", (size_t)length);
    return 0;
}
int cuDevicePrimaryCtxRetain(void **to, int card) { (void)card; *to = &context; return 0; }
int cuCtxPushCurrent_v2(void *pushed) { depth_now += 1; return pushed == &context ? 0 : 201; }
int cuCtxPopCurrent_v2(void **to) { depth_now -= 1; *to = &context; return 0; }
int cuMemAllocAsync(unsigned long long *address, size_t bytes, void *stream) {
    if (stream || depth_now < 1) return 201;
    if (bytes > (1ull << 34)) return 2;
    *address = (unsigned long long)aligned_alloc(256, (bytes + 255) / 256 * 256);
    live += 1;
    return 0;
}
int cuMemFreeAsync(unsigned long long address, void *stream) {
    if (stream || depth_now < 1) return 201;
    free((void *)address);
    live -= 1;
    return 0;
}
int cuMemsetD8Async(unsigned long long address, unsigned char value, size_t bytes, void *stream) {
    (void)stream;
    memset((void *)address, value, bytes);
    return 0;
}
int cuStreamSynchronize(void *stream) { return stream ? 400 : 0; }
int cuGetErrorString(int code, const char **text) {
    *text = code == 2 ? "out of memory" : "an error of the fake driver";
    return 0;
}
