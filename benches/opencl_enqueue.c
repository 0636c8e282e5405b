/* The time in which a C program queues an empty kernel on the first OpenCL device. The loader is opened
   at run time, so no headers of OpenCL are needed. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef void *Handle;

static int32_t (*enqueue_kernel)(Handle, Handle, uint32_t, const size_t *, const size_t *,
                                 const size_t *, uint32_t, const Handle *, Handle *);
static int32_t (*set_argument)(Handle, uint32_t, size_t, const void *);
static int32_t (*finish)(Handle);
static Handle queue, empty, adder, memory;

/* The same as keyfold's queues: in order, with times. */
enum { PROFILING = 2, READ_WRITE = 1 };

/* Opens the loader and compiles; 0 or what failed. */
__attribute__((visibility("default"))) int prepare(const char *path) {
    void *loader = dlopen(path, RTLD_NOW);
    if (!loader)
        return 1;
#define FUNCTION(result, name, ...) result (*name)(__VA_ARGS__) = (result (*)(__VA_ARGS__))dlsym(loader, #name)
    FUNCTION(int32_t, clGetPlatformIDs, uint32_t, Handle *, uint32_t *);
    FUNCTION(int32_t, clGetDeviceIDs, Handle, uint64_t, uint32_t, Handle *, uint32_t *);
    FUNCTION(Handle, clCreateContext, const intptr_t *, uint32_t, const Handle *, void *, void *, int32_t *);
    FUNCTION(Handle, clCreateCommandQueue, Handle, Handle, uint64_t, int32_t *);
    FUNCTION(Handle, clCreateBuffer, Handle, uint64_t, size_t, void *, int32_t *);
    FUNCTION(Handle, clCreateProgramWithSource, Handle, uint32_t, const char **, const size_t *, int32_t *);
    FUNCTION(int32_t, clBuildProgram, Handle, uint32_t, const Handle *, const char *, void *, void *);
    FUNCTION(Handle, clCreateKernel, Handle, const char *, int32_t *);
    enqueue_kernel = dlsym(loader, "clEnqueueNDRangeKernel");
    set_argument = dlsym(loader, "clSetKernelArg");
    finish = dlsym(loader, "clFinish");
    Handle platform, device;
    int32_t status = 0;
    if (clGetPlatformIDs(1, &platform, NULL))
        return 2;
    if (clGetDeviceIDs(platform, 0xFFFFFFFF, 1, &device, NULL))
        return 3;
    Handle context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    if (status)
        return 4;
    queue = clCreateCommandQueue(context, device, PROFILING, &status);
    memory = clCreateBuffer(context, READ_WRITE, 64, NULL, &status);
    const char *text = "kernel void nothing(void) {}\n"
                       "kernel void add(global float *r, global float *x, global float *y) {\n"
                       "    size_t i = get_global_id(0);\n    if (i < 1) r[i] = x[i] + y[i];\n}\n";
    Handle program = clCreateProgramWithSource(context, 1, &text, NULL, &status);
    if (status || clBuildProgram(program, 1, &device, "", NULL, NULL))
        return 5;
    empty = clCreateKernel(program, "nothing", &status);
    adder = clCreateKernel(program, "add", &status);
    return status ? 6 : 0;
}

/* Waits for the queue. */
__attribute__((visibility("default"))) int drain(void) { return finish(queue); }

/* The seconds that queueing so many kernels takes, of `arguments` buffers (0 or 3); negative: it failed. */
__attribute__((visibility("default"))) double enqueue(int calls, int arguments) {
    const size_t global = 64, local = 64;
    Handle kernel = arguments ? adder : empty;
    struct timespec start, end;
    int32_t status = 0;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < calls; i++) {
        for (int k = 0; k < arguments; k++)
            status |= set_argument(kernel, k, sizeof memory, &memory);
        status |= enqueue_kernel(queue, kernel, 1, NULL, &global, &local, 0, NULL, NULL);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    return status ? -1 : seconds;
}
