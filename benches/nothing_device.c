/* A device whose kernels do nothing: a call of an operator on it costs what the host and the interface
   of plugins cost. Its memory is the host's. */
#include <stdlib.h>
#include <string.h>

#include "keyfold_plugin.h"

static KeyfoldError *allocate(void *data, uint32_t device, uint64_t bytes, uint32_t content, void **handle) {
    (void)data, (void)device, (void)content;
    *handle = calloc(bytes ? bytes : 1, 1);
    return NULL;
}

static void release(void *data, void *handle) {
    (void)data;
    free(handle);
}

static KeyfoldError *upload(void *data, const void *bytes, const DLTensor *to, uint32_t stream) {
    (void)data, (void)bytes, (void)to, (void)stream;
    return NULL;
}

static KeyfoldError *download(void *data, const DLTensor *from, void *bytes, uint32_t stream) {
    (void)data, (void)from, (void)bytes, (void)stream;
    return NULL;
}

static KeyfoldError *copy(void *data, const DLTensor *from, const DLTensor *to, uint32_t stream) {
    (void)data, (void)from, (void)to, (void)stream;
    return NULL;
}

static KeyfoldError *fill(void *data, const DLTensor *to, const void *element, uint32_t stream) {
    (void)data, (void)to, (void)element, (void)stream;
    return NULL;
}

static KeyfoldError *synchronize(void *data, uint32_t device) {
    (void)data, (void)device;
    return NULL;
}

static KeyfoldError *record(void *data, uint32_t device, uint32_t stream, void **event) {
    (void)device, (void)stream;
    *event = data;
    return NULL;
}

static void event_release(void *data, void *event) { (void)data, (void)event; }

static KeyfoldError *wait_for(void *data, uint32_t device, uint32_t stream, void *event) {
    (void)data, (void)device, (void)stream, (void)event;
    return NULL;
}

static KeyfoldError *is_done(void *data, void *event, uint32_t *done) {
    (void)data, (void)event;
    *done = 1;
    return NULL;
}

static KeyfoldError *elapsed(void *data, void *start, void *end, int64_t *nanoseconds) {
    (void)data, (void)start, (void)end;
    *nanoseconds = 0;
    return NULL;
}

static KeyfoldError *support(void *data, const KeyfoldOperation *operation) {
    (void)data, (void)operation;
    return NULL;
}

static KeyfoldError *execute(void *data, const KeyfoldExecution *call) {
    (void)data, (void)call;
    return NULL;
}

static KeyfoldError *compile(void *data, const KeyfoldSource *source, void **program) {
    (void)source;
    *program = data;
    return NULL;
}

static void program_release(void *data, void *program) { (void)data, (void)program; }

static KeyfoldError *launch(void *data, const KeyfoldLaunch *launch) {
    (void)data, (void)launch;
    return NULL;
}

static KeyfoldError *register_plugin(const KeyfoldHost *host, KeyfoldRegistrar *registrar) {
    static int nothing;
    const KeyfoldDevice device = {
        .size = sizeof device, .flags = KEYFOLD_DEVICE_ASYNCHRONOUS | KEYFOLD_DEVICE_OPENCL_C,
        .name = KEYFOLD_TEXT("nothing"), .data = &nothing, .device_count = 1, .stream_count = 1,
        .groups = KEYFOLD_GROUP_POINTWISE, .allocate = allocate, .release = release,
        .upload = upload, .download = download, .copy = copy, .fill = fill,
        .synchronize = synchronize, .record = record, .event_release = event_release,
        .wait = wait_for, .is_done = is_done, .elapsed = elapsed, .support = support,
        .execute = execute, .compile = compile, .program_release = program_release,
        .launch = launch,
    };
    return host->device(registrar, &device);
}

KEYFOLD_EXPORT const KeyfoldRequirements keyfold_plugin_requirements = {
    sizeof(KeyfoldRequirements), 1, KEYFOLD_PLUGIN_MINOR, 0, KEYFOLD_FEATURE_DEVICES,
};

KEYFOLD_EXPORT const KeyfoldDescriptor keyfold_plugin = {
    KEYFOLD_PLUGIN_MAGIC, KEYFOLD_PLUGIN_MAJOR, 1,
    KEYFOLD_TEXT("nothing"), KEYFOLD_TEXT("1.0"), register_plugin,
};
