/* libnvidia-ml.so.1 for machines without a GPU: answers from one state file that any number of processes share.
 *
 * The file is laid out by state.py; FAKE_NVML_STATE names it. One call, or one change by state.py, at a time among all
 * processes (an exclusive file lock), so a call sees one state. Signatures, structures and codes follow nvml.h.
 * Handles are tagged integers that are never dereferenced: one from an earlier session is an InvalidArgument.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25
};

#ifndef STATE_ENVIRONMENT
#define STATE_ENVIRONMENT "FAKE_NVML_STATE"
#endif
#define MAX_GPUS 64
#define MAX_FAULTS 32
#define STATE_MAGIC 0x4C4D564Eu /* "NVML" */
#define STATE_VERSION 1u
#define ADDRESSING_MODE_V1 0x1000008u

/* Numbers that a GPU does not tell are negative and texts empty. Keep in step with state.py, which checks the sizes. */
struct gpu {
    char uuid[96], name[96], bus_id[32];
    int64_t memory_bytes;
    int32_t minor, brand, architecture, capability_major, capability_minor, addressing_mode, mig_current, mig_pending;
    uint32_t pci_device_id, lost;
};

struct fault {
    char function[64]; /* empty: the slot is free */
    int32_t device;    /* index, -1 for any device or none */
    int32_t code;      /* OK: only the latency */
    uint32_t latency_ms;
    uint32_t left;     /* calls it still hits, 0 for all */
};

struct state {
    uint32_t magic, version, gpu_count, cuda_version;
    char driver_version[80];
    struct gpu gpus[MAX_GPUS];
    struct fault faults[MAX_FAULTS];
};

struct pci_info {
    char bus_id_legacy[16];
    uint32_t domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct memory { unsigned long long total, free, used; };
struct addressing { uint32_t version, value; };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the four below, and flock, which is per open file */
static struct state *state;
static int state_fd = -1;
static unsigned sessions;
static uint64_t epoch; /* counts sessions, to tell stale handles */

size_t fakeNvmlStateSize(void) { return sizeof(struct state); }

static int open_state(void) {
    const char *path = getenv(STATE_ENVIRONMENT);
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return DRIVER_NOT_LOADED;
    off_t size = lseek(fd, 0, SEEK_END);
    void *map = size == (off_t)sizeof(struct state)
        ? mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (map == MAP_FAILED) {
        close(fd);
        return DRIVER_NOT_LOADED;
    }
    state = map;
    state_fd = fd;
    if (state->magic == STATE_MAGIC && state->version == STATE_VERSION)
        return OK;
    munmap(map, sizeof(struct state));
    close(fd);
    state = NULL;
    state_fd = -1;
    return DRIVER_NOT_LOADED;
}

static void close_state(void) {
    munmap(state, sizeof(struct state));
    close(state_fd);
    state = NULL;
    state_fd = -1;
}

static void pause_ms(uint32_t ms) {
    struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};
    while (ms && nanosleep(&left, &left) != 0) {
    }
}

/* The injected answer of a call; adds up latencies. The state lock is held. */
static int injected(const char *function, int device, uint32_t *latency_ms) {
    for (int i = 0; i < MAX_FAULTS; i++) {
        struct fault *fault = &state->faults[i];
        if (strncmp(fault->function, function, sizeof fault->function) != 0)
            continue;
        if (fault->device >= 0 && fault->device != device)
            continue;
        *latency_ms += fault->latency_ms;
        int code = fault->code;
        if (fault->left && --fault->left == 0)
            fault->function[0] = '\0';
        if (code != OK)
            return code;
    }
    return OK;
}

static void *handle_of(unsigned index) { return (void *)(uintptr_t)(0xD1000000u | (epoch & 0xFFFF) << 8 | index); }

static int index_of(const void *handle) {
    uintptr_t value = (uintptr_t)handle;
    unsigned index = value & 0xFF;
    return value == (uintptr_t)handle_of(index) && index < state->gpu_count ? (int)index : -1;
}

static int end(int code) {
    flock(state_fd, LOCK_UN);
    pthread_mutex_unlock(&mutex);
    return code;
}

/* Takes both locks when there is a session; with a device, also looks it up. Returns OK locked, else unlocked. */
static int enter(const void *handle, int has_device, int *device) {
    pthread_mutex_lock(&mutex);
    if (!state) {
        pthread_mutex_unlock(&mutex);
        return UNINITIALIZED;
    }
    flock(state_fd, LOCK_EX);
    *device = has_device ? index_of(handle) : -1;
    return !has_device || *device >= 0 ? OK : end(INVALID_ARGUMENT);
}

/* Begins a call: locks and applies faults. Returns OK with everything locked, or the answer with nothing locked. */
static int begin(const char *function, const void *handle, int has_device, struct gpu **gpu) {
    uint32_t latency_ms = 0;
    int device;
    int code = enter(handle, has_device, &device);
    if (code != OK)
        return code;
    int answer = injected(function, device, &latency_ms);
    if (latency_ms) { /* unlocked meanwhile: a slow GPU does not hold up other threads and processes */
        end(OK);
        pause_ms(latency_ms);
        code = enter(handle, has_device, &device);
        if (code != OK)
            return code;
    }
    if (answer == OK && device >= 0 && state->gpus[device].lost)
        answer = GPU_IS_LOST;
    if (answer != OK)
        return end(answer);
    if (gpu)
        *gpu = &state->gpus[device];
    return OK;
}

static int give_text(const char *text, char *out, unsigned size) {
    if (!text[0])
        return NOT_SUPPORTED;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    memcpy(out, text, strlen(text) + 1);
    return OK;
}

static int give_number(int32_t value, unsigned *out) {
    if (value < 0)
        return NOT_SUPPORTED;
    *out = (unsigned)value;
    return OK;
}

#define DEVICE_CALL(name, handle)                      \
    struct gpu *gpu;                                   \
    int code = begin(name, handle, 1, &gpu);           \
    if (code != OK)                                    \
        return code;

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    uint32_t latency_ms = 0;
    pthread_mutex_lock(&mutex);
    int code = state ? OK : open_state();
    if (code == OK) {
        flock(state_fd, LOCK_EX);
        code = injected("nvmlInitWithFlags", -1, &latency_ms);
        flock(state_fd, LOCK_UN);
        if (code != OK && sessions == 0)
            close_state();
    }
    if (code == OK && sessions++ == 0)
        epoch++;
    pthread_mutex_unlock(&mutex);
    pause_ms(latency_ms);
    return code;
}

int nvmlShutdown(void) {
    int code = UNINITIALIZED;
    pthread_mutex_lock(&mutex);
    if (sessions > 0) {
        code = OK;
        if (--sessions == 0)
            close_state();
    }
    pthread_mutex_unlock(&mutex);
    return code;
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    int code = begin("nvmlSystemGetDriverVersion", NULL, 0, NULL);
    return code != OK ? code : end(give_text(state->driver_version, out, size));
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    int code = begin("nvmlSystemGetCudaDriverVersion_v2", NULL, 0, NULL);
    if (code != OK)
        return code;
    *out = (int)state->cuda_version;
    return end(OK);
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    int code = begin("nvmlDeviceGetCount_v2", NULL, 0, NULL);
    if (code != OK)
        return code;
    *out = state->gpu_count;
    return end(OK);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    pthread_mutex_lock(&mutex);
    const void *handle = index < MAX_GPUS ? handle_of(index) : NULL;
    pthread_mutex_unlock(&mutex);
    DEVICE_CALL("nvmlDeviceGetHandleByIndex_v2", handle)
    *out = handle_of((unsigned)(gpu - state->gpus));
    return end(OK);
}

int nvmlDeviceGetUUID(const void *handle, char *out, unsigned size) {
    DEVICE_CALL("nvmlDeviceGetUUID", handle)
    return end(give_text(gpu->uuid, out, size));
}

int nvmlDeviceGetName(const void *handle, char *out, unsigned size) {
    DEVICE_CALL("nvmlDeviceGetName", handle)
    return end(give_text(gpu->name, out, size));
}

int nvmlDeviceGetMinorNumber(const void *handle, unsigned *out) {
    DEVICE_CALL("nvmlDeviceGetMinorNumber", handle)
    return end(give_number(gpu->minor, out));
}

int nvmlDeviceGetBrand(const void *handle, unsigned *out) {
    DEVICE_CALL("nvmlDeviceGetBrand", handle)
    return end(give_number(gpu->brand, out));
}

int nvmlDeviceGetArchitecture(const void *handle, unsigned *out) {
    DEVICE_CALL("nvmlDeviceGetArchitecture", handle)
    return end(give_number(gpu->architecture, out));
}

int nvmlDeviceGetCudaComputeCapability(const void *handle, int *major, int *minor) {
    DEVICE_CALL("nvmlDeviceGetCudaComputeCapability", handle)
    if (gpu->capability_major < 0)
        return end(NOT_SUPPORTED);
    *major = gpu->capability_major;
    *minor = gpu->capability_minor;
    return end(OK);
}

int nvmlDeviceGetMemoryInfo(const void *handle, struct memory *out) {
    DEVICE_CALL("nvmlDeviceGetMemoryInfo", handle)
    if (gpu->memory_bytes < 0)
        return end(NOT_SUPPORTED);
    *out = (struct memory){(unsigned long long)gpu->memory_bytes, (unsigned long long)gpu->memory_bytes, 0};
    return end(OK);
}

int nvmlDeviceGetPciInfo_v3(const void *handle, struct pci_info *out) {
    DEVICE_CALL("nvmlDeviceGetPciInfo_v3", handle)
    if (!gpu->bus_id[0])
        return end(NOT_SUPPORTED);
    memset(out, 0, sizeof *out);
    memcpy(out->bus_id, gpu->bus_id, sizeof out->bus_id);
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%.15s", strlen(gpu->bus_id) > 4 ? gpu->bus_id + 4 : "");
    out->pci_device_id = gpu->pci_device_id;
    sscanf(gpu->bus_id, "%8x:%2x:%2x", &out->domain, &out->bus, &out->device);
    return end(OK);
}

int nvmlDeviceGetAddressingMode(const void *handle, struct addressing *out) {
    DEVICE_CALL("nvmlDeviceGetAddressingMode", handle)
    if (out->version != ADDRESSING_MODE_V1)
        return end(ARGUMENT_VERSION_MISMATCH);
    return end(give_number(gpu->addressing_mode, &out->value));
}

int nvmlDeviceGetMigMode(const void *handle, unsigned *current, unsigned *pending) {
    DEVICE_CALL("nvmlDeviceGetMigMode", handle)
    code = give_number(gpu->mig_current, current);
    return end(code != OK ? code : give_number(gpu->mig_pending, pending));
}
