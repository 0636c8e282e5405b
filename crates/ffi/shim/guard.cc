// Calls a foreign kernel and stops a C++ exception that leaves it: no other language can.
//
// Costs one more call where nothing is thrown: the tables of the try block are read only then.
#include <cxxabi.h>

#include <cstdint>
#include <cstring>
#include <exception>

namespace {

using SafeCall = int (*)(void *handle, const void *args, std::int32_t count, void *result);

// The text that goes back, made with malloc; never null once something was caught.
void keep(char **thrown, const char *text) { *thrown = strdup(text != nullptr ? text : ""); }

}  // namespace

extern "C" int keyfold_ffi_guarded_call(SafeCall function, void *handle, const void *args,
                                        std::int32_t count, void *result, char **thrown) {
    try {
        return function(handle, args, count, result);
    } catch (abi::__forced_unwind &) {
        // The thread is being cancelled: not an error, and not to be stopped.
        throw;
    } catch (const std::exception &error) {
        keep(thrown, error.what());
    } catch (...) {
        keep(thrown, "an exception that is no std::exception");
    }
    return 1;
}
