/* Three C kernels for keyfold: one that fills an output, one that returns a number, one that fails.
 *
 *   include=$(python -c "import keyfold; print(keyfold.get_include())")
 *   cc -shared -fPIC -O2 -Wall -Wextra -Werror -I"$include" -o libscale.so scale.c
 *
 * README.md beside this file registers them from Python. Each checks what it is given before it
 * touches memory: keyfold promises the kinds that the schema names, not a dtype or a shape.
 */
#include "keyfold_abi.h"

/* keyfold's own limit on dimensions. */
#define MAX_DIMS 64

static const DLTensor *tensor_argument(const TVMFFIAny *arg) {
    return arg->type_index == kTVMFFIDLTensorPtr ? (const DLTensor *)arg->v_ptr : NULL;
}

/* A float argument; a whole number is taken too. Returns 0 if it is neither. */
static int float_argument(const TVMFFIAny *arg, double *value) {
    if (arg->type_index == kTVMFFIFloat) {
        *value = arg->v_float64;
        return 1;
    }
    if (arg->type_index == kTVMFFIInt) {
        *value = (double)arg->v_int64;
        return 1;
    }
    return 0;
}

static int is_float(const DLTensor *t, int bits) {
    return t->dtype.code == kDLFloat && t->dtype.bits == bits && t->dtype.lanes == 1;
}

static int usable(const DLTensor *t) {
    return t != NULL && t->device.device_type == kDLCPU && t->ndim >= 0 && t->ndim <= MAX_DIMS;
}

static char *first_element(const DLTensor *t) { return (char *)t->data + t->byte_offset; }

/* The steps of each axis in bytes; row-major ones where the tensor has none of its own. */
static void byte_strides(const DLTensor *t, int64_t steps[MAX_DIMS]) {
    int64_t item = t->dtype.bits / 8;
    int64_t row_major = item;
    for (int32_t axis = t->ndim - 1; axis >= 0; --axis) {
        steps[axis] = t->strides != NULL ? t->strides[axis] * item : row_major;
        row_major *= t->shape[axis];
    }
}

static int64_t element_count(const DLTensor *t) {
    int64_t count = 1;
    for (int32_t axis = 0; axis < t->ndim; ++axis) {
        count *= t->shape[axis];
    }
    return count;
}

/* Moves index to the next element in row-major order, and both offsets with it. */
static void advance(const DLTensor *t, int64_t index[MAX_DIMS], const int64_t *a_steps,
                    const int64_t *b_steps, int64_t *a, int64_t *b) {
    for (int32_t axis = t->ndim - 1; axis >= 0; --axis) {
        *a += a_steps[axis];
        *b += b_steps[axis];
        if (++index[axis] < t->shape[axis]) {
            return;
        }
        *a -= a_steps[axis] * t->shape[axis];
        *b -= b_steps[axis] * t->shape[axis];
        index[axis] = 0;
    }
}

static int same_shape(const DLTensor *a, const DLTensor *b) {
    if (a->ndim != b->ndim) {
        return 0;
    }
    for (int32_t axis = 0; axis < a->ndim; ++axis) {
        if (a->shape[axis] != b->shape[axis]) {
            return 0;
        }
    }
    return 1;
}

/* scale(Tensor x, float k) -> Tensor, in destination style: the output is the last argument.
 * out[i] = k * x[i], f32 and f64, any strides. Returns -1 for anything else. */
KEYFOLD_EXPORT int keyfold_example_scale(void *handle, const TVMFFIAny *args, int32_t num_args,
                                         TVMFFIAny *result) {
    double k;
    int64_t x_steps[MAX_DIMS], out_steps[MAX_DIMS], index[MAX_DIMS] = {0};
    int64_t x_at = 0, out_at = 0;
    (void)handle;
    (void)result; /* stays None: the output was passed in */

    if (num_args != 3 || !float_argument(&args[1], &k)) {
        return -1;
    }
    const DLTensor *x = tensor_argument(&args[0]);
    const DLTensor *out = tensor_argument(&args[2]);
    if (!usable(x) || !usable(out) || !same_shape(x, out)) {
        return -1;
    }
    int wide = is_float(x, 64) && is_float(out, 64);
    if (!wide && !(is_float(x, 32) && is_float(out, 32))) {
        return -1;
    }

    byte_strides(x, x_steps);
    byte_strides(out, out_steps);
    const char *from = first_element(x);
    char *to = first_element(out);
    for (int64_t left = element_count(x); left > 0; --left) {
        if (wide) {
            *(double *)(to + out_at) = k * *(const double *)(from + x_at);
        } else {
            *(float *)(to + out_at) = (float)k * *(const float *)(from + x_at);
        }
        advance(x, index, x_steps, out_steps, &x_at, &out_at);
    }
    return 0;
}

/* total(Tensor x) -> float: the sum of an f32 or f64 tensor, added up in double precision.
 * A number is returned through result. */
KEYFOLD_EXPORT int keyfold_example_sum(void *handle, const TVMFFIAny *args, int32_t num_args,
                                       TVMFFIAny *result) {
    int64_t steps[MAX_DIMS], index[MAX_DIMS] = {0};
    int64_t at = 0, unused = 0;
    double sum = 0.0;
    (void)handle;

    const DLTensor *x = num_args == 1 ? tensor_argument(&args[0]) : NULL;
    if (!usable(x) || !(is_float(x, 32) || is_float(x, 64))) {
        return -1;
    }
    byte_strides(x, steps);
    const char *from = first_element(x);
    for (int64_t left = element_count(x); left > 0; --left) {
        sum += is_float(x, 64) ? *(const double *)(from + at) : *(const float *)(from + at);
        advance(x, index, steps, steps, &at, &unused);
    }
    result->type_index = kTVMFFIFloat;
    result->zero_padding = 0;
    result->v_float64 = sum;
    return 0;
}

/* Fails whatever it is given: what a kernel does that can't go on. Without TVM FFI's library there
 * is no place for a message, so the caller learns the operator and the code. */
KEYFOLD_EXPORT int keyfold_example_fail(void *handle, const TVMFFIAny *args, int32_t num_args,
                                        TVMFFIAny *result) {
    (void)handle;
    (void)args;
    (void)num_args;
    (void)result;
    return -1;
}
