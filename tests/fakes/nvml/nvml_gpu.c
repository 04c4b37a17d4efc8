/* GPUs as a whole in the stand-in library: the driver, handles, properties, compute mode and the NVLink fabric. */
#include <stdio.h>
#include <string.h>

#include "fake.h"

#define ADDRESSING_MODE_V1 0x1000008u
#define FIELD_RESETLESS_MIG 184u
#define FIELD_PROFILES_WITHOUT_MIG 199u
#define FIELD_RECOVERY_ACTION 230u
#define FABRIC_V2 0x2000024u
#define FABRIC_V3 0x3000028u
#define FABRIC_IN_PROGRESS 2u

struct pci_info {
    char bus_id_legacy[16];
    uint32_t domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct addressing { uint32_t version, value; };
struct field_value {
    uint32_t id, scope;
    int64_t timestamp, latency_us;
    uint32_t type;
    int32_t code;
    union { uint32_t ui; uint64_t ull; double d; } value;
};
struct fabric_v1 { uint8_t cluster[16]; uint32_t status, clique; uint8_t state, padding[3]; };
struct fabric_v3 { /* version 2 ends before the summary */
    uint32_t version;
    struct fabric_v1 info;
    uint32_t health_mask;
    uint8_t health_summary;
};

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    CALL("nvmlSystemGetDriverVersion", NULL, NONE)
    return fake_end(fake_give_text(fake_state->driver_version, out, size));
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    CALL("nvmlSystemGetNVMLVersion", NULL, NONE)
    char text[128];
    snprintf(text, sizeof text, "%u.%s", (unsigned)fake_state->cuda_version / 1000, fake_state->driver_version);
    return fake_end(fake_give_text(text, out, size));
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    CALL("nvmlSystemGetCudaDriverVersion_v2", NULL, NONE)
    *out = (int)fake_state->cuda_version;
    return fake_end(OK);
}

struct conf_compute { unsigned environment, feature, devtools; };

int nvmlSystemGetConfComputeState(struct conf_compute *out) {
    CALL("nvmlSystemGetConfComputeState", NULL, NONE)
    out->environment = 2;
    out->devtools = fake_state->conf_devtools > 0;
    return fake_end(fake_give_number(fake_state->conf_compute, &out->feature));
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    CALL("nvmlDeviceGetCount_v2", NULL, NONE)
    *out = fake_session_count();
    return fake_end(OK);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    CALL("nvmlDeviceGetHandleByIndex_v2", (const void *)(uintptr_t)index, BY_INDEX)
    fake_open_gpu(call.device);
    *out = fake_handle(DEVICE, call.gpu, NULL, NULL);
    return fake_end(OK);
}

int nvmlDeviceGetUUID(const void *handle, char *out, unsigned size) {
    CALL("nvmlDeviceGetUUID", handle, DEVICE | MIG_DEVICE)
    if (!call.ci)
        return fake_end(fake_give_text(call.gpu->uuid, out, size));
    char uuid[48];
    fake_mig_uuid(call.gpu, call.gi, call.ci, uuid);
    return fake_end(fake_give_text(uuid, out, size));
}

int nvmlDeviceGetName(const void *handle, char *out, unsigned size) {
    CALL("nvmlDeviceGetName", handle, DEVICE | MIG_DEVICE)
    char text[160];
    snprintf(text, sizeof text, call.gi ? "%s MIG %s" : "%s", call.gpu->name,
             call.gi ? call.gpu->profiles[call.gi->profile].name : "");
    return fake_end(fake_give_text(call.gpu->name[0] ? text : "", out, size));
}

int nvmlDeviceGetMinorNumber(const void *handle, unsigned *out) {
    CALL("nvmlDeviceGetMinorNumber", handle, DEVICE)
    return fake_end(fake_give_number(call.gpu->minor, out));
}

int nvmlDeviceGetBrand(const void *handle, unsigned *out) {
    CALL("nvmlDeviceGetBrand", handle, DEVICE)
    return fake_end(fake_give_number(call.gpu->brand, out));
}

int nvmlDeviceGetArchitecture(const void *handle, unsigned *out) {
    CALL("nvmlDeviceGetArchitecture", handle, DEVICE)
    return fake_end(fake_give_number(call.gpu->architecture, out));
}

int nvmlDeviceGetCudaComputeCapability(const void *handle, int *major, int *minor) {
    CALL("nvmlDeviceGetCudaComputeCapability", handle, DEVICE)
    if (call.gpu->capability_major < 0)
        return fake_end(NOT_SUPPORTED);
    *major = call.gpu->capability_major;
    *minor = call.gpu->capability_minor;
    return fake_end(OK);
}

/* What processes have of the GPU, or of one of its instances. */
static unsigned long long memory_in_use(const struct call *call) {
    struct used_process used[MAX_USED];
    unsigned long long found = 0;
    for (unsigned i = fake_used_processes(call->device, 'c', used, MAX_USED); i > 0; i--)
        if (used[i - 1].memory != ~0ull && (!call->gi || used[i - 1].gi == (int)call->gi->id))
            found += used[i - 1].memory;
    return found - fake_shared_bytes(call->device);
}

int nvmlDeviceGetMemoryInfo(const void *handle, struct memory *out) {
    CALL("nvmlDeviceGetMemoryInfo", handle, DEVICE | MIG_DEVICE)
    unsigned long long total = (unsigned long long)call.gpu->memory_bytes;
    if (call.gi)
        total = call.gpu->profiles[call.gi->profile].memory_mb << 20;
    else if (call.gpu->memory_bytes < 0)
        return fake_end(NOT_SUPPORTED);
    unsigned long long in_use = memory_in_use(&call);
    *out = (struct memory){total, total - in_use, in_use};
    return fake_end(OK);
}

int nvmlDeviceGetMemoryInfo_v2(const void *handle, struct memory_v2 *out) {
    CALL("nvmlDeviceGetMemoryInfo_v2", handle, DEVICE)
    if (out->version != (sizeof *out | 2 << 24))
        return fake_end(ARGUMENT_VERSION_MISMATCH);
    if (call.gpu->memory_bytes < 0 || call.gpu->reserved_bytes < 0)
        return fake_end(NOT_SUPPORTED);
    unsigned long long total = (unsigned long long)call.gpu->memory_bytes;
    unsigned long long reserved = (unsigned long long)call.gpu->reserved_bytes;
    unsigned long long in_use = memory_in_use(&call);
    *out = (struct memory_v2){out->version, total, reserved, total - reserved - in_use, in_use};
    return fake_end(OK);
}

int nvmlDeviceGetPciInfo_v3(const void *handle, struct pci_info *out) {
    CALL("nvmlDeviceGetPciInfo_v3", handle, DEVICE)
    const char *bus_id = call.gpu->bus_id;
    if (!bus_id[0])
        return fake_end(NOT_SUPPORTED);
    memset(out, 0, sizeof *out);
    memcpy(out->bus_id, bus_id, sizeof out->bus_id);
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%.15s", strlen(bus_id) > 4 ? bus_id + 4 : "");
    out->pci_device_id = call.gpu->pci_device_id;
    sscanf(bus_id, "%8x:%2x:%2x", &out->domain, &out->bus, &out->device);
    return fake_end(OK);
}

int nvmlDeviceGetAddressingMode(const void *handle, struct addressing *out) {
    CALL("nvmlDeviceGetAddressingMode", handle, DEVICE)
    if (out->version != ADDRESSING_MODE_V1)
        return fake_end(ARGUMENT_VERSION_MISMATCH);
    return fake_end(fake_give_number(call.gpu->addressing_mode, &out->value));
}

int nvmlDeviceGetVirtualizationMode(const void *handle, unsigned *out) {
    CALL("nvmlDeviceGetVirtualizationMode", handle, DEVICE)
    return fake_end(fake_give_number(call.gpu->virtualization, out));
}

int nvmlDeviceGetComputeMode(const void *handle, unsigned *out) {
    CALL("nvmlDeviceGetComputeMode", handle, DEVICE)
    return fake_end(fake_give_number(call.gpu->compute_mode, out));
}

int nvmlDeviceSetComputeMode(const void *handle, unsigned mode) {
    CALL("nvmlDeviceSetComputeMode", handle, DEVICE)
    if (call.gpu->mig_current > 0)
        return fake_end(NOT_SUPPORTED);
    if (mode == 1 || mode > 3)
        return fake_end(INVALID_ARGUMENT);
    call.gpu->compute_mode = (int32_t)mode;
    return fake_end(OK);
}

int nvmlDeviceGetFieldValues(const void *handle, int number, struct field_value *values) {
    CALL("nvmlDeviceGetFieldValues", handle, DEVICE)
    for (int i = 0; i < number; i++) {
        struct field_value *field = &values[i];
        int32_t value = field->id == FIELD_RESETLESS_MIG ? call.gpu->resetless
            : field->id == FIELD_RECOVERY_ACTION ? call.gpu->recovery_action
            : field->id == FIELD_PROFILES_WITHOUT_MIG && call.gpu->mig_current >= 0 ? !call.gpu->profiles_need_mode : -1;
        field->type = 1; /* NVML_VALUE_TYPE_UNSIGNED_INT */
        field->code = value < 0 ? NOT_SUPPORTED : OK;
        field->value.ull = value < 0 ? 0 : (uint64_t)value;
    }
    return fake_end(OK);
}

/* State and outcome of the probe. After the last GPU instance is gone it runs again, for as many looks as it is told. */
static int read_fabric(struct gpu *gpu, struct fabric_v1 *out) {
    if (gpu->fabric_state < 0)
        return NOT_SUPPORTED;
    *out = (struct fabric_v1){.status = (uint32_t)gpu->fabric_status, .state = (uint8_t)gpu->fabric_state,
        .clique = gpu->fabric_clique};
    memcpy(out->cluster, gpu->fabric_cluster, sizeof out->cluster);
    memset(out->padding, 0xEE, sizeof out->padding); /* the state is one byte; bindings declare four */
    if (gpu->fabric_probing) {
        out->state = FABRIC_IN_PROGRESS;
        gpu->fabric_probing -= gpu->fabric_probing != FOR_EVER;
    }
    return OK;
}

int nvmlDeviceGetGpuFabricInfo(const void *handle, struct fabric_v1 *out) {
    CALL("nvmlDeviceGetGpuFabricInfo", handle, DEVICE)
    return fake_end(read_fabric(call.gpu, out));
}

int nvmlDeviceGetGpuFabricInfoV(const void *handle, struct fabric_v3 *out) {
    CALL("nvmlDeviceGetGpuFabricInfoV", handle, DEVICE)
    if (out->version != FABRIC_V2 && out->version != FABRIC_V3)
        return fake_end(ARGUMENT_VERSION_MISMATCH);
    out->health_mask = call.gpu->fabric_health;
    if (out->version == FABRIC_V3)
        out->health_summary = 0;
    return fake_end(read_fabric(call.gpu, &out->info));
}
