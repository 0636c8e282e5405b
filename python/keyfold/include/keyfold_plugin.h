/* What a plugin in C needs to know: the binary interface between keyfold and libraries that
 * keyfold.load_plugin() loads, version 1.2. The reference is crates/plugin/src/abi, whose layouts the
 * tests compare with this file; docs/plugins.md explains it. Plugins in Rust use the crate
 * keyfold-plugin instead.
 *
 * A plugin exports `keyfold_plugin`, a KeyfoldDescriptor, and, if it works with several versions or
 * needs a feature, `keyfold_plugin_requirements`. The host compares versions before it runs any code of
 * the plugin, then calls `register_plugin` with its table. Structs that begin with their size may have
 * more fields in later versions: read none beyond the size that the other side gives.
 *
 * Functions that return KeyfoldError * return NULL for success. Text is UTF-8 without a terminator,
 * borrowed for the call that passes it.
 *
 * Licence: Apache-2.0 OR MIT, as the rest of keyfold.
 */
#ifndef KEYFOLD_PLUGIN_H
#define KEYFOLD_PLUGIN_H

#include "keyfold_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KEYFOLD_PLUGIN_MAGIC UINT64_C(0x01646c6f6679656b) /* "keyfold\1" in memory, little-endian */
#define KEYFOLD_PLUGIN_MAJOR 1
#define KEYFOLD_PLUGIN_MINOR 2

/* Bits of KeyfoldRequirements.features and KeyfoldHost.features. */
#define KEYFOLD_FEATURE_DEVICES UINT64_C(1)
#define KEYFOLD_FEATURE_CUDA_C UINT64_C(2)   /* devices with KEYFOLD_DEVICE_CUDA_C */
#define KEYFOLD_FEATURE_OPENCL_C UINT64_C(4) /* devices with KEYFOLD_DEVICE_OPENCL_C */
#define KEYFOLD_FEATURE_GROUPS UINT64_C(8)   /* KEYFOLD_GROUP_NORM and those below it; since 1.2 */

/* DLDevice.device_type of devices that plugins register: kDLExtDev. Its device_id is the type's number
 * times 256, plus the index. */
#ifndef DLPACK_DLPACK_H_
enum { kDLExtDev = 12 };
#endif

/* A list of integers, in a TVMFFIAny of type index kKeyfoldInts. */
enum { kKeyfoldInts = 48 };

typedef struct KeyfoldText {
    const char *data;
    size_t len;
} KeyfoldText;

#define KEYFOLD_TEXT(literal) {literal, sizeof(literal) - 1}

typedef struct KeyfoldInts {
    const int64_t *data;
    size_t len;
} KeyfoldInts;

/* Opaque: an error, a value, the collector of a plugin's registrations. */
typedef struct KeyfoldError KeyfoldError;
typedef struct KeyfoldValue KeyfoldValue;
typedef struct KeyfoldRegistrar KeyfoldRegistrar;

typedef struct KeyfoldHost KeyfoldHost;

/* ---- What a plugin exports ------------------------------------------------------------------- */

typedef struct KeyfoldDescriptor {
    uint64_t magic;     /* KEYFOLD_PLUGIN_MAGIC */
    uint32_t abi_major; /* KEYFOLD_PLUGIN_MAJOR */
    uint32_t abi_minor; /* the lowest minor version that the plugin works with */
    KeyfoldText name;
    KeyfoldText version;
    KeyfoldError *(*register_plugin)(const KeyfoldHost *host, KeyfoldRegistrar *registrar);
} KeyfoldDescriptor;

typedef struct KeyfoldRequirements {
    uint32_t size;
    uint32_t minor_min; /* as KeyfoldDescriptor.abi_minor */
    uint32_t minor_max; /* the minor version that the plugin was written for */
    uint32_t reserved;
    uint64_t features;  /* those without which it can't work */
} KeyfoldRequirements;

/* ---- Kernels --------------------------------------------------------------------------------- */

/* KeyfoldKernel.returns */
enum {
    kKeyfoldReturnsNothing = 0, /* it fills the outputs, or the operator returns nothing */
    kKeyfoldReturnsInt = 1,
    kKeyfoldReturnsBool = 2,
    kKeyfoldReturnsFloat = 3,
    kKeyfoldReturnsValues = 4 /* values passed to KeyfoldHost.give */
};

/* The handle that a kernel gets. */
typedef struct KeyfoldCall {
    uint32_t size;
    int32_t inputs; /* how many arguments are the schema's; the others are outputs to fill */
    const KeyfoldHost *host;
    void *data;           /* KeyfoldKernel.data */
    uint64_t keyset;      /* the key set of the call */
    uint64_t key;         /* the chosen key, as a set */
    const uint8_t *flags; /* per argument: 1 if the kernel may write to it */
    KeyfoldText op;       /* the operator's full name */
} KeyfoldCall;

typedef struct KeyfoldKernel {
    uint32_t size;
    int32_t returns;
    KeyfoldText op;  /* the operator's full name */
    KeyfoldText key; /* the dispatch key's name, such as "CPU" */
    KeyfoldText name;
    TVMFFISafeCallType function; /* called from any thread; its handle is a KeyfoldCall */
    void *data;
    void (*drop)(void *data); /* called once after the last call; may be NULL */
} KeyfoldKernel;

/* ---- Devices (1.1, KEYFOLD_FEATURE_DEVICES) -------------------------------------------------- */

/* KeyfoldDevice.flags: operations may run after their slots have returned. */
#define KEYFOLD_DEVICE_ASYNCHRONOUS 1
/* Instead of primitives, the device compiles whole expressions, from one of these languages. */
#define KEYFOLD_DEVICE_CUDA_C 2
#define KEYFOLD_DEVICE_OPENCL_C 4

/* KeyfoldDevice.groups, with KeyfoldOperation.group. */
#define KEYFOLD_GROUP_POINTWISE UINT64_C(1) /* "pointwise", KeyfoldPointwiseParams */
#define KEYFOLD_GROUP_REDUCE UINT64_C(2)    /* "reduce", KeyfoldReduceParams */
#define KEYFOLD_GROUP_ROWS UINT64_C(4)      /* "rows", KeyfoldRowParams */
#define KEYFOLD_GROUP_LINALG UINT64_C(8)    /* "linalg", no parameters */
#define KEYFOLD_GROUP_INDEX UINT64_C(16)    /* "index", KeyfoldIndexParams; none for "positions" */
#define KEYFOLD_GROUP_RANDOM UINT64_C(32)   /* "random", KeyfoldRandomParams */
#define KEYFOLD_GROUP_SCAN UINT64_C(64)     /* "scan", KeyfoldScanParams */
/* From here on 1.2, KEYFOLD_FEATURE_GROUPS: their parameters are KeyfoldFields, and their operations may
 * have several outputs. */
#define KEYFOLD_GROUP_NORM UINT64_C(128)            /* "norm" */
#define KEYFOLD_GROUP_LINEAR UINT64_C(256)          /* "linear" */
#define KEYFOLD_GROUP_CONVOLUTION UINT64_C(512)     /* "convolution" */
#define KEYFOLD_GROUP_POOL UINT64_C(1024)           /* "pool" */
#define KEYFOLD_GROUP_ATTENTION UINT64_C(2048)      /* "attention" */
#define KEYFOLD_GROUP_RECURRENT UINT64_C(4096)      /* "recurrent" */
#define KEYFOLD_GROUP_OPTIM UINT64_C(8192)          /* "optim" */
#define KEYFOLD_GROUP_DECOMPOSITION UINT64_C(16384) /* "decomposition" */
#define KEYFOLD_GROUP_DROPOUT UINT64_C(32768)       /* "dropout" */

/* The content argument of KeyfoldDevice.allocate. */
enum { kKeyfoldContentArbitrary = 0, kKeyfoldContentZeros = 1 };

/* KeyfoldDevice.set_limit: the device's own default. */
#define KEYFOLD_LIMIT_DEFAULT UINT64_MAX

typedef struct KeyfoldOperation {
    uint32_t size;
    uint32_t inputs;
    KeyfoldText group;
    KeyfoldText name;
    const DLDataType *input_dtypes;
    DLDataType output; /* of the first output */
    uint32_t reserved;
    /* Since 1.2; operations of earlier hosts have one output. */
    const DLDataType *output_dtypes;
    uint32_t outputs;
    uint32_t reserved2;
} KeyfoldOperation;

typedef struct KeyfoldExecution {
    uint32_t size;
    uint32_t inputs;
    uint32_t outputs; /* 1, but for "positions" and the groups of 1.2 */
    uint32_t stream;
    KeyfoldText group;
    KeyfoldText name;
    KeyfoldText op;          /* the operator that is called; empty for devices that aren't asynchronous */
    const void *params;      /* the group's struct, or NULL */
    const DLTensor *tensors; /* the inputs, then the outputs */
} KeyfoldExecution;

typedef struct KeyfoldPointwiseParams {
    uint32_t size;
    uint32_t fault; /* of "check", for KeyfoldHost.fault */
} KeyfoldPointwiseParams;

typedef struct KeyfoldReduceParams {
    uint32_t size;
    uint32_t keepdim;
    uint64_t dims; /* bit d: dimension d is reduced */
} KeyfoldReduceParams;

typedef struct KeyfoldRowParams {
    uint32_t size;
    uint32_t axis;
} KeyfoldRowParams;

typedef struct KeyfoldScanParams {
    uint32_t size;
    uint32_t axis;
} KeyfoldScanParams;

typedef struct KeyfoldIndexParams {
    uint32_t size;
    uint32_t at;
    uint64_t dims; /* bit d: dimension d has positions */
} KeyfoldIndexParams;

typedef struct KeyfoldRandomParams {
    uint32_t size;
    uint32_t reserved;
    uint64_t seed;
    uint64_t offset; /* the first block of the Philox4x32-10 stream */
} KeyfoldRandomParams;

/* KeyfoldField.kind */
enum {
    kKeyfoldFieldInt = 0,   /* also a flag */
    kKeyfoldFieldBits = 1,  /* 64 bits without a sign, in `integer` */
    kKeyfoldFieldFloat = 2,
    kKeyfoldFieldInts = 3,
    kKeyfoldFieldText = 4
};

/* A parameter of the groups of 1.2, under its name. */
typedef struct KeyfoldField {
    KeyfoldText name;
    uint32_t kind;
    uint32_t count; /* of `integers` */
    int64_t integer;
    double number;
    const int64_t *integers;
    KeyfoldText text;
} KeyfoldField;

typedef struct KeyfoldFields {
    uint32_t size;
    uint32_t count;
    const KeyfoldField *fields; /* in any order; ignore those that you don't know */
} KeyfoldFields;

typedef struct KeyfoldStatistics {
    uint32_t size;
    uint32_t reserved;
    uint64_t in_use;
    uint64_t cached;
    uint64_t peak;
    uint64_t allocations;
    uint64_t limit;
} KeyfoldStatistics;

/* The kernel of an expression. */
typedef struct KeyfoldSource {
    uint32_t size;
    uint32_t parameters;
    uint32_t device; /* the one that it is compiled for */
    uint32_t reserved;
    KeyfoldText name;         /* has C linkage */
    KeyfoldText text;         /* self-contained */
    const KeyfoldText *types; /* of the parameters, in order */
} KeyfoldSource;

/* KeyfoldArgument.kind */
enum { kKeyfoldArgumentBytes = 0, kKeyfoldArgumentBuffer = 1 };

typedef struct KeyfoldArgument {
    uint32_t kind;
    uint32_t size;     /* of the bytes; 0 for a buffer */
    const void *value; /* the bytes, or the buffer's handle */
    uint64_t offset;   /* of the pointer from the buffer's start, in bytes */
} KeyfoldArgument;

typedef struct KeyfoldLaunch {
    uint32_t size;
    uint32_t arguments;
    uint32_t device;
    uint32_t stream;
    void *program;
    KeyfoldText op;
    const KeyfoldArgument *values;
    uint64_t elements; /* any grid computes all of them */
} KeyfoldLaunch;

/* A device type: its functions ("slots") get `data` first. They are called from any thread, several at a
 * time. DLTensor.data is a handle of `allocate`, byte_offset the distance of element zero from the
 * buffer's start; strides are never NULL. The elements of memory slots are unsigned integers of the
 * element's size. NULL is allowed where it says so. */
typedef struct KeyfoldDevice {
    uint32_t size;
    uint32_t flags;
    KeyfoldText name; /* the type of device, such as "npu" */
    void *data;
    void (*drop)(void *data); /* called once after the last slot; may be NULL */
    uint32_t device_count;    /* 1 to 256 */
    uint32_t stream_count;    /* of each device, at least 1 */
    uint64_t groups;

    KeyfoldError *(*allocate)(void *data, uint32_t device, uint64_t bytes, uint32_t content,
                              void **handle);
    /* Queued operations that use the memory still run. */
    void (*release)(void *data, void *handle);
    /* The target is contiguous; `bytes` aren't used after the return. */
    KeyfoldError *(*upload)(void *data, const void *bytes, const DLTensor *target, uint32_t stream);
    /* May be NULL: then uploads aren't pinned. */
    KeyfoldError *(*upload_pinned)(void *data, const void *bytes, const DLTensor *target,
                                   uint32_t stream);
    /* The source is contiguous. Waits for the stream's operations, and returns their errors. */
    KeyfoldError *(*download)(void *data, const DLTensor *source, void *bytes, uint32_t stream);
    /* Equal shapes and element sizes, no shared bytes; the stream is the target's device's. */
    KeyfoldError *(*copy)(void *data, const DLTensor *source, const DLTensor *target,
                          uint32_t stream);
    KeyfoldError *(*fill)(void *data, const DLTensor *target, const void *element, uint32_t stream);
    KeyfoldError *(*synchronize)(void *data, uint32_t device);

    /* All five or none; none only for a device that isn't asynchronous and has one stream. */
    KeyfoldError *(*record)(void *data, uint32_t device, uint32_t stream, void **event);
    void (*event_release)(void *data, void *event);
    KeyfoldError *(*wait)(void *data, uint32_t device, uint32_t stream, void *event);
    KeyfoldError *(*is_done)(void *data, void *event, uint32_t *done);
    KeyfoldError *(*elapsed)(void *data, void *start, void *end, int64_t *nanoseconds);

    /* May be NULL: the host's counts. It is given them, and changes what it knows better. */
    KeyfoldError *(*statistics)(void *data, uint32_t device, KeyfoldStatistics *statistics);
    /* May be NULL: the device keeps no free memory. */
    KeyfoldError *(*set_limit)(void *data, uint32_t device, uint64_t limit);

    /* Both are needed if `groups` isn't 0. `support` returns NULL if `execute` runs the operation, else
     * an error with the reason; operations that it doesn't know must be refused. */
    KeyfoldError *(*support)(void *data, const KeyfoldOperation *operation);
    KeyfoldError *(*execute)(void *data, const KeyfoldExecution *call);
    /* May be NULL if `support` refuses "positions". Waits for the stream's operations. */
    KeyfoldError *(*count_true)(void *data, const DLTensor *mask, uint32_t stream, uint64_t *count);

    /* All three are needed with a language in `flags`. Before, `support` is asked for "expression" of
     * the group "pointwise", with all dtypes in which elements are read or computed as inputs. */
    KeyfoldError *(*compile)(void *data, const KeyfoldSource *source, void **program);
    void (*program_release)(void *data, void *program);
    KeyfoldError *(*launch)(void *data, const KeyfoldLaunch *launch);
} KeyfoldDevice;

/* ---- The host's functions -------------------------------------------------------------------- */

struct KeyfoldHost {
    uint32_t size;
    uint32_t abi_major;
    uint32_t abi_minor;
    uint32_t reserved;

    KeyfoldError *(*define)(KeyfoldRegistrar *registrar, KeyfoldText schema);
    KeyfoldError *(*kernel)(KeyfoldRegistrar *registrar, const KeyfoldKernel *kernel);
    KeyfoldError *(*fallthrough)(KeyfoldRegistrar *registrar, KeyfoldText op, KeyfoldText key);

    KeyfoldError *(*call)(const KeyfoldCall *call, KeyfoldText op, const TVMFFIAny *args,
                          int32_t num_args, KeyfoldValue **result);
    KeyfoldError *(*redispatch)(const KeyfoldCall *call, KeyfoldText op, uint64_t keyset,
                                const TVMFFIAny *args, int32_t num_args, KeyfoldValue **result);
    KeyfoldError *(*empty)(const int64_t *shape, int32_t ndim, DLDataType dtype, DLDevice device,
                           KeyfoldValue **result);
    KeyfoldError *(*keys)(KeyfoldText name, uint64_t *bits);
    void (*give)(const KeyfoldCall *call, KeyfoldValue *value); /* takes the value */
    void (*fail)(const KeyfoldCall *call, KeyfoldError *error); /* takes the error */

    TVMFFIAny (*value_get)(const KeyfoldValue *value);
    int64_t (*value_len)(const KeyfoldValue *value);
    KeyfoldValue *(*value_item)(const KeyfoldValue *value, int64_t at);
    void (*value_release)(KeyfoldValue *value);

    /* Kinds: "Value", "Memory", "Device", "NotSupported", "KernelFailed" and others. */
    KeyfoldError *(*error_new)(KeyfoldText kind, KeyfoldText message);
    KeyfoldText (*error_kind)(const KeyfoldError *error);
    KeyfoldText (*error_message)(const KeyfoldError *error);
    void (*error_release)(KeyfoldError *error);

    /* From here on 1.1: only if abi_minor is 1 or more. */
    uint64_t features;
    KeyfoldError *(*device)(KeyfoldRegistrar *registrar, const KeyfoldDevice *device);
    /* A false element of the primitive "check". The operator may be empty: it begins late errors. */
    KeyfoldError *(*fault)(uint32_t code, KeyfoldText op);
    KeyfoldError *(*late)(KeyfoldError *error); /* marks it as an earlier call's; returns it */
    uint32_t (*stream)(DLDevice device);        /* the thread's current stream */
};

#ifdef __cplusplus
}
#endif

#endif /* KEYFOLD_PLUGIN_H */
