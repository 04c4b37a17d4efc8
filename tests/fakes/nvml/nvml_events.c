/* Event sets of the stand-in library. Sets belong to a process, events are told to all processes of the state file. */
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "fake.h"

#define MAX_SETS 16
#define TICK_MS 2

struct event_data {
    void *device;
    unsigned long long type, data;
    unsigned gi, ci;
};

struct registration { uint64_t types; uint32_t identity, binding; };

/* Guarded by the lock of a call. A registration ends when its GPU is bound again. */
static struct set {
    unsigned used, count;
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
        MIG_CONFIG_CHANGE, gpu->identity, gpu->binding, gi, ci};
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
    *out = 0xB | (call.gpu->mig_current >= 0 ? MIG_CONFIG_CHANGE : 0);
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

/* OK with an event, TIMEOUT without, or an error. The call is locked. */
static int look(struct set *set, struct event_data *out) {
    for (unsigned i = 0; i < set->count; i++) {
        const struct gpu *gpu = gpu_of(set->gpus[i].identity);
        if (!gpu || gpu->lost)
            return GPU_IS_LOST;
    }
    if (fake_state->event_count - set->seen > MAX_EVENTS)
        set->seen = fake_state->event_count - MAX_EVENTS;
    while (set->seen != fake_state->event_count) {
        const struct event *event = &fake_state->events[set->seen++ % MAX_EVENTS];
        const struct registration *found = registration_of(set, event->identity);
        const struct gpu *gpu = gpu_of(event->identity);
        if (!gpu || !found || !(found->types & event->type) || found->binding != event->binding)
            continue;
        *out = (struct event_data){fake_handle(DEVICE, gpu, NULL, NULL), event->type, 0, event->gi, event->ci};
        return OK;
    }
    return TIMEOUT;
}

int nvmlEventSetWait_v2(const void *handle, struct event_data *out, unsigned timeout_ms) {
    for (unsigned waited_ms = 0;; waited_ms += TICK_MS) {
        struct call call;
        int code = fake_begin(waited_ms ? "(waiting)" : "nvmlEventSetWait_v2", NULL, NONE, &call);
        if (code != OK)
            return code;
        struct set *set = find(handle);
        code = fake_end(set ? look(set, out) : INVALID_ARGUMENT);
        if (code != TIMEOUT || waited_ms >= timeout_ms)
            return code;
        nanosleep(&(struct timespec){0, TICK_MS * 1000000}, NULL);
    }
}
