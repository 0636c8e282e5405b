// Kernels written with TVM FFI's own C++ headers, as FlashInfer and others write theirs.
//
// examples/tvm_ffi_kernel.py compiles this with the flags that the package tells, registers
// `softplus` at keyfold's CPU key and exports a keyfold operator that `smooth_norm` calls.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>

namespace ffi = tvm::ffi;

namespace {

void CheckVector(ffi::TensorView x, const char *name) {
    const DLDataType dtype = x.dtype();
    if (dtype.code != kDLFloat || dtype.bits != 64 || x.ndim() != 1) {
        TVM_FFI_THROW(TypeError) << name << " must be a float64 vector";
    }
}

// Destination style: keyfold allocates `out` as the operator's Meta kernel says.
void Softplus(ffi::TensorView x, double beta, ffi::TensorView out) {
    CheckVector(x, "x");
    CheckVector(out, "out");
    if (beta <= 0) TVM_FFI_THROW(ValueError) << "beta must be above 0, not " << beta;
    const double *from = static_cast<const double *>(x.data_ptr());
    double *to = static_cast<double *>(out.data_ptr());
    for (int64_t i = 0; i < x.size(0); ++i) {
        to[i * out.stride(0)] = std::log1p(std::exp(beta * from[i * x.stride(0)])) / beta;
    }
}

// The other direction: a keyfold operator, found by its global name.
double SmoothNorm(ffi::Tensor x) {
    const ffi::Function softplus = ffi::Function::GetGlobalRequired("keyfold.native_demo.softplus");
    const ffi::Tensor smooth = softplus(x).cast<ffi::Tensor>();
    CheckVector(smooth, "softplus(x)");
    const double *data = static_cast<const double *>(smooth.data_ptr());
    double sum = 0;
    for (int64_t i = 0; i < smooth.size(0); ++i) sum += data[i] * data[i];
    return std::sqrt(sum);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(softplus, Softplus);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(smooth_norm, SmoothNorm);
