// Kernels of tests/native/tvm_ffi, written with TVM FFI's own headers.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <cstdlib>

namespace ffi = tvm::ffi;

namespace {

const double *Data(ffi::TensorView x) { return static_cast<const double *>(x.data_ptr()); }

void Scale(ffi::TensorView x, double k, ffi::TensorView out) {
    if (x.dtype().code != kDLFloat || x.dtype().bits != 64) {
        TVM_FFI_THROW(TypeError) << "scale wants float64";
    }
    if (k == 0) TVM_FFI_THROW(ValueError) << "k is 0";
    for (int64_t i = 0; i < x.size(0); ++i) {
        static_cast<double *>(out.data_ptr())[i] = k * Data(x)[i * x.stride(0)];
    }
}

// A new tensor object of TVM FFI's own memory.
ffi::Tensor Doubled(ffi::Tensor x) {
    ffi::Tensor out =
        ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(), x.device());
    for (int64_t i = 0; i < x.size(0); ++i) {
        static_cast<double *>(out.data_ptr())[i] = 2 * Data(x)[i * x.stride(0)];
    }
    return out;
}

ffi::Array<ffi::Any> Pair(ffi::Tensor x) { return {Doubled(x), x}; }

double Total(ffi::Array<ffi::Tensor> xs) {
    double sum = 0;
    for (const ffi::Tensor &x : xs) {
        for (int64_t i = 0; i < x.size(0); ++i) sum += Data(x)[i];
    }
    return sum;
}

ffi::Array<ffi::Tensor> Doubles(ffi::Array<ffi::Tensor> xs) {
    ffi::Array<ffi::Tensor> out;
    for (const ffi::Tensor &x : xs) out.push_back(Doubled(x));
    return out;
}

ffi::String Joined(ffi::Array<ffi::String> words, ffi::String by) {
    std::string text;
    for (const ffi::String &word : words) text += std::string(word) + std::string(by);
    return text;
}

int64_t Sum(ffi::Array<int64_t> numbers, ffi::Optional<int64_t> more) {
    int64_t sum = more.has_value() ? *more : 0;
    for (int64_t number : numbers) sum += number;
    return sum;
}

// Keeps the tensor beyond the call.
ffi::Tensor kept;
void Keep(ffi::Tensor x) { kept = x; }
double Kept() { return kept.defined() ? Data(kept)[0] : -1; }
void Forget() { kept = ffi::Tensor(); }

void Raise(ffi::TensorView x, ffi::String kind, ffi::String message) {
    throw ffi::Error(kind, message, "");
}

struct Malloc {
    void AllocData(DLTensor *tensor) { tensor->data = std::malloc(ffi::GetDataSize(*tensor)); }
    void FreeData(DLTensor *tensor) { std::free(tensor->data); }
};

// A dtype that keyfold lacks.
ffi::Tensor Odd(ffi::Tensor x) {
    DLDataType vectors = x.dtype();
    vectors.lanes = 4;
    const int64_t size = 1;
    return ffi::Tensor::FromNDAlloc(Malloc(), ffi::Shape({size}), vectors, x.device());
}

// keyfold's operators, found by their global names.
ffi::Any CallGlobal(ffi::String name, ffi::TensorView x) {
    return ffi::Function::GetGlobalRequired(name)(x);
}

ffi::String ErrorOfGlobal(ffi::String name, ffi::Tensor x) {
    try {
        ffi::Function::GetGlobalRequired(name)(x);
    } catch (const ffi::Error &error) {
        return error.kind() + ": " + error.message();
    }
    return "nothing";
}

// The DLTensor* of a tensor object: lent for the call alone.
ffi::Any CallLent(ffi::Function function, ffi::Tensor x) {
    return function(const_cast<DLTensor *>(x.GetDLTensorPtr()));
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, Scale);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(doubled, Doubled);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(pair, Pair);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(total, Total);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(doubles, Doubles);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(joined, Joined);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(sum, Sum);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(keep, Keep);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(kept, Kept);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(forget, Forget);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(raise, Raise);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(odd, Odd);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(call_global, CallGlobal);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(error_of_global, ErrorOfGlobal);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(call_lent, CallLent);
