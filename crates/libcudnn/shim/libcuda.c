/* A libcuda.so.1 for machines without NVIDIA's driver: each function says CUDA_ERROR_NOT_INITIALIZED.
 *
 * libcudnn loads libcuda to ask for a device when a kernel was compiled, and plans without one where these functions
 * fail. The helper process alone finds this file, on the loader's path that it is started with. */
#define NOT_INITIALIZED 3
#define FAILS(name) \
    int name(void); \
    int name(void) { return NOT_INITIALIZED; }

FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuDeviceGet)
FAILS(cuDeviceGetCount)
FAILS(cuDriverGetVersion)
FAILS(cuKernelGetAttribute)
FAILS(cuKernelGetFunction)
FAILS(cuKernelSetAttribute)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLibraryGetKernel)
FAILS(cuLibraryLoadData)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLibraryUnload)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkCreate)
FAILS(cuLinkDestroy)
FAILS(cuModuleGetFunction)
FAILS(cuModuleLoadData)
FAILS(cuModuleUnload)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuStreamGetCtx)
FAILS(cuTensorMapEncodeIm2col)
FAILS(cuTensorMapEncodeTiled)

static int text(const char **to, const char *what) {
    if (to) *to = what;
    return 0;
}

int cuGetErrorName(int code, const char **name);
int cuGetErrorName(int code, const char **name) {
    (void)code;
    return text(name, "CUDA_ERROR_NOT_INITIALIZED");
}

int cuGetErrorString(int code, const char **message);
int cuGetErrorString(int code, const char **message) {
    (void)code;
    return text(message, "keyfold plans without a driver");
}
