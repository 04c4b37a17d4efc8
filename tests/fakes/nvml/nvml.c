/* libnvidia-ml.so.1 for machines without a GPU: answers from one state file that any number of processes share.
 *
 * The file is laid out by state.py; FAKE_NVML_STATE names it. One call, or one change by state.py, at a time among all
 * processes (an exclusive file lock), so a call sees one state. Signatures, structures and codes follow nvml.h.
 * The first nvmlInit of a process freezes the number and the order of GPUs until the last nvmlShutdown: a GPU that comes
 * later is not seen, and one that was removed or unbound is lost, also when it is bound again. Handles are tagged integers that are never dereferenced: one from an earlier session, from before a change of MIG
 * mode, or of an instance that is gone, is an InvalidArgument.
 *
 * Device files: while a session is open, its process has dev/nvidiactl beside the state file open, and dev/nvidia<minor>
 * of each GPU from its first handle on, both under a shared lock, until the last nvmlShutdown. Who can lock one
 * exclusively knows that no process has it open: then the kernel module could be removed. Without the files none is.
 *
 * This file: sessions, faults and handles. nvml_gpu.c: GPUs as a whole. nvml_mig.c, nvml_compute.c: MIG.
 * nvml_events.c: events.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

#ifndef STATE_ENVIRONMENT
#define STATE_ENVIRONMENT "FAKE_NVML_STATE"
#endif
#define STATE_MAGIC 0x4C4D564Eu /* "NVML" */
#define STATE_VERSION 5u
#define PAUSE_TICK_MS 1
#define MAX_DESCRIPTORS 1024

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards these, and flock, which is per open file */
struct state *fake_state;
static int state_fd = -1;
static unsigned sessions;
static uint32_t session_gpus[MAX_GPUS]; /* identities by NVML index, as they were when the session began */
static unsigned session_count;
static uint64_t epoch; /* counts sessions, to detect stale handles */
static int control_fd = -1, gpu_fds[MAX_GPUS]; /* device files; those of GPUs plus one, 0: not open */

size_t fakeNvmlStateSize(void) { return sizeof(struct state); }
uint64_t fake_epoch(void) { return epoch; }
unsigned fake_session_count(void) { return session_count; }

static int open_device(const char *name) {
    char path[4096];
    const char *state = getenv(STATE_ENVIRONMENT), *slash = state ? strrchr(state, '/') : NULL;
    if (!slash)
        return -1;
    snprintf(path, sizeof path, "%.*s/dev/%s", (int)(slash - state), state, name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        flock(fd, LOCK_SH);
    return fd;
}

/* A GPU's first handle opens it for the rest of the session. */
void fake_open_gpu(int device) {
    char name[32];
    snprintf(name, sizeof name, "nvidia%d", fake_state->gpus[device].minor);
    if (!gpu_fds[device])
        gpu_fds[device] = open_device(name) + 1;
}

/* Whether this process has the file of that descriptor open by another one. */
static int is_open_elsewhere(int fd) {
    struct stat own, other;
    if (fstat(fd, &own) != 0)
        return 0;
    for (int i = 0; i < MAX_DESCRIPTORS; i++)
        if (i != fd && fstat(i, &other) == 0 && other.st_dev == own.st_dev && other.st_ino == own.st_ino)
            return 1;
    return 0;
}

static void close_devices(void) {
    if (control_fd >= 0)
        close(control_fd);
    control_fd = -1;
    for (int i = 0; i < MAX_GPUS; i++) {
        if (gpu_fds[i] && fake_state->gpus[i].forgets && !is_open_elsewhere(gpu_fds[i] - 1))
            fake_state->gpus[i].compute_mode = 0;
        if (gpu_fds[i])
            close(gpu_fds[i] - 1);
        gpu_fds[i] = 0;
    }
}

static void close_state(void) {
    if (fake_state)
        close_devices();
    if (fake_state)
        munmap(fake_state, sizeof(struct state));
    if (state_fd >= 0)
        close(state_fd);
    fake_state = NULL;
    state_fd = -1;
}

static int open_state(void) {
    const char *path = getenv(STATE_ENVIRONMENT);
    state_fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (state_fd < 0)
        return DRIVER_NOT_LOADED;
    void *map = lseek(state_fd, 0, SEEK_END) == (off_t)sizeof(struct state)
        ? mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, state_fd, 0) : MAP_FAILED;
    fake_state = map == MAP_FAILED ? NULL : map;
    if (fake_state && fake_state->magic == STATE_MAGIC && fake_state->version == STATE_VERSION) {
        control_fd = open_device("nvidiactl");
        return OK;
    }
    close_state();
    return DRIVER_NOT_LOADED;
}

/* Ends early when state.py lets all calls go. Nothing is locked, but a session keeps the file mapped. */
static void pause_ms(uint32_t ms, uint32_t releases) {
    for (uint32_t waited = 0; waited < ms && fake_state->releases == releases; waited += PAUSE_TICK_MS)
        nanosleep(&(struct timespec){0, PAUSE_TICK_MS * 1000000}, NULL);
}

static void count(const char *function) {
    uint32_t hash = 2166136261u;
    for (const char *at = function; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 16777619u;
    for (uint32_t probe = 0; probe < MAX_COUNTERS; probe++) {
        struct counter *counter = &fake_state->counters[(hash + probe) & (MAX_COUNTERS - 1)];
        if (!counter->function[0])
            snprintf(counter->function, sizeof counter->function, "%s", function);
        if (strcmp(counter->function, function) == 0) {
            counter->calls++;
            return;
        }
    }
}

/* The injected answer of a call; adds up latencies. The state lock is held. */
static int injected(const char *function, int device, uint32_t *latency_ms) {
    count(function);
    for (int i = 0; i < MAX_FAULTS; i++) {
        struct fault *fault = &fake_state->faults[i];
        if (!fault->function[0] || strncmp(fault->function, function, sizeof fault->function) != 0)
            continue;
        if (fault->device >= 0 && fault->device != device)
            continue;
        if (fault->skip) {
            fault->skip--;
            continue;
        }
        *latency_ms += fault->latency_ms;
        int code = fault->code;
        if (fault->left && --fault->left == 0)
            fault->function[0] = '\0';
        if (code != OK)
            return code;
    }
    return OK;
}

/* The file lock is held. */
static void freeze(void) {
    session_count = 0;
    for (unsigned i = 0; i < fake_state->gpu_count; i++)
        if (!fake_state->gpus[i].unbound)
            session_gpus[session_count++] = fake_state->gpus[i].identity;
}

/* NVML's index of a GPU in this session, MAX_GPUS when it came later. */
static unsigned index_of(const struct gpu *gpu) {
    unsigned index = 0;
    while (index < session_count && session_gpus[index] != gpu->identity)
        index++;
    return index < session_count ? index : MAX_GPUS;
}

/* The GPU that had this NVML index when the session began. */
static int find_gpu(uint64_t index, struct call *call) {
    if (index >= session_count)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < fake_state->gpu_count; i++)
        if (fake_state->gpus[i].identity == session_gpus[index] && !fake_state->gpus[i].unbound) {
            call->device = (int)i;
            call->gpu = &fake_state->gpus[i];
            return OK;
        }
    return GPU_IS_LOST;
}

/* Bits: 8 kind, 8 session, 8 binding, 8 NVML index, 4 slot of the GPU instance, 4 of the compute instance, 24 serial. */
void *fake_handle(enum kind kind, const struct gpu *gpu, const struct gi *gi, const struct ci *ci) {
    uint64_t serial = ci ? ci->serial : gi ? gi->serial : 0;
    return (void *)(uintptr_t)(
        (uint64_t)(0xD0 | kind) << 56 | (epoch & 0xFF) << 48 | (uint64_t)(gpu->binding & 0xFF) << 40
        | (uint64_t)index_of(gpu) << 32 | (uint64_t)(gi ? gi - gpu->gis : 0) << 28
        | (uint64_t)(ci ? ci - gi->cis : 0) << 24 | (serial & 0xFFFFFF));
}

static int look_up(const void *handle, unsigned kinds, struct call *call) {
    uint64_t value = (uint64_t)(uintptr_t)handle;
    memset(call, 0, sizeof *call);
    call->device = -1;
    if (kinds == NONE)
        return OK;
    if (kinds == BY_INDEX) {
        call->kind = DEVICE;
        return find_gpu(value, call);
    }
    unsigned kind = (unsigned)(value >> 56) ^ 0xD0;
    if (kind > COMPUTE_INSTANCE || !(kind & kinds))
        return INVALID_ARGUMENT;
    call->kind = (enum kind)kind;
    int code = find_gpu(value >> 32 & 0xFF, call);
    if (code != OK)
        return code;
    if (kind != DEVICE) {
        unsigned slot = value >> 28 & 0xF;
        call->gi = slot < MAX_GIS && call->gpu->gis[slot].used ? &call->gpu->gis[slot] : NULL;
        if (!call->gi)
            return INVALID_ARGUMENT;
    }
    if (kind == MIG_DEVICE || kind == COMPUTE_INSTANCE) {
        unsigned slot = value >> 24 & 0xF;
        call->ci = slot < MAX_CIS && call->gi->cis[slot].used ? &call->gi->cis[slot] : NULL;
        if (!call->ci)
            return INVALID_ARGUMENT;
    }
    return handle == fake_handle(call->kind, call->gpu, call->gi, call->ci) ? OK : INVALID_ARGUMENT;
}

int fake_end(int code) {
    flock(state_fd, LOCK_UN);
    pthread_mutex_unlock(&mutex);
    return code;
}

/* Takes both locks when there is a session and looks the handle up. Returns OK locked, else unlocked. */
static int enter(const void *handle, unsigned kinds, struct call *call) {
    pthread_mutex_lock(&mutex);
    if (!fake_state) {
        pthread_mutex_unlock(&mutex);
        return UNINITIALIZED;
    }
    flock(state_fd, LOCK_EX);
    int code = look_up(handle, kinds, call);
    return code == OK ? OK : fake_end(code);
}

int fake_begin(const char *function, const void *handle, unsigned kinds, struct call *call) {
    uint32_t latency_ms = 0;
    int code = enter(handle, kinds, call);
    if (code != OK)
        return code;
    int answer = injected(function, call->device, &latency_ms);
    if (latency_ms) { /* unlocked meanwhile: a slow GPU does not hold up other threads and processes */
        uint32_t releases = fake_state->releases;
        fake_end(OK);
        pause_ms(latency_ms, releases);
        code = enter(handle, kinds, call);
        if (code != OK)
            return code;
    }
    if (answer == OK && call->gpu && call->gpu->lost)
        answer = GPU_IS_LOST;
    return answer == OK ? OK : fake_end(answer);
}

int fake_give_text(const char *text, char *out, unsigned size) {
    if (!text[0])
        return NOT_SUPPORTED;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    memcpy(out, text, strlen(text) + 1);
    return OK;
}

int fake_give_number(int32_t value, unsigned *out) {
    if (value < 0)
        return NOT_SUPPORTED;
    *out = (unsigned)value;
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    uint32_t latency_ms = 0;
    pthread_mutex_lock(&mutex);
    int code = fake_state ? OK : open_state();
    if (code == OK) {
        flock(state_fd, LOCK_EX);
        code = injected("nvmlInitWithFlags", -1, &latency_ms);
        if (sessions == 0)
            freeze();
        flock(state_fd, LOCK_UN);
        if (code != OK && sessions == 0)
            close_state();
    }
    if (code == OK && sessions++ == 0)
        epoch++;
    uint32_t releases = code == OK ? fake_state->releases : 0;
    pthread_mutex_unlock(&mutex);
    if (code == OK)
        pause_ms(latency_ms, releases);
    return code;
}

int nvmlShutdown(void) {
    int code = UNINITIALIZED;
    pthread_mutex_lock(&mutex);
    if (sessions > 0) {
        code = OK;
        if (--sessions == 0) {
            fake_forget_event_sets();
            flock(state_fd, LOCK_EX);
            fake_unsubscribe();
            flock(state_fd, LOCK_UN);
            close_state();
        }
    }
    pthread_mutex_unlock(&mutex);
    return code;
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}
