/* An OpenCL loader that fails on demand: linked with the real one, whose other functions it passes on.
 *
 * KEYFOLD_TEST_FAULTS has the calls to fail, as FUNCTION:NUMBER:STATUS with commas between: "clFinish:2:-5"
 * fails the second call of clFinish with -5, "clFinish:2-:-5" that and all later ones, "cl*:1-:-2" every
 * call of every function here. Calls are counted from the last change of the variable.
 *
 * KEYFOLD_TEST_PLATFORMS: "none"; "twice", the first platform two times; "empty", one without devices
 * before the others. KEYFOLD_TEST_MEMORY: the bytes of each device. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;

enum { MOST = 8 };

static struct {
    pthread_mutex_t lock;
    char text[256];
    int calls[MOST];
} faults = {PTHREAD_MUTEX_INITIALIZER, "", {0}};

/* Returns the status to fail this call with, or 0. */
static int fault_of(const char *function) {
    const char *text = getenv("KEYFOLD_TEST_FAULTS");
    if (text == NULL) text = "";
    int found = 0;
    pthread_mutex_lock(&faults.lock);
    if (strcmp(text, faults.text) != 0) {
        snprintf(faults.text, sizeof faults.text, "%s", text);
        memset(faults.calls, 0, sizeof faults.calls);
    }
    for (int i = 0; i < MOST && *text != '\0'; i++) {
        const char *colon = strchr(text, ':');
        if (colon == NULL) break;
        size_t length = (size_t)(colon - text);
        int any = length > 0 && text[length - 1] == '*';
        int same = any ? strncmp(text, function, length - 1) == 0
                       : strlen(function) == length && strncmp(text, function, length) == 0;
        char *rest = NULL;
        long number = strtol(colon + 1, &rest, 10);
        int on = *rest == '-';
        int status = (int)strtol(rest + on + 1, &rest, 10);
        if (same) {
            int call = ++faults.calls[i];
            if (call == number || (on && call > number)) found = status;
        }
        text = *rest == ',' ? rest + 1 : "";
    }
    pthread_mutex_unlock(&faults.lock);
    return found;
}

/* A function that returns its status. */
#define STATUS(name, parameters, arguments)                 \
    int name parameters {                                   \
        int fault = fault_of(#name);                        \
        int (*real) parameters = dlsym(RTLD_NEXT, #name);   \
        return fault != 0 ? fault : real arguments;         \
    }

/* A function that returns what it made, and its status by its last argument. */
#define MAKES(name, parameters, arguments)                  \
    handle name parameters {                                \
        int fault = fault_of(#name);                        \
        handle (*real) parameters = dlsym(RTLD_NEXT, #name); \
        if (fault == 0) return real arguments;              \
        if (status != NULL) *status = fault;                \
        return NULL;                                        \
    }

static int empty_platform;

static int platform_ids(uint32_t count, handle *to, uint32_t *told) {
    int (*real)(uint32_t, handle *, uint32_t *) = dlsym(RTLD_NEXT, "clGetPlatformIDs");
    const char *wanted = getenv("KEYFOLD_TEST_PLATFORMS");
    if (wanted == NULL) return real(count, to, told);
    if (strcmp(wanted, "none") == 0) {
        if (told != NULL) *told = 0;
        return -1001;
    }
    handle first = NULL;
    int status = real(1, &first, NULL);
    if (status != 0) return status;
    handle both[2] = {strcmp(wanted, "twice") == 0 ? first : &empty_platform, first};
    if (told != NULL) *told = 2;
    for (uint32_t i = 0; to != NULL && i < count && i < 2; i++) to[i] = both[i];
    return 0;
}

int clGetPlatformIDs(uint32_t count, handle *to, uint32_t *told) {
    int fault = fault_of("clGetPlatformIDs");
    return fault != 0 ? fault : platform_ids(count, to, told);
}

int clGetPlatformInfo(handle platform, uint32_t property, size_t size, void *to, size_t *told) {
    static const char name[] = "Empty";
    int (*real)(handle, uint32_t, size_t, void *, size_t *) = dlsym(RTLD_NEXT, "clGetPlatformInfo");
    if (platform != &empty_platform) return real(platform, property, size, to, told);
    if (told != NULL) *told = sizeof name;
    if (to != NULL && size >= sizeof name) memcpy(to, name, sizeof name);
    return 0;
}

int clGetDeviceIDs(handle platform, uint64_t type, uint32_t count, handle *to, uint32_t *told) {
    int (*real)(handle, uint64_t, uint32_t, handle *, uint32_t *) =
        dlsym(RTLD_NEXT, "clGetDeviceIDs");
    int fault = platform == &empty_platform ? -1 : fault_of("clGetDeviceIDs");
    return fault != 0 ? fault : real(platform, type, count, to, told);
}

int clGetDeviceInfo(handle device, uint32_t property, size_t size, void *to, size_t *told) {
    int (*real)(handle, uint32_t, size_t, void *, size_t *) = dlsym(RTLD_NEXT, "clGetDeviceInfo");
    const char *memory = getenv("KEYFOLD_TEST_MEMORY");
    int fault = fault_of("clGetDeviceInfo");
    if (fault == 0) fault = real(device, property, size, to, told);
    /* CL_DEVICE_GLOBAL_MEM_SIZE */
    if (fault == 0 && property == 0x101f && memory != NULL && to != NULL && size == 8)
        *(uint64_t *)to = strtoull(memory, NULL, 10);
    return fault;
}

MAKES(clCreateContext,
      (const intptr_t *p, uint32_t n, const handle *d, void *f, void *u, int *status),
      (p, n, d, f, u, status))
MAKES(clCreateCommandQueue, (handle c, handle d, uint64_t p, int *status), (c, d, p, status))
MAKES(clCreateBuffer, (handle c, uint64_t f, size_t n, void *h, int *status), (c, f, n, h, status))
MAKES(clCreateProgramWithSource,
      (handle c, uint32_t n, const char **t, const size_t *l, int *status), (c, n, t, l, status))
STATUS(clBuildProgram,
       (handle p, uint32_t n, const handle *d, const char *o, void *f, void *u),
       (p, n, d, o, f, u))
MAKES(clCreateKernel, (handle p, const char *n, int *status), (p, n, status))
STATUS(clSetKernelArg, (handle k, uint32_t i, size_t n, const void *v), (k, i, n, v))
STATUS(clEnqueueNDRangeKernel,
       (handle q, handle k, uint32_t n, const size_t *o, const size_t *g, const size_t *l,
        uint32_t w, const handle *e, handle *out),
       (q, k, n, o, g, l, w, e, out))
STATUS(clEnqueueWriteBuffer,
       (handle q, handle b, uint32_t block, size_t at, size_t n, const void *from, uint32_t w,
        const handle *e, handle *out),
       (q, b, block, at, n, from, w, e, out))
STATUS(clEnqueueReadBuffer,
       (handle q, handle b, uint32_t block, size_t at, size_t n, void *to, uint32_t w,
        const handle *e, handle *out),
       (q, b, block, at, n, to, w, e, out))
STATUS(clEnqueueCopyBuffer,
       (handle q, handle from, handle to, size_t f, size_t t, size_t n, uint32_t w,
        const handle *e, handle *out),
       (q, from, to, f, t, n, w, e, out))
STATUS(clEnqueueFillBuffer,
       (handle q, handle b, const void *p, size_t s, size_t at, size_t n, uint32_t w,
        const handle *e, handle *out),
       (q, b, p, s, at, n, w, e, out))
STATUS(clEnqueueMarkerWithWaitList, (handle q, uint32_t w, const handle *e, handle *out),
       (q, w, e, out))
STATUS(clEnqueueBarrierWithWaitList, (handle q, uint32_t w, const handle *e, handle *out),
       (q, w, e, out))
STATUS(clWaitForEvents, (uint32_t n, const handle *e), (n, e))
STATUS(clGetEventInfo, (handle e, uint32_t p, size_t n, void *to, size_t *told),
       (e, p, n, to, told))
STATUS(clGetEventProfilingInfo, (handle e, uint32_t p, size_t n, void *to, size_t *told),
       (e, p, n, to, told))
STATUS(clFlush, (handle q), (q))
STATUS(clFinish, (handle q), (q))
