/* What is inside GPU instances of the stand-in library: compute instances and their MIG devices.
 *
 * Rules as in nvml.h: no more slices than the GPU instance has; a profile's id is its number; nothing in use is
 * destroyed.
 */
#include <stdio.h>
#include <string.h>

#include "fake.h"

#define KNOWN_COMPUTE_PROFILES 9u
#define COMPUTE_PROFILE_V2 0x2000088u
#define REFUSED_COMPUTE_PROFILE 8u /* 7_SLICE_NVL: boards list it and then do not support it */

struct placement { uint32_t start, size; };
struct compute_info_v1 { uint32_t id, slices, instances, multiprocessors, shared[5]; };
struct compute_info_v2 { uint32_t version, id, slices, instances, multiprocessors, shared[5]; char name[96]; };
struct ci_info { void *device, *gi; uint32_t id, profile; struct placement placement; };
struct attributes {
    uint32_t multiprocessors, shared[5], gi_slices, ci_slices;
    unsigned long long memory_mb;
};

static const struct compute_profile *compute_of(const struct gpu *gpu, const struct gi *gi, const struct ci *ci) {
    return &profile_of(gpu, gi)->compute[ci->profile];
}

void fake_mig_uuid(const struct gpu *gpu, const struct gi *gi, const struct ci *ci, char out[48]) {
    snprintf(out, 48, "%.47s", gi->id < MAX_GI_IDS ? gpu->mig_uuids[gi->id] : "");
    size_t length = strlen(out);
    if (ci->id && length)
        out[length - 1] = "0123456789abcdef"[((unsigned)out[length - 1] + ci->id) & 0xF];
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
