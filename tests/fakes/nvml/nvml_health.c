/* What a GPU says of its health in the stand-in library, but for events and fields. */
#include <string.h>

#include "fake.h"

int nvmlDeviceGetRemappedRows(
    const void *handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
    CALL("nvmlDeviceGetRemappedRows", handle, DEVICE)
    for (int i = 0; i < MAX_GIS; i++)
        if (call.gpu->gis[i].used) /* nvml.h: not supported while MIG instances exist */
            return fake_end(NOT_SUPPORTED);
    *correctable = *uncorrectable = 0;
    code = fake_give_number(call.gpu->rows_pending, pending);
    return fake_end(code == OK ? fake_give_number(call.gpu->rows_failed, failed) : code);
}

int nvmlDeviceGetRetiredPagesPendingStatus(const void *handle, unsigned *out) {
    CALL("nvmlDeviceGetRetiredPagesPendingStatus", handle, DEVICE)
    return fake_end(fake_give_number(call.gpu->pages_pending, out));
}

/* With MIG no link of a GPU is up, at either end (kernel_mig_manager.c, kmigmgrIsMIGNvlinkP2PSupported). */
static int is_shut_at_end(const struct gpu *gpu, unsigned link) {
    for (unsigned i = 0; link < MAX_LINKS && gpu->link_ends[link][0] && i < fake_state->gpu_count; i++)
        if (!strcmp(fake_state->gpus[i].bus_id, gpu->link_ends[link]))
            return is_cut(&fake_state->gpus[i]);
    return 0;
}

int nvmlDeviceGetNvLinkState(const void *handle, unsigned link, unsigned *out) {
    CALL("nvmlDeviceGetNvLinkState", handle, DEVICE)
    if (!call.gpu->links)
        return fake_end(NOT_SUPPORTED);
    if (link >= call.gpu->links)
        return fake_end(INVALID_ARGUMENT);
    *out = !is_cut(call.gpu) && !is_shut_at_end(call.gpu, link) && !(call.gpu->links_down >> link & 1);
    return fake_end(OK);
}
