/* Processes on a GPU: as many as the state says have it open, with the ids of this process and its successors. */
#include <stdint.h>
#include <unistd.h>

#include "fake.h"

struct process { uint32_t pid; unsigned long long memory; uint32_t gi, ci; };

static int listed(const char *function, const void *handle, unsigned *count, struct process *processes, int has_any) {
    CALL(function, handle, DEVICE)
    uint32_t found = has_any ? call.gpu->clients : 0, room = *count;
    *count = found;
    if (found > 0 && (!processes || room < found))
        return fake_end(INSUFFICIENT_SIZE);
    for (uint32_t i = 0; i < found; i++)
        processes[i] = (struct process){(uint32_t)getpid() + i, 0, ~0u, ~0u};
    return fake_end(OK);
}

int nvmlDeviceGetComputeRunningProcesses_v3(const void *handle, unsigned *count, struct process *processes) {
    return listed("nvmlDeviceGetComputeRunningProcesses_v3", handle, count, processes, 1);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(const void *handle, unsigned *count, struct process *processes) {
    return listed("nvmlDeviceGetGraphicsRunningProcesses_v3", handle, count, processes, 0);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(const void *handle, unsigned *count, struct process *processes) {
    return listed("nvmlDeviceGetMPSComputeRunningProcesses_v3", handle, count, processes, 0);
}
