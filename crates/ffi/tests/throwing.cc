// Kernels that do what the convention forbids: exceptions leave them.
#include <cstdint>
#include <stdexcept>

#define KERNEL(name) \
    extern "C" __attribute__((visibility("default"))) int name(void *, const void *, std::int32_t, void *)

KERNEL(throws_error) { throw std::runtime_error("no luck"); }
KERNEL(throws_number) { throw 42; }
