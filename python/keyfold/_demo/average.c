/* One step of a running average, in place: mean[i] += rate * (value[i] - mean[i]).
 *
 *   demo::average_(Tensor(a!) mean, Tensor value, float rate) -> ()
 *
 * This file needs no header and no library. A kernel gets its arguments as 16-byte tagged values;
 * a tensor among them is a pointer to DLPack's DLTensor. docs/native-kernels.md has all of it.
 */
#include <stddef.h>
#include <stdint.h>

typedef struct {
    void *data;
    struct { int32_t type, id; } device;
    int32_t ndim;
    struct { uint8_t code, bits; uint16_t lanes; } dtype;
    int64_t *shape, *strides; /* strides in elements; NULL means row-major */
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    int32_t kind; /* 3: a float, 7: a tensor */
    uint32_t zero;
    union { int64_t integer; double number; void *pointer; } as;
} Value;

enum { FLOAT = 3, TENSOR = 7, FAILED = -1 };

/* How many elements a row-major float32 tensor in the CPU's memory has; -1 for any other tensor. */
static int64_t dense_floats(const Value *value) {
    const DLTensor *t = value->as.pointer;
    int64_t count = 1;
    if (value->kind != TENSOR || t->device.type != 1 || t->dtype.code != 2 || t->dtype.bits != 32) {
        return -1;
    }
    for (int32_t axis = t->ndim - 1; axis >= 0; --axis) {
        if (t->strides != NULL && t->shape[axis] > 1 && t->strides[axis] != count) {
            return -1;
        }
        count *= t->shape[axis];
    }
    return count;
}

static float *elements(const Value *value) {
    const DLTensor *t = value->as.pointer;
    return (float *)((char *)t->data + t->byte_offset);
}

__attribute__((visibility("default")))
int average(void *handle, const Value *args, int32_t num_args, Value *result) {
    (void)handle;
    (void)result; /* stays None: the schema returns nothing */
    if (num_args != 3 || args[2].kind != FLOAT) {
        return FAILED;
    }
    int64_t count = dense_floats(&args[0]);
    if (count < 0 || dense_floats(&args[1]) != count) {
        return FAILED;
    }
    float *mean = elements(&args[0]);
    const float *value = elements(&args[1]);
    const float rate = (float)args[2].as.number;
    for (int64_t i = 0; i < count; ++i) {
        mean[i] += rate * (value[i] - mean[i]);
    }
    return 0;
}
