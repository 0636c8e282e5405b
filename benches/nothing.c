/* A native kernel that does nothing, of any number of arguments: "(Tensor x, Tensor y) -> ()".
   See docs/native-kernels.md. */
#include <stdint.h>

__attribute__((visibility("default")))
int nothing(void *handle, const void *args, int32_t num_args, void *result) {
    (void)handle;
    (void)args;
    (void)result; /* stays None: the schema returns nothing */
    return num_args >= 0 ? 0 : -1;
}
