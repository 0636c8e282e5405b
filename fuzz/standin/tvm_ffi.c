/* A stand-in for TVM FFI's library: the functions that keyfold-ffi uses, on objects of the same
 * layout. Fuzzing needs no installed package with it, and counts every reference. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FFI_STR = 65, FFI_ERROR = 67, FFI_FUNCTION = 68, FFI_TENSOR = 70, FFI_ARRAY = 71 };

typedef struct { int32_t type_index; uint32_t small_len; uint64_t payload; } Any;
typedef struct { const char *data; size_t size; } Bytes;
typedef struct {
    uint64_t references;
    int32_t type_index;
    uint32_t padding;
    void (*deleter)(void *, int);
} Header;
typedef int (*SafeCall)(void *, const Any *, int32_t, Any *);

static long live;

/* How many objects of this library there are. */
long standin_live(void) { return __atomic_load_n(&live, __ATOMIC_SEQ_CST); }

static void *make(size_t size, int32_t type_index, void (*deleter)(void *, int)) {
    Header *object = calloc(1, size);
    if (!object) abort();
    object->references = 1;
    object->type_index = type_index;
    object->deleter = deleter;
    __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
    return object;
}

static void drop(void *object) {
    __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
    free(object);
}

int TVMFFIGetVersion(uint32_t *version) {
    version[0] = 0, version[1] = 1, version[2] = 0;
    return 0;
}

int TVMFFIObjectIncRef(void *object) {
    __atomic_add_fetch(&((Header *)object)->references, 1, __ATOMIC_SEQ_CST);
    return 0;
}

int TVMFFIObjectDecRef(void *object) {
    Header *header = object;
    uint64_t left = __atomic_sub_fetch(&header->references, 1, __ATOMIC_SEQ_CST);
    if (left == UINT64_MAX) abort(); /* released more often than retained */
    if (left == 0) header->deleter(object, 3);
    return 0;
}

/* Functions: what was registered, called with its own context. */
typedef struct {
    Header header;
    SafeCall call;
    void *self;
    SafeCall own;
    void (*own_deleter)(void *);
} Function;

static int trampoline(void *handle, const Any *args, int32_t count, Any *result) {
    Function *function = handle;
    return function->own(function->self, args, count, result);
}

static void delete_function(void *object, int flags) {
    (void)flags;
    Function *function = object;
    if (function->own_deleter) function->own_deleter(function->self);
    drop(object);
}

int TVMFFIFunctionCreate(void *self, SafeCall call, void (*deleter)(void *), void **out) {
    Function *function = make(sizeof(Function), FFI_FUNCTION, delete_function);
    function->call = trampoline;
    function->self = self;
    function->own = call;
    function->own_deleter = deleter;
    *out = function;
    return 0;
}

/* Arrays, and the one global function that makes them. */
typedef struct {
    Header header;
    Any *data;
    int64_t size, capacity;
    Any items[];
} Array;

static void delete_array(void *object, int flags) {
    (void)flags;
    Array *array = object;
    for (int64_t i = 0; i < array->size; i++)
        if (array->items[i].type_index >= 64)
            TVMFFIObjectDecRef((void *)(uintptr_t)array->items[i].payload);
    drop(object);
}

static int make_array(void *self, const Any *args, int32_t count, Any *result) {
    (void)self;
    Array *array = make(sizeof(Array) + sizeof(Any) * (size_t)count, FFI_ARRAY, delete_array);
    array->data = array->items;
    array->size = array->capacity = count;
    for (int32_t i = 0; i < count; i++) {
        array->items[i] = args[i];
        if (args[i].type_index >= 64) TVMFFIObjectIncRef((void *)(uintptr_t)args[i].payload);
    }
    result->type_index = FFI_ARRAY;
    result->small_len = 0;
    result->payload = (uintptr_t)array;
    return 0;
}

int TVMFFIFunctionGetGlobal(const Bytes *name, void **out) {
    *out = NULL;
    if (name->size == 9 && memcmp(name->data, "ffi.Array", 9) == 0)
        return TVMFFIFunctionCreate(NULL, make_array, NULL, out);
    return 0;
}

int TVMFFIFunctionSetGlobal(const Bytes *name, void *function, int replace) {
    (void)name, (void)function, (void)replace;
    return 0;
}

/* Texts. */
typedef struct { Header header; Bytes bytes; char text[]; } Str;

static void delete_plain(void *object, int flags) {
    (void)flags;
    drop(object);
}

int TVMFFIStringFromByteArray(const Bytes *bytes, Any *out) {
    memset(out, 0, sizeof *out);
    if (bytes->size <= 7) {
        out->type_index = 11;
        out->small_len = (uint32_t)bytes->size;
        if (bytes->size) memcpy(&out->payload, bytes->data, bytes->size);
        return 0;
    }
    Str *str = make(sizeof(Str) + bytes->size + 1, FFI_STR, delete_plain);
    memcpy(str->text, bytes->data, bytes->size);
    str->bytes.data = str->text;
    str->bytes.size = bytes->size;
    out->type_index = FFI_STR;
    out->payload = (uintptr_t)str;
    return 0;
}

/* The thread's raised error. */
typedef struct { Header header; Bytes kind, message, backtrace; char text[]; } Raised;

static __thread Raised *raised;

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) {
    size_t kind_size = strlen(kind), message_size = strlen(message);
    if (raised) TVMFFIObjectDecRef(raised);
    raised = make(sizeof(Raised) + kind_size + message_size, FFI_ERROR, delete_plain);
    memcpy(raised->text, kind, kind_size);
    memcpy(raised->text + kind_size, message, message_size);
    raised->kind.data = raised->text;
    raised->kind.size = kind_size;
    raised->message.data = raised->text + kind_size;
    raised->message.size = message_size;
}

void TVMFFIErrorMoveFromRaised(void **out) {
    *out = raised;
    raised = NULL;
}

/* Tensors that keep a DLPack struct. */
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct Managed {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct Managed *);
    uint64_t flags;
    DLTensor tensor;
} Managed;

typedef struct { Header header; DLTensor tensor; Managed *managed; } Tensor;

static void delete_tensor(void *object, int flags) {
    (void)flags;
    Managed *managed = ((Tensor *)object)->managed;
    if (managed->deleter) managed->deleter(managed);
    drop(object);
}

int TVMFFITensorFromDLPackVersioned(Managed *managed, int32_t align, int32_t contiguous, void **out) {
    (void)align, (void)contiguous;
    Tensor *tensor = make(sizeof(Tensor), FFI_TENSOR, delete_tensor);
    tensor->tensor = managed->tensor;
    tensor->managed = managed;
    *out = tensor;
    return 0;
}
