/* What a C kernel for keyfold needs to know, and nothing else.
 *
 * The calling convention is TVM FFI's stable one; tensors travel as DLPack's DLTensor. Both layouts
 * are public and frozen, and both are declared here afresh, so that a kernel needs no header and no
 * library but this file. <dlpack/dlpack.h> and <tvm/ffi/c_api.h> declare the same names: include them
 * before this file, which then leaves those out.
 *
 * docs/native-kernels.md explains the rules. Licence: Apache-2.0 OR MIT, as the rest of keyfold.
 */
#ifndef KEYFOLD_ABI_H
#define KEYFOLD_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- DLPack ---------------------------------------------------------------------------------- */

#ifndef DLPACK_DLPACK_H_
/* DLDevice.device_type: the two that a kernel meets first. */
enum { kDLCPU = 1, kDLCUDA = 2 };

/* DLDataType.code. The width in bits stands beside it: f32 is {kDLFloat, 32, 1}. */
enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLComplex = 5, kDLBool = 6 };

typedef struct DLDevice {
    int32_t device_type;
    int32_t device_id;
} DLDevice;

typedef struct DLDataType {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes; /* 1, but for vector types, which keyfold never passes */
} DLDataType;

typedef struct DLTensor {
    void *data;           /* element [0, ..., 0] is at (char *)data + byte_offset */
    DLDevice device;
    int32_t ndim;         /* 0 for a scalar tensor: shape and strides may then be NULL */
    DLDataType dtype;
    int64_t *shape;       /* ndim extents */
    int64_t *strides;     /* ndim steps in elements, 0 and negative ones too; NULL: row-major */
    uint64_t byte_offset;
} DLTensor;
#endif /* DLPACK_DLPACK_H_ */

/* ---- TVM FFI: the tagged 16-byte value ------------------------------------------------------- */

#ifndef TVM_FFI_C_API_H_
/* TVMFFIAny.type_index: the ones that hold their value in place, without a reference count. */
enum {
    kTVMFFINone = 0,
    kTVMFFIInt = 1,         /* v_int64 */
    kTVMFFIBool = 2,        /* v_int64, 0 or 1 */
    kTVMFFIFloat = 3,       /* v_float64 */
    kTVMFFIOpaquePtr = 4,   /* v_ptr */
    kTVMFFIDataType = 5,    /* v_dtype */
    kTVMFFIDevice = 6,      /* v_device */
    kTVMFFIDLTensorPtr = 7, /* v_ptr, a DLTensor * */
    kTVMFFIRawStr = 8       /* v_c_str, UTF-8 that ends with a zero byte; in arguments only */
};

typedef struct TVMFFIAny {
    int32_t type_index;
    uint32_t zero_padding; /* 0 for each of the kinds above */
    union {
        int64_t v_int64;
        double v_float64;
        void *v_ptr;
        const char *v_c_str;
        DLDataType v_dtype;
        DLDevice v_device;
    };
} TVMFFIAny;

/* A kernel: 0 for success, anything else for failure. */
typedef int (*TVMFFISafeCallType)(void *handle, const TVMFFIAny *args, int32_t num_args,
                                  TVMFFIAny *result);
#endif /* TVM_FFI_C_API_H_ */

/* The layout is the contract: a compiler that lays these out otherwise can't build a kernel. */
#if defined(__cplusplus)
#define KEYFOLD_ASSERT_LAYOUT(condition, what) static_assert(condition, what)
#else
#define KEYFOLD_ASSERT_LAYOUT(condition, what) _Static_assert(condition, what)
#endif

KEYFOLD_ASSERT_LAYOUT(sizeof(TVMFFIAny) == 16, "TVMFFIAny is 16 bytes");
KEYFOLD_ASSERT_LAYOUT(offsetof(TVMFFIAny, v_int64) == 8, "the payload is the last 8 bytes");
KEYFOLD_ASSERT_LAYOUT(sizeof(DLDataType) == 4, "DLDataType is 4 bytes");
KEYFOLD_ASSERT_LAYOUT(sizeof(DLDevice) == 8, "DLDevice is 8 bytes");
#if UINTPTR_MAX == UINT64_MAX
KEYFOLD_ASSERT_LAYOUT(sizeof(DLTensor) == 48, "DLTensor is 48 bytes where pointers are 8");
KEYFOLD_ASSERT_LAYOUT(offsetof(DLTensor, shape) == 24, "shape is at byte 24");
KEYFOLD_ASSERT_LAYOUT(offsetof(DLTensor, byte_offset) == 40, "byte_offset is at byte 40");
#endif

/* Marks a kernel as visible in the shared library, also under -fvisibility=hidden. */
#if defined(_WIN32)
#define KEYFOLD_EXPORT __declspec(dllexport)
#else
#define KEYFOLD_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
}
#endif

#endif /* KEYFOLD_ABI_H */
