/* What is at the other end of NVLinks in the stand-in library; nvml_health.c has their state. */
#include <string.h>

#include "fake.h"

struct pci_info {
    char bus_id_legacy[16];
    uint32_t domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

static int check(const struct call *call, unsigned link) {
    if (!call->gpu->links)
        return NOT_SUPPORTED;
    return link < call->gpu->links && link < MAX_LINKS ? OK : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(const void *handle, unsigned link, unsigned *out) {
    CALL("nvmlDeviceGetNvLinkRemoteDeviceType", handle, DEVICE)
    code = check(&call, link);
    return fake_end(code == OK ? fake_give_number(call.gpu->link_types[link], out) : code);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(const void *handle, unsigned link, struct pci_info *out) {
    CALL("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, DEVICE)
    code = check(&call, link);
    if (code != OK)
        return fake_end(code);
    memset(out, 0, sizeof *out);
    return fake_end(fake_give_text(call.gpu->link_ends[link], out->bus_id, sizeof out->bus_id));
}
