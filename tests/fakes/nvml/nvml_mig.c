/* MIG of the stand-in library: mode, profiles, placements, instances and MIG devices, by the tables of the state file.
 *
 * Rules as in nvml.h and NVIDIA's MIG user guide: no memory slice twice, no more compute slices and engines than the
 * profile of the whole GPU has, no more instances of a profile than it says; a GPU instance is destroyed empty.
 */
#include <stdio.h>
#include <string.h>

#include "fake.h"

#define KNOWN_PROFILES 18u
#define KNOWN_COMPUTE_PROFILES 9u
#define PROFILE_V2 0x2000098u
#define COMPUTE_PROFILE_V2 0x2000088u
#define REFUSED_COMPUTE_PROFILE 8u /* 7_SLICE_NVL: boards list it and then do not support it */
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
struct compute_info_v1 { uint32_t id, slices, instances, multiprocessors, shared[5]; };
struct compute_info_v2 { uint32_t version, id, slices, instances, multiprocessors, shared[5]; char name[96]; };
struct ci_info { void *device, *gi; uint32_t id, profile; struct placement placement; };
struct attributes {
    uint32_t multiprocessors, shared[5], gi_slices, ci_slices;
    unsigned long long memory_mb;
};

static const struct profile *profile_of(const struct gpu *gpu, const struct gi *gi) {
    return &gpu->profiles[gi->profile];
}

static const struct compute_profile *compute_of(const struct gpu *gpu, const struct gi *gi, const struct ci *ci) {
    return &profile_of(gpu, gi)->compute[ci->profile];
}

static int is_cut(const struct gpu *gpu) { return gpu->mig_current == 1; }

static const struct profile *by_id(const struct gpu *gpu, uint32_t id) {
    for (uint32_t i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].id == id)
            return &gpu->profiles[i];
    return NULL;
}

void fake_mig_uuid(const struct gpu *gpu, const struct gi *gi, const struct ci *ci, char out[48]) {
    snprintf(out, 48, "%.47s", gi->id < MAX_GI_IDS ? gpu->mig_uuids[gi->id] : "");
    size_t length = strlen(out);
    if (ci->id && length)
        out[length - 1] = "0123456789abcdef"[((unsigned)out[length - 1] + ci->id) & 0xF];
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

int nvmlDeviceCreateGpuInstanceWithPlacement(
    const void *handle, unsigned id, const struct placement *placement, void **out
) {
    CALL("nvmlDeviceCreateGpuInstanceWithPlacement", handle, DEVICE)
    if (!is_cut(call.gpu))
        return fake_end(NOT_SUPPORTED);
    const struct profile *profile = by_id(call.gpu, id);
    if (!profile || !is_placement(profile, placement))
        return fake_end(INVALID_ARGUMENT);
    struct gi *gi = add(call.gpu, profile, placement->start);
    if (!gi)
        return fake_end(INSUFFICIENT_RESOURCES);
    *out = fake_handle(GPU_INSTANCE, call.gpu, gi, NULL);
    fake_tell(call.gpu, gi->id, UNKNOWN);
    return fake_end(OK);
}

int nvmlGpuInstanceDestroy(const void *handle) {
    CALL("nvmlGpuInstanceDestroy", handle, GPU_INSTANCE)
    int in_use = call.gi->in_use != 0;
    for (int i = 0; i < MAX_CIS; i++)
        in_use |= call.gi->cis[i].used != 0;
    if (in_use)
        return fake_end(IN_USE);
    call.gi->used = 0;
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
        if (call.gpu->gis[i].used && profile_of(call.gpu, &call.gpu->gis[i]) == profile)
            out[(*count)++] = fake_handle(GPU_INSTANCE, call.gpu, &call.gpu->gis[i], NULL);
    return fake_end(OK);
}

int nvmlDeviceGetGpuInstanceById(const void *handle, unsigned id, void **out) {
    CALL("nvmlDeviceGetGpuInstanceById", handle, DEVICE)
    if (!is_cut(call.gpu))
        return fake_end(NOT_SUPPORTED);
    for (int i = 0; i < MAX_GIS; i++)
        if (call.gpu->gis[i].used && call.gpu->gis[i].id == id) {
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

static int find_compute(const struct profile *profile, uint32_t number, uint32_t *index) {
    if (number >= KNOWN_COMPUTE_PROFILES)
        return INVALID_ARGUMENT;
    for (uint32_t i = 0; i < profile->compute_count; i++)
        if (profile->compute[i].number == number) {
            *index = i;
            return OK;
        }
    return NOT_SUPPORTED;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfo(
    const void *handle, unsigned number, unsigned engine, struct compute_info_v1 *out
) {
    CALL("nvmlGpuInstanceGetComputeInstanceProfileInfo", handle, GPU_INSTANCE)
    const struct profile *profile = profile_of(call.gpu, call.gi);
    uint32_t index = 0;
    code = engine ? INVALID_ARGUMENT : find_compute(profile, number, &index);
    if (code != OK)
        return fake_end(code);
    const struct compute_profile *compute = &profile->compute[index];
    *out = (struct compute_info_v1){.id = number, .slices = compute->slices,
        .instances = profile->compute_slices / compute->slices, .multiprocessors = compute->multiprocessors};
    return fake_end(OK);
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    const void *handle, unsigned number, unsigned engine, struct compute_info_v2 *out
) {
    CALL("nvmlGpuInstanceGetComputeInstanceProfileInfoV", handle, GPU_INSTANCE)
    const struct profile *profile = profile_of(call.gpu, call.gi);
    uint32_t index = 0;
    if (out->version != COMPUTE_PROFILE_V2)
        return fake_end(ARGUMENT_VERSION_MISMATCH);
    code = engine ? INVALID_ARGUMENT : find_compute(profile, number, &index);
    if (code != OK)
        return fake_end(code);
    const struct compute_profile *compute = &profile->compute[index];
    *out = (struct compute_info_v2){.version = COMPUTE_PROFILE_V2, .id = number, .slices = compute->slices,
        .instances = profile->compute_slices / compute->slices, .multiprocessors = compute->multiprocessors};
    snprintf(out->name, sizeof out->name, "MIG %uc.%s", compute->slices, profile->name);
    return fake_end(OK);
}

int nvmlGpuInstanceCreateComputeInstance(const void *handle, unsigned id, void **out) {
    CALL("nvmlGpuInstanceCreateComputeInstance", handle, GPU_INSTANCE)
    const struct profile *profile = profile_of(call.gpu, call.gi);
    uint32_t index = 0, taken = 0, ids = 0;
    code = id == REFUSED_COMPUTE_PROFILE ? NOT_SUPPORTED : find_compute(profile, id, &index);
    if (code != OK)
        return fake_end(code);
    struct ci *free = NULL;
    for (struct ci *ci = call.gi->cis; ci < call.gi->cis + MAX_CIS; ci++) {
        if (ci->used) {
            taken += compute_of(call.gpu, call.gi, ci)->slices;
            ids |= 1u << ci->id;
        } else if (!free) {
            free = ci;
        }
    }
    if (!free || taken + profile->compute[index].slices > profile->compute_slices)
        return fake_end(INSUFFICIENT_RESOURCES);
    *free = (struct ci){.used = 1, .serial = ++call.gpu->serial, .profile = index, .start = taken};
    while (ids & 1u << free->id)
        free->id++;
    *out = fake_handle(COMPUTE_INSTANCE, call.gpu, call.gi, free);
    fake_tell(call.gpu, call.gi->id, free->id);
    return fake_end(OK);
}

int nvmlComputeInstanceDestroy(const void *handle) {
    CALL("nvmlComputeInstanceDestroy", handle, COMPUTE_INSTANCE)
    if (call.ci->in_use || call.gi->in_use)
        return fake_end(IN_USE);
    call.ci->used = 0;
    fake_tell(call.gpu, call.gi->id, call.ci->id);
    return fake_end(OK);
}

int nvmlGpuInstanceGetComputeInstances(const void *handle, unsigned id, void **out, unsigned *count) {
    CALL("nvmlGpuInstanceGetComputeInstances", handle, GPU_INSTANCE)
    *count = 0;
    for (int i = 0; i < MAX_CIS; i++) {
        const struct ci *ci = &call.gi->cis[i];
        if (ci->used && compute_of(call.gpu, call.gi, ci)->number == id)
            out[(*count)++] = fake_handle(COMPUTE_INSTANCE, call.gpu, call.gi, ci);
    }
    return fake_end(OK);
}

int nvmlGpuInstanceGetComputeInstanceById(const void *handle, unsigned id, void **out) {
    CALL("nvmlGpuInstanceGetComputeInstanceById", handle, GPU_INSTANCE)
    for (int i = 0; i < MAX_CIS; i++)
        if (call.gi->cis[i].used && call.gi->cis[i].id == id) {
            *out = fake_handle(COMPUTE_INSTANCE, call.gpu, call.gi, &call.gi->cis[i]);
            return fake_end(OK);
        }
    return fake_end(NOT_FOUND);
}

int nvmlComputeInstanceGetInfo_v2(const void *handle, struct ci_info *out) {
    CALL("nvmlComputeInstanceGetInfo_v2", handle, COMPUTE_INSTANCE)
    const struct compute_profile *compute = compute_of(call.gpu, call.gi, call.ci);
    *out = (struct ci_info){fake_handle(MIG_DEVICE, call.gpu, call.gi, call.ci),
        fake_handle(GPU_INSTANCE, call.gpu, call.gi, NULL), call.ci->id, compute->number,
        {call.ci->start, compute->slices}};
    return fake_end(OK);
}

int nvmlDeviceGetMaxMigDeviceCount(const void *handle, unsigned *out) {
    CALL("nvmlDeviceGetMaxMigDeviceCount", handle, DEVICE)
    *out = call.gpu->mig_current < 0 || !call.gpu->profile_count ? 0 : whole(call.gpu)->compute_slices;
    return fake_end(OK);
}

int nvmlDeviceGetMigDeviceHandleByIndex(const void *handle, unsigned index, void **out) {
    CALL("nvmlDeviceGetMigDeviceHandleByIndex", handle, DEVICE)
    if (!is_cut(call.gpu))
        return fake_end(NOT_SUPPORTED);
    for (const struct gi *gi = call.gpu->gis; gi < call.gpu->gis + MAX_GIS; gi++)
        for (const struct ci *ci = gi->cis; gi->used && ci < gi->cis + MAX_CIS; ci++)
            if (ci->used && index-- == 0) {
                *out = fake_handle(MIG_DEVICE, call.gpu, gi, ci);
                return fake_end(OK);
            }
    return fake_end(NOT_FOUND);
}

int nvmlDeviceIsMigDeviceHandle(const void *handle, unsigned *out) {
    CALL("nvmlDeviceIsMigDeviceHandle", handle, DEVICE | MIG_DEVICE)
    *out = call.kind == MIG_DEVICE;
    return fake_end(OK);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const void *handle, void **out) {
    CALL("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle, MIG_DEVICE)
    *out = fake_handle(DEVICE, call.gpu, NULL, NULL);
    return fake_end(OK);
}

int nvmlDeviceGetGpuInstanceId(const void *handle, unsigned *out) {
    CALL("nvmlDeviceGetGpuInstanceId", handle, MIG_DEVICE)
    *out = call.gi->id;
    return fake_end(OK);
}

int nvmlDeviceGetComputeInstanceId(const void *handle, unsigned *out) {
    CALL("nvmlDeviceGetComputeInstanceId", handle, MIG_DEVICE)
    *out = call.ci->id;
    return fake_end(OK);
}

int nvmlDeviceGetAttributes_v2(const void *handle, struct attributes *out) {
    CALL("nvmlDeviceGetAttributes_v2", handle, DEVICE | MIG_DEVICE)
    if (call.kind != MIG_DEVICE)
        return fake_end(NOT_SUPPORTED);
    const struct profile *profile = profile_of(call.gpu, call.gi);
    const struct compute_profile *compute = compute_of(call.gpu, call.gi, call.ci);
    *out = (struct attributes){.multiprocessors = compute->multiprocessors, .gi_slices = profile->compute_slices,
        .ci_slices = compute->slices, .memory_mb = profile->memory_mb};
    memcpy(out->shared, profile->engines, sizeof out->shared);
    return fake_end(OK);
}
