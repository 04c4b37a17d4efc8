/* Event sets of the stand-in library. Sets belong to a process, events are told to all processes of the state file. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

#define MAX_SETS 16
#define FLOOD_BURST 64 /* events of a flood between two of the others */

struct event_data {
    void *device;
    unsigned long long type, data;
    unsigned gi, ci;
};

struct registration { uint64_t types; uint32_t identity, binding; };

/* Guarded by the lock of a call. A registration ends when its GPU is bound again. */
static struct set {
    unsigned used, count, turn;
    uint32_t seen; /* events told before are not for this set */
    struct registration gpus[MAX_GPUS];
} sets[MAX_SETS];

void fake_forget_event_sets(void) { memset(sets, 0, sizeof sets); }

static void *set_handle(const struct set *set) {
    return (void *)(uintptr_t)(0xE5000000u | (fake_epoch() & 0xFF) << 8 | (uint64_t)(set - sets));
}

static struct set *find(const void *handle) {
    struct set *set = &sets[(uintptr_t)handle % MAX_SETS];
    return set->used && set_handle(set) == handle ? set : NULL;
}

static struct registration *registration_of(struct set *set, uint32_t identity) {
    for (unsigned i = 0; i < set->count; i++)
        if (set->gpus[i].identity == identity)
            return &set->gpus[i];
    return NULL;
}

static struct gpu *gpu_of(uint32_t identity) {
    for (unsigned i = 0; i < fake_state->gpu_count; i++)
        if (fake_state->gpus[i].identity == identity && !fake_state->gpus[i].unbound)
            return &fake_state->gpus[i];
    return NULL;
}

void fake_tell(const struct gpu *gpu, uint32_t gi, uint32_t ci) {
    fake_state->events[fake_state->event_count++ % MAX_EVENTS] = (struct event){
        MIG_CONFIG_CHANGE, 0, gpu->identity, gpu->binding, gi, ci};
    fake_state->changes++;
    syscall(SYS_futex, &fake_state->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int fake_is_registered(const struct gpu *gpu) {
    for (int i = 0; i < MAX_SETS; i++) {
        const struct registration *found = sets[i].used ? registration_of(&sets[i], gpu->identity) : NULL;
        if (found && found->types && found->binding == gpu->binding)
            return 1;
    }
    return 0;
}

int nvmlEventSetCreate(void **out) {
    CALL("nvmlEventSetCreate", NULL, NONE)
    for (int i = 0; i < MAX_SETS; i++)
        if (!sets[i].used) {
            sets[i] = (struct set){.used = 1, .seen = fake_state->event_count};
            *out = set_handle(&sets[i]);
            return fake_end(OK);
        }
    return fake_end(INSUFFICIENT_RESOURCES);
}

int nvmlEventSetFree(const void *handle) {
    CALL("nvmlEventSetFree", NULL, NONE)
    struct set *set = find(handle);
    if (!set)
        return fake_end(INVALID_ARGUMENT);
    set->used = 0;
    return fake_end(OK);
}

int nvmlDeviceGetSupportedEventTypes(const void *handle, unsigned long long *out) {
    CALL("nvmlDeviceGetSupportedEventTypes", handle, DEVICE)
    *out = call.gpu->event_types | (call.gpu->mig_current >= 0 ? MIG_CONFIG_CHANGE : 0);
    return fake_end(OK);
}

int nvmlDeviceRegisterEvents(const void *handle, unsigned long long types, const void *set_handle_) {
    CALL("nvmlDeviceRegisterEvents", handle, DEVICE)
    struct set *set = find(set_handle_);
    if (!set)
        return fake_end(INVALID_ARGUMENT);
    struct registration *found = registration_of(set, call.gpu->identity);
    if (!found)
        found = &set->gpus[set->count++];
    *found = (struct registration){types, call.gpu->identity, call.gpu->binding};
    return fake_end(OK);
}

/* An event that was told, in the order of their coming. */
static int next_told(struct set *set, struct event_data *out) {
    if (fake_state->event_count - set->seen > MAX_EVENTS)
        set->seen = fake_state->event_count - MAX_EVENTS;
    while (set->seen != fake_state->event_count) {
        const struct event *event = &fake_state->events[set->seen++ % MAX_EVENTS];
        const struct registration *found = registration_of(set, event->identity);
        const struct gpu *gpu = gpu_of(event->identity);
        if (!gpu || !found || !(found->types & event->type) || found->binding != event->binding)
            continue;
        *out = (struct event_data){
            fake_handle(DEVICE, gpu, NULL, NULL), event->type, event->data, event->gi, event->ci};
        return OK;
    }
    return TIMEOUT;
}

/* An event of a GPU that tells them without end. */
static int next_of_flood(struct set *set, struct event_data *out) {
    for (unsigned i = 0; i < set->count; i++) {
        const struct gpu *gpu = gpu_of(set->gpus[i].identity);
        if (!gpu || !gpu->flood || !(set->gpus[i].types & XID_CRITICAL_ERROR))
            continue;
        *out = (struct event_data){
            fake_handle(DEVICE, gpu, NULL, NULL), XID_CRITICAL_ERROR, gpu->flood, FOR_EVER, FOR_EVER};
        return OK;
    }
    return TIMEOUT;
}

/* OK with an event, TIMEOUT without, or an error: a lost GPU ends every wait at once. The call is locked. */
static int look(struct set *set, struct event_data *out) {
    if (set->turn++ % FLOOD_BURST && next_of_flood(set, out) == OK)
        return OK;
    if (next_told(set, out) == OK || next_of_flood(set, out) == OK)
        return OK;
    for (unsigned i = 0; i < set->count; i++) {
        const struct gpu *gpu = gpu_of(set->gpus[i].identity);
        if (!gpu || gpu->lost)
            return GPU_IS_LOST;
    }
    return TIMEOUT;
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* As nvml.h has it, also TIMEOUT when an interrupt arrives. Costs nothing while it waits. */
int nvmlEventSetWait_v2(const void *handle, struct event_data *out, unsigned timeout_ms) {
    int64_t deadline = now_ms() + timeout_ms;
    for (int again = 0;; again = 1) {
        struct call call;
        int code = fake_begin(again ? "(waiting)" : "nvmlEventSetWait_v2", NULL, NONE, &call);
        if (code != OK)
            return code;
        uint32_t *changes = &fake_state->changes, seen = *changes;
        struct set *set = find(handle);
        code = fake_end(set ? look(set, out) : INVALID_ARGUMENT);
        int64_t left = deadline - now_ms();
        if (code != TIMEOUT || left <= 0)
            return code;
        struct timespec timeout = {left / 1000, left % 1000 * 1000000};
        if (syscall(SYS_futex, changes, FUTEX_WAIT, seen, &timeout, NULL, 0) != 0 && errno == EINTR)
            return TIMEOUT;
    }
}
