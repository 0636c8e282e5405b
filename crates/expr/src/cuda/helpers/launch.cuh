// The helpers with which a kernel addresses its elements: vectors, division by multiplication, faults.
template <typename T, int N>
struct alignas(sizeof(T) * N) kf_vector {
    T item[N];
};

__device__ __forceinline__ bool kf_aligned(const void* data, unsigned bytes) {
    return (unsigned long long)data % bytes == 0;
}

// Quotients by a size known at the launch: a multiplication and a shift. `magic` has 32 bits for
// numbers below 2^31, 64 bits for those below 2^63 (wide).
__device__ __forceinline__ unsigned long long kf_divide(
    unsigned long long number, unsigned long long magic, unsigned long long shift, bool wide) {
    if (wide) return (__umul64hi(number, magic) + number) >> shift;
    const unsigned narrow = (unsigned)number;
    return (__umulhi(narrow, (unsigned)magic) + narrow) >> shift;
}

// The highest code is kept, so that the fault word is the same in every run.
__device__ __forceinline__ void kf_fault(unsigned* fault, unsigned code) {
    atomicMax(fault, code);
}

// Adds an index along one dimension to an offset; returns false if the index is out of range. Negative
// indices count from the end.
__device__ __forceinline__ bool kf_locate(
    long long index, long long size, long long stride, long long& place) {
    if (index < 0) index += size;
    if (index < 0 || index >= size) return false;
    place += index * stride;
    return true;
}

template <int RANK>
struct kf_ranked {
    long long size[RANK];
    long long stride[RANK];
};
