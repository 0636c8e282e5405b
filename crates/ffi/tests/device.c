/* A device in C: memory of malloc behind handles, and a few operations on float32. -DCASE=... chooses
 * one thing that is wrong. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "keyfold_plugin.h"

#ifndef NAME
#define NAME "board"
#define KEY "BOARD"
#endif

#define GOOD 1
#define NULL_SPEC 2
#define SHORT_SPEC 3
#define NULL_NAME 4
#define NOT_UTF8 5
#define CPU_NAME 6
#define BAD_NAME 7
#define NO_DEVICES 8
#define NO_STREAMS 9
#define FLAGS 10
#define GROUPS 11
#define NO_FILL 12
#define NO_EXECUTE 13
#define NO_EVENTS 14
#define HALF_EVENTS 15
#define TWICE 16
#define NULL_HANDLE 17
#define LIES 18
#define LOST 19
#define OUT_OF_MEMORY 20
#define COUNTS_TOO_MUCH 21
#define FEATURE 22
#define RANGE 23
#define TOO_NEW 24
#define LATE 25
#define LONG_SPEC 26
#define KERNEL_TWICE 27
#define NO_COUNT 28
#define COMPILES 29
#define DOESNT_COMPILE 30
#define NO_LAUNCH 31
#define NO_POINTWISE 32
#define COMPILES_OPENCL 33
#define ABORTS 34
#define DOES_MORE 35

/* How often the device's data was dropped, and how many handles there are. */
int dropped, handles;
static int allocations, calls;
static const KeyfoldHost *host;

typedef struct Block {
    uint64_t bytes;
    char *memory;
} Block;

static KeyfoldError *error(const char *kind, const char *message) {
    KeyfoldText k = {kind, strlen(kind)}, m = {message, strlen(message)};
    return host->error_new(k, m);
}

static char *element(const DLTensor *t, int64_t at) {
    int64_t offset = 0;
    for (int d = t->ndim; d-- > 0; at /= t->shape[d])
        offset += at % t->shape[d] * t->strides[d];
    return ((Block *)t->data)->memory + t->byte_offset + offset * (t->dtype.bits / 8);
}

static int64_t numel(const DLTensor *t) {
    int64_t n = 1;
    for (int d = 0; d < t->ndim; ++d)
        n *= t->shape[d];
    return n;
}

static void drop(void *data) { *(int *)data += 1; }

static KeyfoldError *allocate(void *data, uint32_t device, uint64_t bytes, uint32_t content,
                              void **handle) {
    (void)data, (void)device;
    if (CASE == NULL_HANDLE)
        return NULL;
    if (CASE == OUT_OF_MEMORY && ++allocations > 1)
        return error("Memory", "the board is full");
    Block *block = malloc(sizeof(Block));
    block->bytes = bytes;
    block->memory = content == kKeyfoldContentZeros ? calloc(bytes, 1) : malloc(bytes);
    ++handles;
    *handle = block;
    return NULL;
}

static void release(void *data, void *handle) {
    (void)data;
    --handles;
    free(((Block *)handle)->memory);
    free(handle);
}

static KeyfoldError *upload(void *data, const void *bytes, const DLTensor *to, uint32_t stream) {
    (void)data, (void)stream;
    if (CASE == LOST && ++calls > 1)
        return error("Device", "the cable was pulled");
    memcpy(element(to, 0), bytes, (size_t)numel(to) * (to->dtype.bits / 8));
    return NULL;
}

static KeyfoldError *download(void *data, const DLTensor *from, void *bytes, uint32_t stream) {
    (void)data, (void)stream;
    if (CASE == LATE)
        return host->late(error("KernelFailed", "aten::exp: the board overheated"));
    memcpy(bytes, element(from, 0), (size_t)numel(from) * (from->dtype.bits / 8));
    return NULL;
}

static KeyfoldError *copy(void *data, const DLTensor *from, const DLTensor *to, uint32_t stream) {
    (void)data, (void)stream;
    for (int64_t at = 0; at < numel(to); ++at)
        memcpy(element(to, at), element(from, at), to->dtype.bits / 8);
    return NULL;
}

static KeyfoldError *fill(void *data, const DLTensor *to, const void *value, uint32_t stream) {
    (void)data, (void)stream;
    for (int64_t at = 0; at < numel(to); ++at)
        memcpy(element(to, at), value, to->dtype.bits / 8);
    return NULL;
}

static KeyfoldError *synchronize(void *data, uint32_t device) {
    (void)data, (void)device;
    return NULL;
}

static KeyfoldError *record(void *data, uint32_t device, uint32_t stream, void **event) {
    (void)data, (void)device, (void)stream, (void)event;
    return error("NotSupported", "never called");
}

static int is(KeyfoldText text, const char *name) {
    return text.len == strlen(name) && memcmp(text.data, name, text.len) == 0;
}

static KeyfoldError *support(void *data, const KeyfoldOperation *op) {
    (void)data;
    int floats = op->output.code == kDLFloat && op->output.bits == 32;
    for (uint32_t i = 0; i < op->inputs; ++i)
        floats &= op->input_dtypes[i].code == kDLFloat && op->input_dtypes[i].bits == 32;
    if (is(op->group, "pointwise") && (is(op->name, "add") || is(op->name, "mul")) && floats)
        return NULL;
    if (is(op->group, "pointwise") && is(op->name, "check"))
        return NULL;
    if (is(op->group, "reduce") && is(op->name, "sum") && floats)
        return NULL;
    if (is(op->group, "pointwise") && is(op->name, "expression")) {
        int ints = op->output.code == kDLInt;
        for (uint32_t i = 0; i < op->inputs; ++i)
            ints &= op->input_dtypes[i].code == kDLInt;
        return floats || ints ? NULL : error("NotSupported", "the board has float32 and integers");
    }
    if (is(op->group, "linear") && is(op->name, "matmul") && floats)
        return op->outputs == 1 && op->output_dtypes[0].bits == 32
                   ? NULL
                   : error("NotSupported", "the board's products are one float32 tensor");
    if (is(op->group, "rows") && floats && CASE == LIES)
        return NULL;
    if (is(op->group, "index") && is(op->name, "positions"))
        return NULL;
    return error("NotSupported", "the board adds and multiplies float32");
}

/* A parameter of a group of 1.2. */
static const KeyfoldField *field(const KeyfoldExecution *call, const char *name) {
    const KeyfoldFields *all = call->params;
    for (uint32_t i = 0; i < all->count; ++i)
        if (is(all->fields[i].name, name))
            return all->fields + i;
    return NULL;
}

/* alpha a b + beta addend, of matrices */
static KeyfoldError *product(const KeyfoldExecution *call) {
    const DLTensor *a = call->tensors, *b = a + 1, *out = call->tensors + call->inputs;
    const KeyfoldField *activation = field(call, "activation");
    if (activation->kind != kKeyfoldFieldText || !is(activation->text, "none"))
        return error("NotSupported", "the board has no activations");
    int addend = field(call, "has_addend")->integer != 0;
    double alpha = field(call, "alpha")->number, beta = field(call, "beta")->number;
    int64_t m = a->shape[0], k = a->shape[1], n = b->shape[1];
    for (int64_t at = 0; at < m * n; ++at) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i)
            sum += *(float *)element(a, at / n * k + i) * *(float *)element(b, i * n + at % n);
        *(float *)element(out, at) =
            (float)(alpha * sum + (addend ? beta * *(float *)element(a + 2, at) : 0));
    }
    return NULL;
}

static KeyfoldError *execute(void *data, const KeyfoldExecution *call) {
    (void)data;
    if (is(call->group, "linear"))
        return product(call);
    const DLTensor *a = call->tensors, *out = call->tensors + call->inputs;
    if (is(call->name, "add") || is(call->name, "mul")) {
        int add = is(call->name, "add");
        if (CASE == ABORTS && a->ndim > 0 && a->strides[a->ndim - 1] < 0)
            abort();
        for (int64_t at = 0; at < numel(out); ++at) {
            float x = *(float *)element(a, at), y = *(float *)element(a + 1, at);
            *(float *)element(out, at) = add ? x + y : x * y;
        }
        return NULL;
    }
    if (is(call->name, "check")) {
        const KeyfoldPointwiseParams *params = call->params;
        for (int64_t at = 0; at < numel(a); ++at)
            if (!*element(a, at))
                return host->fault(params->fault, (KeyfoldText){"", 0});
        return NULL;
    }
    if (is(call->name, "sum")) { /* of all dimensions, or of the last */
        const KeyfoldReduceParams *params = call->params;
        int all = params->dims == (UINT64_C(1) << a->ndim) - 1;
        int64_t lanes = all ? 1 : numel(out), length = numel(a) / lanes;
        for (int64_t lane = 0; lane < lanes; ++lane) {
            float sum = 0;
            for (int64_t at = 0; at < length; ++at)
                sum += *(float *)element(a, lane * length + at);
            *(float *)element(out, lane) = sum;
        }
        return NULL;
    }
    if (CASE == DOES_MORE && is(call->name, "max") && numel(out) == 1) { /* unclaimed */
        float most = *(float *)element(a, 0);
        for (int64_t at = 1; at < numel(a); ++at) {
            float x = *(float *)element(a, at);
            most = x > most || x != x ? x : most;
        }
        *(float *)element(out, 0) = most;
        return NULL;
    }
    if (is(call->name, "positions")) { /* of one dimension */
        int64_t next = 0;
        for (int64_t at = 0; at < numel(a); ++at)
            if (*element(a, at))
                *(int64_t *)element(out, next++) = at;
        return NULL;
    }
    return error("NotSupported", "the board has no such unit");
}

static KeyfoldError *count_true(void *data, const DLTensor *mask, uint32_t stream, uint64_t *count) {
    (void)data, (void)stream;
    *count = CASE == COUNTS_TOO_MUCH ? 99 : 0;
    for (int64_t at = 0; at < numel(mask); ++at)
        *count += *element(mask, at) != 0;
    return NULL;
}

/* Programs: the text as C++, compiled with the shims in the folder that -DSHIM=... names. */
typedef struct Program {
    void *library;
    void (*run)(void **values);
} Program;

#ifndef SHIM
#define SHIM "."
#endif

static KeyfoldError *compile(void *data, const KeyfoldSource *source, void **program) {
    (void)data;
    char folder[] = "/tmp/keyfold_device_XXXXXX", path[64], command[512], log[4096] = "";
    if (!mkdtemp(folder))
        return error("KernelFailed", "the board has no folder for programs");
    snprintf(path, sizeof path, "%s/kernel.cc", folder);
    FILE *file = fopen(path, "w");
    fprintf(file, "#include \"%s_shim.h\"\n%.*s\n", CASE == COMPILES_OPENCL ? "opencl" : "cuda",
            (int)source->text.len, source->text.data);
    fprintf(file, "extern \"C\" void run(void** v) {\n    blockDim.x = gridDim.x = 1;\n    %.*s(",
            (int)source->name.len, source->name.data);
    for (uint32_t i = 0; i < source->parameters; ++i)
        fprintf(file, "%s*(%.*s*)v[%u]", i ? ", " : "", (int)source->types[i].len,
                source->types[i].data, i);
    fprintf(file, CASE == DOESNT_COMPILE ? ") no such unit" : ");\n}\n");
    fclose(file);
    snprintf(command, sizeof command,
             "c++ -std=c++17 -w -ffp-contract=off -shared -fPIC -I'%s' -o %s/kernel.so %s 2> %s/log",
             SHIM, folder, path, folder);
    int failed = system(command);
    snprintf(path, sizeof path, "%s/log", folder);
    if ((file = fopen(path, "r"))) {
        log[fread(log, 1, sizeof log - 1, file)] = 0;
        fclose(file);
    }
    snprintf(path, sizeof path, "%s/kernel.so", folder);
    Program *made = malloc(sizeof *made);
    if (!failed)
        made->library = dlopen(path, RTLD_NOW);
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command) || failed) {
        free(made);
        return error("KernelFailed", log);
    }
    made->run = (void (*)(void **))dlsym(made->library, "run");
    ++handles;
    *program = made;
    return NULL;
}

static void program_release(void *data, void *program) {
    (void)data;
    --handles;
    dlclose(((Program *)program)->library);
    free(program);
}

static KeyfoldError *launch(void *data, const KeyfoldLaunch *call) {
    (void)data;
    void *values[16], *pointers[16];
    for (uint32_t i = 0; i < call->arguments; ++i) {
        const KeyfoldArgument *value = call->values + i;
        values[i] = (void *)value->value;
        if (value->kind == kKeyfoldArgumentBuffer) {
            pointers[i] = ((Block *)value->value)->memory + value->offset;
            values[i] = pointers + i;
        }
    }
    ((Program *)call->program)->run(values);
    return NULL;
}

/* A kernel at the device's key: is the handle that it gets a block of this plugin? */
static int block_bytes(void *handle, const TVMFFIAny *args, int32_t n, TVMFFIAny *result) {
    const KeyfoldCall *call = handle;
    const DLTensor *t = args[0].v_ptr;
    if (n != 1 || t->device.device_type != kDLExtDev || call->host->stream(t->device) != 0)
        return -1;
    result->type_index = kTVMFFIInt;
    result->v_int64 = (int64_t)((Block *)t->data)->bytes * 1000 + (int64_t)t->byte_offset;
    return 0;
}

static KeyfoldError *register_plugin(const KeyfoldHost *table, KeyfoldRegistrar *registrar) {
    static struct { KeyfoldDevice device; uint64_t later[4]; } spec;
    KeyfoldDevice *d = &spec.device;
    KeyfoldError *failed = NULL;
    host = table;
    memset(&spec, 0xff, sizeof spec); /* fields of later versions, which this host mustn't read */
    memset(d, 0, sizeof *d);
    d->size = CASE == SHORT_SPEC  ? sizeof *d - 8
              : CASE == LONG_SPEC ? sizeof spec
                                  : sizeof *d;
    d->name = (KeyfoldText)KEYFOLD_TEXT(NAME);
    d->data = &dropped, d->drop = drop;
    d->device_count = 2, d->stream_count = 1;
    d->groups = KEYFOLD_GROUP_POINTWISE | KEYFOLD_GROUP_REDUCE | KEYFOLD_GROUP_ROWS |
                KEYFOLD_GROUP_INDEX | KEYFOLD_GROUP_LINEAR;
    d->allocate = allocate, d->release = release, d->upload = upload, d->download = download;
    d->copy = copy, d->fill = fill, d->synchronize = synchronize;
    d->support = support, d->execute = execute, d->count_true = count_true;
    switch (CASE) {
    case NULL_NAME: d->name.data = NULL; break;
    case NOT_UTF8: d->name = (KeyfoldText)KEYFOLD_TEXT("bo\xff"); break;
    case CPU_NAME: d->name = (KeyfoldText)KEYFOLD_TEXT("cpu"); break;
    case BAD_NAME: d->name = (KeyfoldText)KEYFOLD_TEXT("a board"); break;
    case NO_DEVICES: d->device_count = 0; break;
    case NO_STREAMS: d->stream_count = 0; break;
    case FLAGS: d->flags = 1 << 30; break;
    case GROUPS: d->groups = UINT64_C(1) << 60; break;
    case NO_FILL: d->fill = NULL, d->release = NULL; break;
    case NO_EXECUTE: d->execute = NULL; break;
    case NO_EVENTS: d->flags = KEYFOLD_DEVICE_ASYNCHRONOUS; break;
    case HALF_EVENTS: d->record = record; break;
    case NO_COUNT: d->count_true = NULL; break;
    case COMPILES:
    case COMPILES_OPENCL:
    case DOESNT_COMPILE:
    case NO_LAUNCH:
        d->flags = CASE == COMPILES_OPENCL ? KEYFOLD_DEVICE_OPENCL_C : KEYFOLD_DEVICE_CUDA_C;
        d->compile = compile, d->program_release = program_release;
        d->launch = CASE == NO_LAUNCH ? NULL : launch;
        break;
    case NO_POINTWISE:
        d->flags = KEYFOLD_DEVICE_CUDA_C, d->groups = KEYFOLD_GROUP_REDUCE;
        break;
    }
    if (CASE == NULL_SPEC)
        return host->device(registrar, NULL);
    if ((failed = host->device(registrar, d)))
        return failed;
    if (CASE == TWICE)
        return host->device(registrar, d);
    KeyfoldText schema = KEYFOLD_TEXT("board::block(Tensor x) -> int");
    KeyfoldKernel kernel = {.size = sizeof kernel, .returns = kKeyfoldReturnsInt,
                            .op = KEYFOLD_TEXT("board::block"), .key = KEYFOLD_TEXT(KEY),
                            .name = KEYFOLD_TEXT("block_bytes"), .function = block_bytes};
    if ((failed = host->define(registrar, schema)) || (failed = host->kernel(registrar, &kernel)))
        return failed;
    KeyfoldText blocks = KEYFOLD_TEXT("board::blocks(Tensor x, Tensor y) -> int");
    KeyfoldKernel of_two = kernel;
    of_two.op = (KeyfoldText)KEYFOLD_TEXT("board::blocks");
    if ((failed = host->define(registrar, blocks)) || (failed = host->kernel(registrar, &of_two)))
        return failed;
    return CASE == KERNEL_TWICE ? host->kernel(registrar, &kernel) : NULL;
}

KEYFOLD_EXPORT const KeyfoldRequirements keyfold_plugin_requirements = {
    CASE == RANGE ? 8 : sizeof(KeyfoldRequirements), CASE == TOO_NEW ? 5 : 1, 7, 0,
    CASE == FEATURE ? UINT64_C(1) << 40 : KEYFOLD_FEATURE_DEVICES,
};

KEYFOLD_EXPORT const KeyfoldDescriptor keyfold_plugin = {
    KEYFOLD_PLUGIN_MAGIC, KEYFOLD_PLUGIN_MAJOR, CASE == TOO_NEW ? 5 : 1,
    KEYFOLD_TEXT("board-in-c"), KEYFOLD_TEXT("2.1"), register_plugin,
};
