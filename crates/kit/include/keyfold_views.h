// keyfold's views for CUDA C and C++: the structs of keyfold_kit::view, with the same layout.
//
// Needs no other header, so NVRTC compiles it as it is. T is const for reading (`const float`) and
// plain for writing. A view is passed by value as a kernel's argument:
//
//     extern "C" __global__ void scale(keyfold::RankedStrided<const float, 4> x,
//                                      keyfold::FlatContiguous<const float> factors,
//                                      keyfold::RankedStrided<float, 4> out) { ... }
//
// Indices aren't checked here: the view was checked when it was made.
#ifndef KEYFOLD_VIEWS_H
#define KEYFOLD_VIEWS_H

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define KEYFOLD_INLINE __host__ __device__ __forceinline__
#else
#define KEYFOLD_INLINE inline
#endif

namespace keyfold {

typedef unsigned long long Size;
typedef long long Stride;

// The most dimensions of a strided flat view.
constexpr int FLAT_DIMS = 32;

// The high word of a product.
KEYFOLD_INLINE Size multiply_high(Size a, Size b) {
#if defined(__CUDA_ARCH__)
    return __umul64hi(a, b);
#else
    return (Size)(((unsigned __int128)a * b) >> 64);
#endif
}

// One dimension of a strided flat view: Dim in Rust.
struct Dim {
    Size size;
    Stride stride;
    // Dividing by the size is multiplying by this, taking the high word, and shifting right.
    Size magic;
    unsigned int shift;
    unsigned int reserved;

    KEYFOLD_INLINE Size divide(Size index) const { return multiply_high(index, magic) >> shift; }
};

// FlatView<T, Contiguous> and FlatViewMut<T, Contiguous>.
template <class T>
struct FlatContiguous {
    T *data;
    Size count;

    KEYFOLD_INLINE T &operator[](Size index) const { return data[index]; }
};

// FlatView<T, Strided> and FlatViewMut<T, Strided>; the innermost dimension comes first.
template <class T>
struct FlatStrided {
    T *data;
    Size count;
    Size rank;
    Dim dims[FLAT_DIMS];

    KEYFOLD_INLINE T &operator[](Size index) const {
        Stride offset = 0;
        for (Size d = 0; d + 1 < rank; ++d) {
            Size next = dims[d].divide(index);
            offset += (Stride)(index - next * dims[d].size) * dims[d].stride;
            index = next;
        }
        if (rank > 0) offset += (Stride)index * dims[rank - 1].stride;
        return data[offset];
    }
};

// RankedView<T, R, Contiguous> and RankedViewMut<T, R, Contiguous>: view(i, j, ..).
template <class T, int R>
struct RankedContiguous {
    T *data;
    Size sizes[R];

    template <class... Index>
    KEYFOLD_INLINE T &operator()(Index... index) const {
        static_assert(sizeof...(Index) == R, "one index per dimension");
        const Size at[R] = {(Size)index...};
        Size place = 0;
        for (int d = 0; d < R; ++d) place = place * sizes[d] + at[d];
        return data[place];
    }
};

// RankedView<T, R, Strided> and RankedViewMut<T, R, Strided>: view(i, j, ..).
template <class T, int R>
struct RankedStrided {
    T *data;
    Size sizes[R];
    Stride strides[R];

    template <class... Index>
    KEYFOLD_INLINE T &operator()(Index... index) const {
        static_assert(sizeof...(Index) == R, "one index per dimension");
        const Size at[R] = {(Size)index...};
        Stride place = 0;
        for (int d = 0; d < R; ++d) place += (Stride)at[d] * strides[d];
        return data[place];
    }
};

// Views without dimensions have one element.
template <class T>
struct RankedContiguous<T, 0> {
    T *data;

    KEYFOLD_INLINE T &operator()() const { return *data; }
};

template <class T>
struct RankedStrided<T, 0> {
    T *data;

    KEYFOLD_INLINE T &operator()() const { return *data; }
};

}  // namespace keyfold

#endif
