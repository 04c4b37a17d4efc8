/* What is in use on the GPUs of the stand-in library, from the text file STATE.use: a line for each of
 *     gpu INDEX gpu% memory% power_mW energy_mJ temperature sm_MHz memory_MHz
 *     process INDEX KIND PID GI memory sm% memory% stamp_us     KIND: c(ompute), g(raphics), m(ps); GI -1: none
 *     instance INDEX GI sm%                                     what GPM tells
 * Without a line, or without the file, a GPU does not support the question. utilisation% -1: no samples of processes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#ifndef STATE_ENVIRONMENT
#define STATE_ENVIRONMENT "FAKE_NVML_STATE"
#endif

struct board { int known, gpu, memory; unsigned power; unsigned long long energy; int temperature; unsigned sm, mem; };
struct utilization { unsigned gpu, memory; };
struct temperature { unsigned version, sensor; int value; };
struct info { unsigned long long stamp; unsigned pid, sm, memory, enc, dec, jpg, ofa; };
struct infos { unsigned version, count; unsigned long long since; struct info *items; };
struct sample { unsigned pid; unsigned long long stamp; unsigned sm, memory, enc, dec; };
struct gpm_metric { unsigned id; int code; double value; char *names[3]; };
struct gpm_question { unsigned version, count; void *earlier, *later; struct gpm_metric metrics[1]; };
struct gpm_support { unsigned version, supported; };

static FILE *use_file(void) {
    char path[4096];
    const char *state = getenv(STATE_ENVIRONMENT);
    snprintf(path, sizeof path, "%s.use", state ? state : "");
    return fopen(path, "re");
}

static struct board board_of(int device) {
    struct board found = {0};
    char line[256];
    FILE *file = use_file();
    while (file && fgets(line, sizeof line, file)) {
        struct board one = {.known = 1};
        int index;
        if (sscanf(line, "gpu %d %d %d %u %llu %d %u %u", &index, &one.gpu, &one.memory, &one.power, &one.energy,
                &one.temperature, &one.sm, &one.mem) == 8 && index == device)
            found = one;
    }
    if (file)
        fclose(file);
    return found;
}

unsigned fake_used_processes(int device, char kind, struct used_process *out, unsigned room) {
    char line[256];
    unsigned found = 0;
    FILE *file = use_file();
    while (file && fgets(line, sizeof line, file)) {
        struct used_process one = {0};
        int index;
        if (sscanf(line, "process %d %c %u %d %llu %u %u %llu", &index, &one.kind, &one.pid, &one.gi, &one.memory,
                &one.sm, &one.mem, &one.stamp) != 8 || index != device || (kind && kind != one.kind))
            continue;
        if (found < room)
            out[found] = one;
        found++;
    }
    if (file)
        fclose(file);
    return found < room ? found : room;
}

#define BOARD(name)                                        \
    CALL(name, handle, DEVICE)                             \
    struct board board = board_of(call.device);            \
    if (!board.known)                                      \
        return fake_end(NOT_SUPPORTED);

int nvmlDeviceGetUtilizationRates(const void *handle, struct utilization *out) {
    BOARD("nvmlDeviceGetUtilizationRates")
    if (is_cut(call.gpu))
        return fake_end(NOT_SUPPORTED);
    *out = (struct utilization){(unsigned)board.gpu, (unsigned)board.memory};
    return fake_end(OK);
}

int nvmlDeviceGetPowerUsage(const void *handle, unsigned *out) {
    BOARD("nvmlDeviceGetPowerUsage")
    *out = board.power;
    return fake_end(OK);
}

int nvmlDeviceGetTotalEnergyConsumption(const void *handle, unsigned long long *out) {
    BOARD("nvmlDeviceGetTotalEnergyConsumption")
    *out = board.energy;
    return fake_end(OK);
}

int nvmlDeviceGetTemperatureV(const void *handle, struct temperature *out) {
    BOARD("nvmlDeviceGetTemperatureV")
    if (out->version != (sizeof *out | 1 << 24))
        return fake_end(ARGUMENT_VERSION_MISMATCH);
    out->value = board.temperature;
    return fake_end(OK);
}

int nvmlDeviceGetTemperature(const void *handle, unsigned sensor, unsigned *out) {
    BOARD("nvmlDeviceGetTemperature")
    *out = (unsigned)board.temperature;
    return fake_end(sensor ? INVALID_ARGUMENT : OK);
}

int nvmlDeviceGetClockInfo(const void *handle, unsigned clock, unsigned *out) {
    BOARD("nvmlDeviceGetClockInfo")
    *out = clock == 1 ? board.sm : board.mem;
    return fake_end(clock == 1 || clock == 2 ? OK : INVALID_ARGUMENT);
}

/* The samples since then; -1 where processes have none. */
static int samples_since(const struct call *call, unsigned long long since, struct used_process *out, unsigned room) {
    struct used_process all[MAX_USED];
    unsigned count = fake_used_processes(call->device, 0, all, MAX_USED), found = 0;
    if (is_cut(call->gpu) || !board_of(call->device).known)
        return -1;
    for (unsigned i = 0; i < count; i++)
        if (all[i].stamp > since && found < room)
            out[found++] = all[i];
    return (int)found;
}

int nvmlDeviceGetProcessesUtilizationInfo(const void *handle, struct infos *infos) {
    CALL("nvmlDeviceGetProcessesUtilizationInfo", handle, DEVICE)
    struct used_process found[MAX_USED];
    int count = samples_since(&call, infos->since, found, MAX_USED);
    if (infos->version != (sizeof *infos | 1 << 24))
        return fake_end(ARGUMENT_VERSION_MISMATCH);
    if (count <= 0)
        return fake_end(count < 0 ? NOT_SUPPORTED : NOT_FOUND);
    unsigned room = infos->count;
    infos->count = (unsigned)count;
    if (!infos->items || room < (unsigned)count)
        return fake_end(INSUFFICIENT_SIZE);
    for (int i = 0; i < count; i++)
        infos->items[i] = (struct info){.stamp = found[i].stamp, .pid = found[i].pid, .sm = found[i].sm,
            .memory = found[i].mem};
    return fake_end(OK);
}

int nvmlDeviceGetProcessUtilization(
    const void *handle, struct sample *items, unsigned *room, unsigned long long since
) {
    CALL("nvmlDeviceGetProcessUtilization", handle, DEVICE)
    struct used_process found[MAX_USED];
    int count = samples_since(&call, since, found, MAX_USED);
    if (count <= 0)
        return fake_end(count < 0 ? NOT_SUPPORTED : NOT_FOUND);
    unsigned had = *room;
    *room = (unsigned)count;
    if (!items || had < (unsigned)count)
        return fake_end(INSUFFICIENT_SIZE);
    for (int i = 0; i < count; i++)
        items[i] = (struct sample){.pid = found[i].pid, .stamp = found[i].stamp, .sm = found[i].sm,
            .memory = found[i].mem};
    return fake_end(OK);
}

static int percent_of_instance(int device, unsigned gi) {
    char line[256];
    int found = -1, index, percent;
    unsigned id;
    FILE *file = use_file();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "instance %d %u %d", &index, &id, &percent) == 3 && index == device && id == gi)
            found = percent;
    if (file)
        fclose(file);
    return found;
}

int nvmlGpmQueryDeviceSupport(const void *handle, struct gpm_support *out) {
    CALL("nvmlGpmQueryDeviceSupport", handle, DEVICE)
    out->supported = call.gpu->capability_major >= 9;
    return fake_end(OK);
}

/* A sample is a number that is set; those not freed are counted. */
static int gpm_samples;
int fakeNvmlGpmSamples(void) { return gpm_samples; }

int nvmlGpmSampleAlloc(void **out) {
    *out = calloc(1, sizeof(int));
    gpm_samples += *out != NULL;
    return *out ? OK : INSUFFICIENT_RESOURCES;
}

int nvmlGpmSampleFree(void *sample) {
    gpm_samples -= sample != NULL;
    free(sample);
    return OK;
}

int nvmlGpmMigSampleGet(const void *handle, unsigned gi, int *sample) {
    CALL("nvmlGpmMigSampleGet", handle, DEVICE)
    if (!is_cut(call.gpu) || call.gpu->capability_major < 9)
        return fake_end(NOT_SUPPORTED);
    *sample = percent_of_instance(call.device, gi);
    return fake_end(*sample < 0 ? NOT_FOUND : OK);
}

int nvmlGpmMetricsGet(struct gpm_question *question) {
    if (question->version != 1 || question->count != 1 || !question->earlier || !question->later)
        return INVALID_ARGUMENT;
    struct gpm_metric *metric = question->metrics;
    metric->code = metric->id == 2 ? OK : NOT_SUPPORTED;
    metric->value = (*(int *)question->earlier + *(int *)question->later) / 2.0;
    return OK;
}
