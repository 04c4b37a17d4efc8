/* Processes on a GPU: as many as the state says have it open, with the ids of this process and its successors, and
 * those of the file of nvml_usage.c. */
#include <stdint.h>
#include <unistd.h>

#include "fake.h"

struct process { uint32_t pid; unsigned long long memory; uint32_t gi, ci; };

static int listed(const char *function, const void *handle, unsigned *count, struct process *processes, char kind) {
    CALL(function, handle, DEVICE)
    struct used_process used[MAX_USED];
    uint32_t clients = kind == 'c' ? call.gpu->clients : 0, more = fake_used_processes(call.device, kind, used, MAX_USED);
    if (fake_hides_processes(call.device))
        more = 0;
    uint32_t found = clients + more, room = *count;
    *count = found;
    if (found > 0 && (!processes || room < found))
        return fake_end(INSUFFICIENT_SIZE);
    for (uint32_t i = 0; i < clients; i++)
        processes[i] = (struct process){(uint32_t)getpid() + i, 0, ~0u, ~0u};
    for (uint32_t i = 0; i < more; i++)
        processes[clients + i] = (struct process){used[i].pid, used[i].memory, (uint32_t)used[i].gi, ~0u};
    return fake_end(OK);
}

int nvmlDeviceGetComputeRunningProcesses_v3(const void *handle, unsigned *count, struct process *processes) {
    return listed("nvmlDeviceGetComputeRunningProcesses_v3", handle, count, processes, 'c');
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(const void *handle, unsigned *count, struct process *processes) {
    return listed("nvmlDeviceGetGraphicsRunningProcesses_v3", handle, count, processes, 'g');
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(const void *handle, unsigned *count, struct process *processes) {
    return listed("nvmlDeviceGetMPSComputeRunningProcesses_v3", handle, count, processes, 'm');
}
