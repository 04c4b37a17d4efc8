/* MIG of the stand-in library: mode, profiles, placements and GPU instances, by the tables of the state file.
 *
 * Rules as in nvml.h and NVIDIA's MIG user guide: no memory slice twice, no more compute slices and engines than the
 * profile of the whole GPU has, no more instances of a profile than it says; a GPU instance is destroyed empty.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

#define KNOWN_PROFILES 18u
#define PROFILE_V2 0x2000098u
#define VGPU_GUEST 2
#define PRETEND 1000u /* as mode_status: says that it is done, and leaves it pending */
#define UNKNOWN 0xFFFFFFFFu

struct placement { uint32_t start, size; };
struct profile_info_v1 {
    uint32_t id, p2p, slices, instances, multiprocessors, engines[5];
    unsigned long long memory_mb;
};
struct profile_info_v2 {
    uint32_t version, id, p2p, slices, instances, multiprocessors, engines[5];
    unsigned long long memory_mb;
    char name[96];
};
struct gi_info { void *device; uint32_t id, profile; struct placement placement; };

static const struct profile *by_id(const struct gpu *gpu, uint32_t id) {
    for (uint32_t i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].id == id)
            return &gpu->profiles[i];
    return NULL;
}

int nvmlDeviceGetMigMode(const void *handle, unsigned *current, unsigned *pending) {
    CALL("nvmlDeviceGetMigMode", handle, DEVICE)
    code = fake_give_number(call.gpu->mig_current, current);
    return fake_end(code != OK ? code : fake_give_number(call.gpu->mig_pending, pending));
}

static int has_instances(const struct gpu *gpu) {
    for (int i = 0; i < MAX_GIS; i++)
        if (gpu->gis[i].used)
            return 1;
    return 0;
}

int nvmlDeviceSetMigMode(const void *handle, unsigned mode, unsigned *status) {
    CALL("nvmlDeviceSetMigMode", handle, DEVICE)
    struct gpu *gpu = call.gpu;
    if (gpu->mig_current < 0 || gpu->virtualization == VGPU_GUEST)
        return fake_end(NOT_SUPPORTED);
    if (mode > 1)
        return fake_end(INVALID_ARGUMENT);
    *status = OK;
    gpu->mig_pending = (int32_t)mode;
    if ((int32_t)mode == gpu->mig_current)
        return fake_end(OK);
    if (gpu->mode_status)
        *status = gpu->mode_status;
    else if (gpu->clients || has_instances(gpu) || fake_is_registered(gpu))
        *status = IN_USE;
    else if (gpu->resetless == 0)
        *status = RESET_REQUIRED;
    if (*status != OK) {
        *status = *status == PRETEND ? OK : *status;
        return fake_end(OK);
    }
    fake_tell(gpu, UNKNOWN, UNKNOWN);
    gpu->mig_current = (int32_t)mode;
    gpu->binding++;
    if (mode)
        gpu->compute_mode = 0;
    return fake_end(OK);
}

static int find_profile(const struct gpu *gpu, uint32_t number, const struct profile **out) {
    if (number >= KNOWN_PROFILES)
        return INVALID_ARGUMENT;
    if (gpu->mig_current < 0 || (gpu->profiles_need_mode && !is_cut(gpu)))
        return NOT_SUPPORTED;
    for (uint32_t i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].number == number) {
            *out = &gpu->profiles[i];
            return OK;
        }
    return NOT_SUPPORTED;
}

int nvmlDeviceGetGpuInstanceProfileInfo(const void *handle, unsigned number, struct profile_info_v1 *out) {
    CALL("nvmlDeviceGetGpuInstanceProfileInfo", handle, DEVICE)
    const struct profile *profile;
    code = find_profile(call.gpu, number, &profile);
    if (code != OK)
        return fake_end(code);
    *out = (struct profile_info_v1){.id = profile->id, .slices = profile->compute_slices,
        .instances = profile->max_instances, .multiprocessors = profile->multiprocessors,
        .memory_mb = profile->memory_mb};
    memcpy(out->engines, profile->engines, sizeof out->engines);
    return fake_end(OK);
}

int nvmlDeviceGetGpuInstanceProfileInfoV(const void *handle, unsigned number, struct profile_info_v2 *out) {
    CALL("nvmlDeviceGetGpuInstanceProfileInfoV", handle, DEVICE)
    const struct profile *profile;
    if (out->version != PROFILE_V2)
        return fake_end(ARGUMENT_VERSION_MISMATCH);
    code = find_profile(call.gpu, number, &profile);
    if (code != OK)
        return fake_end(code);
    *out = (struct profile_info_v2){.version = PROFILE_V2, .id = profile->id, .slices = profile->compute_slices,
        .instances = profile->max_instances, .multiprocessors = profile->multiprocessors,
        .memory_mb = profile->memory_mb};
    memcpy(out->engines, profile->engines, sizeof out->engines);
    snprintf(out->name, sizeof out->name, "MIG %s", profile->name);
    return fake_end(OK);
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    const void *handle, unsigned id, struct placement *out, unsigned *count
) {
    CALL("nvmlDeviceGetGpuInstancePossiblePlacements_v2", handle, DEVICE)
    const struct profile *profile = by_id(call.gpu, id);
    if (!profile)
        return fake_end(call.gpu->mig_current < 0 ? NOT_SUPPORTED : INVALID_ARGUMENT);
    if (out && *count < profile->start_count)
        return fake_end(INSUFFICIENT_SIZE);
    *count = profile->start_count;
    for (uint32_t i = 0; out && i < profile->start_count; i++)
        out[i] = (struct placement){profile->starts[i], profile->memory_slices};
    return fake_end(OK);
}

static const struct profile *whole(const struct gpu *gpu) {
    const struct profile *best = &gpu->profiles[0];
    for (uint32_t i = 1; i < gpu->profile_count; i++) {
        const struct profile *one = &gpu->profiles[i];
        if (one->memory_slices > best->memory_slices
            || (one->memory_slices == best->memory_slices && one->compute_slices > best->compute_slices))
            best = one;
    }
    return best;
}

static uint32_t known(uint32_t value) { return value == UNKNOWN ? 0 : value; }

/* Whether what it needs of one kind is left: there is `total`, `taken` is in use. An unknown total is no limit. */
static int enough(uint32_t total, uint32_t taken, uint32_t wanted) {
    return total == UNKNOWN || known(wanted) == 0 || taken + known(wanted) <= total;
}

/* Whether an instance of `profile` at `start` fits beside those that exist. */
static int fits(const struct gpu *gpu, const struct profile *profile, uint32_t start) {
    const struct profile *all = whole(gpu);
    uint32_t same = 0, compute = 0, engines[5] = {0};
    for (int i = 0; i < MAX_GIS; i++) {
        const struct gi *gi = &gpu->gis[i];
        if (!gi->used)
            continue;
        const struct profile *other = profile_of(gpu, gi);
        if (gi->start < start + profile->memory_slices && start < gi->start + other->memory_slices)
            return 0;
        same += other == profile;
        compute += other->compute_slices;
        for (int e = 0; e < 5; e++)
            engines[e] += known(other->engines[e]);
    }
    for (int e = 0; e < 5; e++)
        if (!enough(all->engines[e], engines[e], profile->engines[e]))
            return 0;
    return same < profile->max_instances && enough(all->compute_slices, compute, profile->compute_slices);
}

static int is_placement(const struct profile *profile, const struct placement *placement) {
    for (uint32_t i = 0; i < profile->start_count; i++)
        if (profile->starts[i] == placement->start && profile->memory_slices == placement->size)
            return 1;
    return 0;
}

/* The slot of a new GPU instance, NULL when there is no room. Ids: 0 the whole, then halves, quarters, from the left. */
static struct gi *add(struct gpu *gpu, const struct profile *profile, uint32_t start) {
    struct gi *gi = gpu->gis;
    while (gi < gpu->gis + MAX_GIS && gi->used)
        gi++;
    if (gi == gpu->gis + MAX_GIS || !fits(gpu, profile, start))
        return NULL;
    uint32_t slices = whole(gpu)->memory_slices, size = profile->memory_slices;
    memset(gi, 0, sizeof *gi);
    *gi = (struct gi){.used = 1, .serial = ++gpu->serial, .id = slices / size - 1 + start / size,
        .profile = (uint32_t)(profile - gpu->profiles), .start = start};
    return gi;
}

int nvmlDeviceGetGpuInstanceRemainingCapacity(const void *handle, unsigned id, unsigned *out) {
    CALL("nvmlDeviceGetGpuInstanceRemainingCapacity", handle, DEVICE)
    const struct profile *profile = by_id(call.gpu, id);
    if (!is_cut(call.gpu) || !profile)
        return fake_end(is_cut(call.gpu) ? INVALID_ARGUMENT : NOT_SUPPORTED);
    static struct gpu trial; /* guarded by the lock of the call */
    trial = *call.gpu;
    profile = &trial.profiles[profile - call.gpu->profiles];
    *out = 0;
    for (uint32_t i = 0; i < profile->start_count; i++)
        *out += add(&trial, profile, profile->starts[i]) != NULL;
    return fake_end(OK);
}

static int is_alive(uint32_t pid) { return pid && (kill((pid_t)pid, 0) == 0 || errno != ESRCH); }

/* A query of an instance subscribes the process to it until its session ends (gpu_instance_subscription.c). */
static void subscribe(struct gi *gi) {
    uint32_t own = (uint32_t)getpid(), *free = NULL;
    for (uint32_t *pid = gi->subscribers; pid < gi->subscribers + MAX_SUBSCRIBERS; pid++) {
        if (*pid == own)
            return;
        if (!is_alive(*pid))
            free = pid;
    }
    if (free)
        *free = own;
}

void fake_unsubscribe(void) {
    for (unsigned i = 0; i < fake_state->gpu_count; i++)
        for (struct gi *gi = fake_state->gpus[i].gis; gi < fake_state->gpus[i].gis + MAX_GIS; gi++)
            for (int s = 0; s < MAX_SUBSCRIBERS; s++)
                if (gi->subscribers[s] == (uint32_t)getpid())
                    gi->subscribers[s] = 0;
}

/* Whether a process other than this one is subscribed: then it is not destroyed (kernel_mig_manager.c). */
static int is_subscribed(const struct gi *gi) {
    for (int s = 0; s < MAX_SUBSCRIBERS; s++)
        if (gi->subscribers[s] != (uint32_t)getpid() && is_alive(gi->subscribers[s]))
            return 1;
    return 0;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(
    const void *handle, unsigned id, const struct placement *placement, void **out
) {
    CALL("nvmlDeviceCreateGpuInstanceWithPlacement", handle, DEVICE)
    if (!is_cut(call.gpu))
        return fake_end(NOT_SUPPORTED);
    const struct profile *profile = by_id(call.gpu, id);
    if (!profile || !is_placement(profile, placement))
        return fake_end(INVALID_ARGUMENT);
    if (call.gpu->first_refusals && !has_instances(call.gpu)) { /* only the first one changes the state of the GPU */
        call.gpu->first_refusals -= call.gpu->first_refusals != FOR_EVER;
        return fake_end(IN_USE);
    }
    struct gi *gi = add(call.gpu, profile, placement->start);
    if (!gi)
        return fake_end(INSUFFICIENT_RESOURCES);
    *out = fake_handle(GPU_INSTANCE, call.gpu, gi, NULL);
    fake_tell(call.gpu, gi->id, UNKNOWN);
    return fake_end(OK);
}

int nvmlGpuInstanceDestroy(const void *handle) {
    CALL("nvmlGpuInstanceDestroy", handle, GPU_INSTANCE)
    int in_use = call.gi->in_use != 0 || is_subscribed(call.gi);
    for (int i = 0; i < MAX_CIS; i++)
        in_use |= call.gi->cis[i].used != 0;
    if (in_use)
        return fake_end(IN_USE);
    call.gi->used = 0;
    if (!has_instances(call.gpu))
        call.gpu->fabric_probing = call.gpu->fabric_reprobe;
    fake_tell(call.gpu, call.gi->id, UNKNOWN);
    return fake_end(OK);
}

int nvmlDeviceGetGpuInstances(const void *handle, unsigned id, void **out, unsigned *count) {
    CALL("nvmlDeviceGetGpuInstances", handle, DEVICE)
    if (!is_cut(call.gpu))
        return fake_end(NOT_SUPPORTED);
    const struct profile *profile = by_id(call.gpu, id);
    if (!profile)
        return fake_end(INVALID_ARGUMENT);
    *count = 0;
    for (int i = 0; i < MAX_GIS; i++)
        if (call.gpu->gis[i].used && profile_of(call.gpu, &call.gpu->gis[i]) == profile) {
            subscribe(&call.gpu->gis[i]);
            out[(*count)++] = fake_handle(GPU_INSTANCE, call.gpu, &call.gpu->gis[i], NULL);
        }
    return fake_end(OK);
}

int nvmlDeviceGetGpuInstanceById(const void *handle, unsigned id, void **out) {
    CALL("nvmlDeviceGetGpuInstanceById", handle, DEVICE)
    if (!is_cut(call.gpu))
        return fake_end(NOT_SUPPORTED);
    for (int i = 0; i < MAX_GIS; i++)
        if (call.gpu->gis[i].used && call.gpu->gis[i].id == id) {
            subscribe(&call.gpu->gis[i]);
            *out = fake_handle(GPU_INSTANCE, call.gpu, &call.gpu->gis[i], NULL);
            return fake_end(OK);
        }
    return fake_end(NOT_FOUND);
}

int nvmlGpuInstanceGetInfo(const void *handle, struct gi_info *out) {
    CALL("nvmlGpuInstanceGetInfo", handle, GPU_INSTANCE)
    const struct profile *profile = profile_of(call.gpu, call.gi);
    *out = (struct gi_info){fake_handle(DEVICE, call.gpu, NULL, NULL), call.gi->id, profile->id,
        {call.gi->start, profile->memory_slices}};
    return fake_end(OK);
}

int nvmlDeviceGetMaxMigDeviceCount(const void *handle, unsigned *out) {
    CALL("nvmlDeviceGetMaxMigDeviceCount", handle, DEVICE)
    *out = call.gpu->mig_current < 0 || !call.gpu->profile_count ? 0 : whole(call.gpu)->compute_slices;
    return fake_end(OK);
}
