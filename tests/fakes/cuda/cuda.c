/* libcuda.so.1 for machines without a GPU: a context works where the device nodes are, as NVIDIA's does.
 *
 * Needs /dev/nvidiactl, /dev/nvidia-uvm and one /dev/nvidia<N> as character devices. One device per node; its UUID is
 * FAKE_CUDA_UUID. Honours the memory limit that an MPS client is given. Codes and signatures follow cuda.h.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, OPERATING_SYSTEM = 304, ILLEGAL_ADDRESS = 700,
    UNKNOWN = 999
};

static int is_device(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISCHR(status.st_mode);
}

/* An MPS server opens the devices for its clients. */
static int is_mps_client(void) { return getenv("CUDA_MPS_PIPE_DIRECTORY") != NULL; }

static int devices(void) {
    if (is_mps_client())
        return 1;
    int count = 0;
    for (int minor = 0; minor < 32; minor++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/nvidia%d", minor);
        count += is_device(path);
    }
    return count;
}

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}

int cuInit(unsigned flags) {
    (void)flags;
    if (getenv("FAKE_CUDA_HANGS"))
        pause();
    if (is_mps_client())
        return SUCCESS;
    if (!is_device("/dev/nvidiactl"))
        return NO_DEVICE;
    return is_device("/dev/nvidia-uvm") ? SUCCESS : UNKNOWN;
}

int cuDeviceGetCount(int *count) {
    *count = devices();
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal < devices() ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetUuid(unsigned char *uuid, int device) {
    const char *text = getenv("FAKE_CUDA_UUID");
    (void)device;
    for (int i = 0; text && *text && i < 16; text += 2, i++) {
        text += *text == '-';
        unsigned byte = 0;
        sscanf(text, "%2x", &byte);
        uuid[i] = (unsigned char)byte;
    }
    return SUCCESS;
}

int cuCtxCreate_v2(void **context, unsigned flags, int device) {
    static int one;
    (void)flags, (void)device;
    *context = &one;
    return access("/proc/self/status", R_OK) == 0 ? SUCCESS : OPERATING_SYSTEM;
}

int cuCtxDestroy_v2(void *context) {
    (void)context;
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = *total = (size_t)80 << 30;
    return SUCCESS;
}

int cuMemAlloc_v2(unsigned long long *pointer, size_t size) {
    const char *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    unsigned long long megabytes = 0;
    *pointer = 4096;
    if (limit && sscanf(limit, "0=%lluM", &megabytes) == 1 && size > megabytes << 20)
        return OUT_OF_MEMORY;
    return SUCCESS;
}

int cuMemFree_v2(unsigned long long pointer) {
    (void)pointer;
    return SUCCESS;
}

struct ipc_handle { unsigned char reserved[64]; };

int cuIpcGetMemHandle(struct ipc_handle *handle, unsigned long long pointer) {
    memset(handle, 7, sizeof *handle);
    return pointer ? SUCCESS : INVALID_VALUE;
}

int cuIpcOpenMemHandle_v2(unsigned long long *pointer, struct ipc_handle handle, unsigned flags) {
    *pointer = 8192;
    return flags == 1 && handle.reserved[63] == 7 ? SUCCESS : INVALID_VALUE;
}

/* Kernels do nothing for their time, or are at fault. */
static int faults;

int cuModuleLoadData(void **module, const void *image) {
    *module = &faults;
    return strstr(image, ".entry spin") ? SUCCESS : INVALID_VALUE;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module;
    *function = strcmp(name, "poke") == 0 ? (void *)&faults : (void *)function;
    return SUCCESS;
}

int cuLaunchKernel(
    void *function, unsigned x, unsigned y, unsigned z, unsigned width, unsigned height, unsigned depth,
    unsigned shared, void *stream, void **arguments, void **extra
) {
    (void)shared, (void)stream, (void)extra;
    if (x * y * z * width * height * depth != 1)
        return INVALID_VALUE;
    faults = function == (void *)&faults;
    if (!faults)
        usleep((unsigned)(*(unsigned long long *)arguments[0] / 1000));
    return SUCCESS;
}

int cuCtxSynchronize(void) { return faults ? ILLEGAL_ADDRESS : SUCCESS; }
