// Runs emitted kernels, compiled as C++, on the CPU, one thread after another.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

struct ShimIndex {
    unsigned x, y, z;
};
static ShimIndex blockIdx, threadIdx, blockDim, gridDim;

template <typename To, typename From>
static inline To shim_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// The arguments of launches are read from one file, and the results written to another.
struct ShimFiles {
    FILE* in;
    FILE* out;

    void read(void* to, size_t bytes) {
        if (bytes > 0 && std::fread(to, 1, bytes, in) != bytes) {
            std::fprintf(stderr, "the arguments end too early\n");
            std::exit(2);
        }
    }
    template <typename T>
    T value() {
        T value;
        read(&value, sizeof value);
        return value;
    }
};

// The memory of a tensor: bytes that begin `skew` bytes after an address aligned to 64 bytes, and the
// offset of element 0 in bytes, which for a part of a tensor may be outside.
struct ShimBuffer {
    std::vector<unsigned char> memory;
    size_t start, bytes;
    long long origin;

    explicit ShimBuffer(ShimFiles& files) {
        bytes = files.value<uint64_t>();
        const size_t skew = files.value<uint64_t>();
        origin = files.value<int64_t>();
        memory.resize(bytes + skew + 64);
        start = (64 - (uintptr_t)memory.data() % 64) % 64 + skew;
        files.read(memory.data() + start, bytes);
    }
    template <typename T>
    T* element_0() {
        return (T*)((uintptr_t)memory.data() + start + (uintptr_t)origin);
    }
    template <typename T>
    T* buffer() {
        return (T*)(memory.data() + start);
    }
    template <typename T>
    long long offset() {
        return origin / (long long)sizeof(T);
    }
    void write(ShimFiles& files) {
        if (std::fwrite(memory.data() + start, 1, bytes, files.out) != bytes) std::exit(2);
    }
};

// Calls `kernel(first, count)` for every thread of every launch that the file lists.
template <typename Kernel>
static inline void shim_launch(ShimFiles& files, Kernel kernel) {
    for (uint64_t launches = files.value<uint64_t>(); launches > 0; --launches) {
        const uint64_t first = files.value<uint64_t>(), count = files.value<uint64_t>();
        gridDim = {(unsigned)files.value<uint64_t>(), 1, 1};
        blockDim = {(unsigned)files.value<uint64_t>(), 1, 1};
        for (unsigned block = 0; block < gridDim.x; ++block) {
            for (unsigned thread = 0; thread < blockDim.x; ++thread) {
                blockIdx = {block, 0, 0};
                threadIdx = {thread, 0, 0};
                kernel(first, count);
            }
        }
    }
}
