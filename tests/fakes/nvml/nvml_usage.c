/* What is in use on the GPUs of the stand-in library, from the text file STATE.use: a line for each of
 *     gpu INDEX gpu% memory% power_mW energy_mJ temperature sm_MHz memory_MHz [enc% dec% jpg% ofa%]
 *     process INDEX KIND PID GI memory sm% memory% stamp_us [enc% dec% jpg% ofa%]
 *                                   KIND: c(ompute), g(raphics), m(ps); GI -1: none; stamps are of the GPU's clock
 *     sample INDEX PID stamp_us sm% memory% [enc% dec% jpg% ofa%]   of a process; the ring has the last RING of a GPU
 *     instance INDEX GI sm% [dec%]  what GPM tells; decoders -1: they are not supported
 *     shared INDEX bytes            memory that several processes have by CUDA IPC: it is listed for each of them
 *     hidden INDEX                  processes are of another PID namespace: none is listed
 * Without a line, or without the file, a GPU does not support the question. utilisation% -1: no samples of processes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#ifndef STATE_ENVIRONMENT
#define STATE_ENVIRONMENT "FAKE_NVML_STATE"
#endif

#define RING 72 /* ctrl2080perf.h */

struct board { int known, gpu, memory, engines[4]; unsigned power; unsigned long long energy; int temperature; unsigned sm, mem; };
struct utilization { unsigned gpu, memory; };
struct temperature { unsigned version, sensor; int value; };
struct info { unsigned long long stamp; unsigned pid, sm, memory, enc, dec, jpg, ofa; };
struct infos { unsigned version, count; unsigned long long since; struct info *items; };
struct sample { unsigned pid; unsigned long long stamp; unsigned sm, memory, enc, dec; };
struct gpm_metric { unsigned id; int code; double value; char *names[3]; };
struct gpm_question { unsigned version, count; void *earlier, *later; struct gpm_metric metrics[]; };
struct gpm_sample { int sm, decoders; };
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
        int *engines = one.engines;
        if (sscanf(line, "gpu %d %d %d %u %llu %d %u %u %d %d %d %d", &index, &one.gpu, &one.memory, &one.power,
                &one.energy, &one.temperature, &one.sm, &one.mem, engines, engines + 1, engines + 2, engines + 3) >= 8
                && index == device)
            found = one;
    }
    if (file)
        fclose(file);
    return found;
}

/* The number in a line of that kind and GPU; 0 without, -1 for a line without a number. */
static long long number_of(const char *kind, int device) {
    char line[256], name[16];
    long long found = 0, number;
    int index;
    FILE *file = use_file();
    while (file && fgets(line, sizeof line, file)) {
        int fields = sscanf(line, "%15s %d %lld", name, &index, &number);
        if (fields >= 2 && !strcmp(name, kind) && index == device)
            found = fields == 3 ? number : -1;
    }
    if (file)
        fclose(file);
    return found;
}

unsigned long long fake_shared_bytes(int device) { return (unsigned long long)number_of("shared", device); }
int fake_hides_processes(int device) { return number_of("hidden", device) != 0; }

unsigned fake_used_processes(int device, char kind, struct used_process *out, unsigned room) {
    char line[256];
    unsigned found = 0;
    FILE *file = use_file();
    while (file && fgets(line, sizeof line, file)) {
        struct used_process one = {0};
        unsigned *engines = one.engines;
        int index;
        int is_process = sscanf(line, "process %d %c %u %d %llu %u %u %llu %u %u %u %u", &index, &one.kind, &one.pid,
                &one.gi, &one.memory, &one.sm, &one.mem, &one.stamp, engines, engines + 1, engines + 2, engines + 3) >= 8;
        int is_sample = !is_process && !kind && sscanf(line, "sample %d %u %llu %u %u %u %u %u %u", &index, &one.pid,
                &one.stamp, &one.sm, &one.mem, engines, engines + 1, engines + 2, engines + 3) >= 5;
        if (!(is_process || is_sample) || index != device || (kind && kind != one.kind))
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

#define ENGINE(name, number)                                                          \
    int name(const void *handle, unsigned *out, unsigned *period_us) {                \
        BOARD(#name)                                                                  \
        if (is_cut(call.gpu) || board.engines[number] < 0)                            \
            return fake_end(NOT_SUPPORTED);                                           \
        *out = (unsigned)board.engines[number];                                       \
        *period_us = 166666;                                                          \
        return fake_end(OK);                                                          \
    }

ENGINE(nvmlDeviceGetEncoderUtilization, 0)
ENGINE(nvmlDeviceGetDecoderUtilization, 1)
ENGINE(nvmlDeviceGetJpgUtilization, 2)
ENGINE(nvmlDeviceGetOfaUtilization, 3)

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
    for (unsigned i = count > RING ? count - RING : 0; i < count; i++)
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
            .memory = found[i].mem, .enc = found[i].engines[0], .dec = found[i].engines[1],
            .jpg = found[i].engines[2], .ofa = found[i].engines[3]};
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
            .memory = found[i].mem, .enc = found[i].engines[0], .dec = found[i].engines[1]};
    return fake_end(OK);
}

static struct gpm_sample sample_of(int device, unsigned gi) {
    char line[256];
    struct gpm_sample found = {-1, 0};
    int index;
    unsigned id;
    FILE *file = use_file();
    while (file && fgets(line, sizeof line, file)) {
        struct gpm_sample one = {0};
        if (sscanf(line, "instance %d %u %d %d", &index, &id, &one.sm, &one.decoders) >= 3 && index == device && id == gi)
            found = one;
    }
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
    *out = calloc(1, sizeof(struct gpm_sample));
    gpm_samples += *out != NULL;
    return *out ? OK : INSUFFICIENT_RESOURCES;
}

int nvmlGpmSampleFree(void *sample) {
    gpm_samples -= sample != NULL;
    free(sample);
    return OK;
}

int nvmlGpmMigSampleGet(const void *handle, unsigned gi, struct gpm_sample *sample) {
    CALL("nvmlGpmMigSampleGet", handle, DEVICE)
    if (!is_cut(call.gpu) || call.gpu->capability_major < 9)
        return fake_end(NOT_SUPPORTED);
    *sample = sample_of(call.device, gi);
    return fake_end(sample->sm < 0 ? NOT_FOUND : OK);
}

int nvmlGpmMetricsGet(struct gpm_question *question) {
    const struct gpm_sample *earlier = question->earlier, *later = question->later;
    if (question->version != 1 || !question->count || !earlier || !later)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < question->count; i++) {
        struct gpm_metric *metric = question->metrics + i;
        int has_decoders = metric->id == 30 && later->decoders >= 0;
        if (metric->id >= 166)
            return INVALID_ARGUMENT; /* as a driver that does not know encoders */
        metric->code = metric->id == 2 || has_decoders ? OK : NOT_SUPPORTED;
        metric->value = (metric->id == 2 ? earlier->sm + later->sm : earlier->decoders + later->decoders) / 2.0;
    }
    return OK;
}
