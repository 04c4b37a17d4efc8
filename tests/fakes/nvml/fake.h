/* The state that all processes share and the frame of a call. In step with state.py and layout.py. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include <stdint.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, RESET_REQUIRED = 16, IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23, ARGUMENT_VERSION_MISMATCH = 25
};

#define MAX_GPUS 64
#define MAX_FAULTS 32
#define MAX_COUNTERS 128 /* a power of two */
#define MAX_EVENTS 4096  /* the newest; as on hardware, who does not wait in time misses some */
#define MAX_PROFILES 16
#define MAX_STARTS 12
#define MAX_COMPUTE_PROFILES 8
#define MAX_GIS 12
#define MAX_CIS 8
#define MAX_SUBSCRIBERS 4
#define MAX_GI_IDS 32
#define MAX_LINKS 18
#define MIG_CONFIG_CHANGE 0x100ull
#define XID_CRITICAL_ERROR 0x8ull
#define FOR_EVER 0xFFFFFFFFu /* of a number of calls */

struct compute_profile { uint32_t number, slices, multiprocessors; };

/* A MIG profile. Unknown numbers are NVML_VALUE_NOT_AVAILABLE (all ones). */
struct profile {
    char name[32];
    uint64_t memory_mb;
    uint32_t number, id, compute_slices, memory_slices, max_instances, multiprocessors;
    uint32_t engines[5]; /* copy, decoder, encoder, jpeg, ofa */
    uint32_t start_count, starts[MAX_STARTS];
    uint32_t compute_count;
    struct compute_profile compute[MAX_COMPUTE_PROFILES];
};

struct ci { uint32_t used, serial, id, profile /* index into the GPU instance's */, start, in_use; };

struct gi {
    uint32_t used, serial, id, profile /* index */, start, in_use;
    uint32_t subscribers[MAX_SUBSCRIBERS]; /* processes that have asked for it in a session that is open */
    struct ci cis[MAX_CIS];
};

/* Numbers that a GPU does not report are negative and texts empty. */
struct gpu {
    char uuid[96], name[96], bus_id[32];
    int64_t memory_bytes, reserved_bytes;
    int32_t minor, brand, architecture, capability_major, capability_minor, addressing_mode, mig_current, mig_pending;
    uint32_t pci_device_id, lost;
    uint32_t identity;           /* never used again: another GPU in this slot has another one */
    uint32_t forgets;            /* no persistence mode: its compute mode ends with the last open device file */
    uint32_t unbound;            /* from the driver, such as for vfio: new sessions do not have it, older ones lose it */
    int32_t resetless, virtualization, compute_mode;
    uint32_t mode_status;        /* what SetMigMode answers instead of switching, 0: by the rules */
    uint32_t clients;            /* processes that have it open */
    uint32_t profiles_need_mode; /* profiles are told with MIG mode on only */
    uint32_t first_refusals;     /* creates of the first GPU instance that are IN_USE before one succeeds */
    int32_t fabric_state;        /* nvmlGpuFabricState_t, negative: no NVSwitch */
    int32_t fabric_status;       /* what the probe of the fabric ended with */
    uint32_t fabric_probing;     /* looks that find the probe IN_PROGRESS still */
    uint32_t fabric_reprobe;     /* the same after the last GPU instance is gone */
    uint32_t event_types;        /* what nvmlDeviceGetSupportedEventTypes answers; MIG changes come with MIG */
    uint32_t flood;              /* an XID that comes faster than it can be read, 0: none */
    int32_t rows_pending, rows_failed, pages_pending; /* booleans */
    int32_t recovery_action;     /* nvmlDeviceGpuRecoveryAction_t */
    uint32_t links, links_down;  /* number of NVLinks, and a bit for each that is down */
    uint32_t fabric_health;      /* the mask in nvmlGpuFabricInfoV_t */
    int32_t link_types[MAX_LINKS];   /* nvmlIntNvLinkDeviceType_t of the other end, negative: not told */
    char link_ends[MAX_LINKS][32];   /* PCI bus id of the other end, empty: not told */
    uint8_t fabric_cluster[16];
    uint32_t fabric_clique;
    uint32_t binding;            /* counts changes of MIG mode: handles from before are stale */
    uint32_t serial;             /* counts instances: handles of destroyed ones are stale */
    uint32_t profile_count;
    struct profile profiles[MAX_PROFILES];
    struct gi gis[MAX_GIS];
    char mig_uuids[MAX_GI_IDS][48]; /* of compute instance 0 in the GPU instance of that id */
};

struct fault {
    char function[64]; /* empty: the slot is free */
    int32_t device;    /* index, -1 for any device or none */
    int32_t code;      /* OK: only the latency */
    uint32_t latency_ms;
    uint32_t left;     /* calls it still hits, 0 for all */
    uint32_t skip;     /* calls that it lets pass first */
};

struct counter { char function[64]; uint32_t calls; };

struct event { uint64_t type, data; uint32_t identity, binding, gi, ci; };

struct state {
    uint32_t magic, version, gpu_count, cuda_version;
    int32_t conf_compute, conf_devtools; /* of nvmlConfComputeSystemState_t; negative: not supported */
    char driver_version[80];
    struct gpu gpus[MAX_GPUS];
    struct fault faults[MAX_FAULTS];
    struct counter counters[MAX_COUNTERS];
    uint32_t event_count; /* ever; event n is at n % MAX_EVENTS */
    struct event events[MAX_EVENTS];
    uint32_t identities; /* how many were given out */
    uint32_t releases;   /* counts up to end the latency of all calls in progress */
    uint32_t changes;    /* a futex: counts up with what a wait for events may have to see */
};

extern struct state *fake_state;

/* What a handle stands for: exactly one of these kinds, or any of several. */
enum kind { NONE = 0, DEVICE = 1, MIG_DEVICE = 2, GPU_INSTANCE = 4, COMPUTE_INSTANCE = 8, BY_INDEX = 16 };

/* A call in progress: the things that its handle names, NULL where it names none. */
struct call {
    enum kind kind;
    int device; /* slot of the state file, -1 without */
    struct gpu *gpu;
    struct gi *gi;
    struct ci *ci;
};

/* Begins a call: locks, looks the handle up (BY_INDEX: handle is the number of a GPU), applies faults.
 * Returns OK with everything locked, or the answer with nothing locked. */
int fake_begin(const char *function, const void *handle, unsigned kinds, struct call *call);
int fake_end(int code);
void *fake_handle(enum kind kind, const struct gpu *gpu, const struct gi *gi, const struct ci *ci);
uint64_t fake_epoch(void);
unsigned fake_session_count(void);
void fake_open_gpu(int device);
int fake_give_text(const char *text, char *out, unsigned size);
int fake_give_number(int32_t value, unsigned *out);
/* Notifies all processes; the call is locked. */
void fake_tell(const struct gpu *gpu, uint32_t gi, uint32_t ci);
/* Whether an event set of this process keeps the GPU open; the call is locked. */
int fake_is_registered(const struct gpu *gpu);
void fake_forget_event_sets(void);
/* The process ends its session; the file lock is held. */
void fake_unsubscribe(void);
void fake_mig_uuid(const struct gpu *gpu, const struct gi *gi, const struct ci *ci, char out[48]);

static inline const struct profile *profile_of(const struct gpu *gpu, const struct gi *gi) {
    return &gpu->profiles[gi->profile];
}

/* A process of the file of nvml_usage.c; gi is -1 for none. */
#define MAX_USED 256
struct used_process { char kind; unsigned pid; int gi; unsigned long long memory, stamp; unsigned sm, mem, engines[4]; };
/* Those of a kind (0: any) on a GPU, at most room of them; their number. */
unsigned fake_used_processes(int device, char kind, struct used_process *out, unsigned room);
unsigned long long fake_shared_bytes(int device);
int fake_hides_processes(int device);

/* Whether MIG mode is on. */
static inline int is_cut(const struct gpu *gpu) { return gpu->mig_current == 1; }

#define CALL(name, handle, kinds)                       \
    struct call call;                                   \
    int code = fake_begin(name, handle, kinds, &call);  \
    if (code != OK)                                     \
        return code;

#endif
