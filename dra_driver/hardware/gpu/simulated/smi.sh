#!/bin/sh
# nvidia-smi of a simulated driver: lists the simulated GPUs whose device nodes exist in its root. A MIG device is listed
# when both of its /dev/nvidia-caps/nvidia-cap<N> exist. Needs only a POSIX shell.
# DRA_SIM_SYSROOT names a root other than / for dev/.
# Exit status as in the nvidia-smi manual: 2 for a wrong argument, 3 for what the GPU does not do, 4 without permission,
# 6 when no device is found.
#
# Run as <driver root>/usr/bin/nvidia-smi it runs on the node: it lists all GPUs, whatever is in /dev, and
#   <driver root>/var/lib/nvidia-stub/timeslice/<UUID>      holds what compute-policy set: 0 to 3
#   <driver root>/var/lib/nvidia-stub/compute-mode/<UUID>   holds what -c set (the simulated NVML does not read it)
#   <driver root>/etc/nvidia-stub/smi-hang   makes it hang: for the seconds that the file holds, for ever when empty
#   <driver root>/etc/nvidia-stub/smi-fail   makes it fail: prints the first line of the file, exits with 255
# Wherever var/log/nvidia-stub exists below its root, each call adds a line to nvidia-smi.log there.

driver_version='@DRIVER_VERSION@'
cuda_version='@CUDA_VERSION@'
root=${DRA_SIM_SYSROOT-${0%/usr/bin/nvidia-smi}}
dev="$root/dev"
node=
[ -n "${DRA_SIM_SYSROOT+set}" ] || [ ! -f "$root/etc/nvidia-stub/driver-root" ] || node=yes
only=
count=0
mig_command=silent

# every_gpu COMMAND: runs COMMAND with index minor name uuid memory-in-MiB pci-bus-id compute-capability mig-mode of
# each visible GPU and, after each, $mig_command with index profile uuid of each of its visible MIG devices.
every_gpu() {
    index=0
    count=0
    :
@GPUS@
}

exists() { [ -n "$node" ] || [ -e "$dev/$1" ]; }

gpu() {
    chosen=
    exists "nvidia$2" || return 0
    command=$1
    shift
    this=$index
    index=$((index + 1))
    if [ -z "$only" ] || [ "$only" = "$this" ] || [ "$only" = "$3" ] || [ "$only" = "$5" ]; then
        count=$((count + 1))
        chosen=yes
        mig_index=0
        "$command" "$this" "$@"
    fi
}

# mig GPU-INSTANCE-CAP COMPUTE-INSTANCE-CAP PROFILE UUID: a MIG device of the GPU before it.
mig() {
    [ -n "$chosen" ] && exists "nvidia-caps/nvidia-cap$1" && exists "nvidia-caps/nvidia-cap$2" || return 0
    "$mig_command" "$mig_index" "$3" "$4"
    mig_index=$((mig_index + 1))
}

silent() { :; }

list_line() { printf 'GPU %s: %s (UUID: %s)\n' "$1" "$3" "$4"; }

list_mig() { printf '  MIG %-11s Device %2s: (UUID: %s)\n' "$2" "$1" "$3"; }

table_line() {
    memory="${5:+$5 MiB}"
    printf '| %-3s  %-46s  %-40s  %10s |\n' "$1" "$3" "$4" "${memory:-[N/A]}"
}

table_mig() { printf '|   MIG %-2s %-42s  %-40s  %10s |\n' "$1" "$2" "$3" ''; }

rule() { printf '+-----------------------------------------------------------------------------------------------------------+\n'; }

table() {
    rule
    printf '| %-105s |\n' "NVIDIA-SMI $driver_version (simulated)   Driver Version: $driver_version   CUDA Version: $cuda_version"
    rule
    printf '| %-3s  %-46s  %-40s  %10s |\n' GPU Name UUID Memory
    rule
    mig_command=table_mig
    every_gpu table_line
    rule
}

denied() {
    printf 'Unable to set the %s for GPU %s: Insufficient Permissions\n' "$1" "$2"
    exit 4
}

unsupported() {
    printf 'Setting the %s is not supported for GPU %s in MIG mode.\n' "$1" "$2"
    exit 3
}

# keep FOLDER UUID VALUE: on the node, and nowhere else.
keep() { [ -n "$node" ] && { printf '%s\n' "$3" >"$root/var/lib/nvidia-stub/$1/$2"; } 2>/dev/null; }

slice_name() {
    case "$1" in 1) name=Short ;; 2) name=Medium ;; 3) name=Long ;; *) name=Default ;; esac
}

set_timeslice() {
    [ "$8" != Enabled ] || unsupported timeslice "$6"
    slice_name "$slice"
    keep timeslice "$4" "$slice" || denied timeslice "$6"
    printf 'Set timeslice to %s for GPU %s.\n' "$name" "$6"
}

list_policy() {
    slice=0
    [ ! -r "$root/var/lib/nvidia-stub/timeslice/$4" ] || read -r slice <"$root/var/lib/nvidia-stub/timeslice/$4"
    slice_name "$slice"
    printf '| %4s  %-24s |\n' "$1" "$name"
}

list_policies() {
    printf '+--------------------------------+\n| %-30s |\n' 'GPU compute policies:'
    printf '| %4s  %-24s |\n|================================|\n' GPU Timeslice
    every_gpu list_policy
    printf '+--------------------------------+\n'
}

set_mode() {
    [ "$8" != Enabled ] || unsupported 'compute mode' "$6"
    keep compute-mode "$4" "$mode" || denied 'compute mode' "$6"
    printf 'Set compute mode to %s for GPU %s.\n' "$mode" "$6"
}

# split COMMAND: runs COMMAND with each name of the comma-separated $fields.
split() {
    rest="$fields,"
    row=
    separator=
    while [ -n "$rest" ]; do
        field=${rest%%,*}
        rest=${rest#*,}
        field=${field# }
        "$1"
        row="$row$separator$value"
        separator=', '
    done
}

heading() {
    value=$field
    case "$field" in
        index | name | gpu_name | uuid | gpu_uuid | pci.bus_id | gpu_bus_id | driver_version | compute_cap | mig.mode.current | count) ;;
        memory.total) [ -n "$nounits" ] || value='memory.total [MiB]' ;;
        *)
            printf 'Field "%s" is not a valid field to query.\n' "$field"
            exit 2
            ;;
    esac
}

cell() {
    case "$field" in
        index) value=$this_index ;;
        name | gpu_name) value=$this_name ;;
        uuid | gpu_uuid) value=$this_uuid ;;
        memory.total)
            if [ -z "$this_memory" ]; then value='[N/A]'; elif [ -n "$nounits" ]; then value=$this_memory; else value="$this_memory MiB"; fi
            ;;
        pci.bus_id | gpu_bus_id) value=$this_bus ;;
        driver_version) value=$driver_version ;;
        compute_cap) value=${this_capability:-[N/A]} ;;
        mig.mode.current) value=$this_mig ;;
        count) value=$visible ;;
    esac
}

query_line() {
    this_index=$1 this_name=$3 this_uuid=$4 this_memory=$5 this_bus=$6 this_capability=$7 this_mig=$8
    split cell
    printf '%s\n' "$row"
}

query() {
    noheader=
    nounits=
    case ",$format," in
        *,csv,*) ;;
        *)
            printf 'Option --query-gpu needs --format=csv, with noheader and nounits as further words.\n'
            exit 2
            ;;
    esac
    case ",$format," in *,noheader,*) noheader=yes ;; esac
    case ",$format," in *,nounits,*) nounits=yes ;; esac
    split heading
    [ -n "$noheader" ] || printf '%s\n' "$row"
    every_gpu query_line
}

usage() {
    cat_usage='Usage: nvidia-smi [-L | --list-gpus] [-i INDEX|UUID|BUS-ID] [--query-gpu=FIELD,... --format=csv[,noheader][,nounits]]
       nvidia-smi [-i ...] -c DEFAULT|PROHIBITED|EXCLUSIVE_PROCESS
       nvidia-smi compute-policy [-i ...] -l | --set-timeslice 0|1|2|3
Fields: index, name, uuid, memory.total, pci.bus_id, driver_version, compute_cap, mig.mode.current, count.
This is a simulated driver.'
    printf '%s\n' "$cat_usage"
}

wrong() {
    printf 'Invalid combination of input arguments: %s.\n' "$1"
    usage
    exit 2
}

slice_number() {
    case "$1" in [0-3]) action=set-timeslice slice=$1 ;; *) wrong "a timeslice is 0, 1, 2 or 3, not '$1'" ;; esac
}

mode_name() {
    case "$1" in
        0 | DEFAULT) mode=DEFAULT ;;
        2 | PROHIBITED) mode=PROHIBITED ;;
        3 | EXCLUSIVE_PROCESS) mode=EXCLUSIVE_PROCESS ;;
        *) wrong "a compute mode is DEFAULT, PROHIBITED or EXCLUSIVE_PROCESS, not '$1'" ;;
    esac
    action=set-mode
}

log="$root/var/log/nvidia-stub"
preload="${LD_PRELOAD:+LD_PRELOAD=$LD_PRELOAD }"
[ ! -d "$log" ] || { printf '%snvidia-smi %s\n' "$preload" "$*" >>"$log/nvidia-smi.log"; } 2>/dev/null

if [ -n "$node" ] && [ -f "$root/etc/nvidia-stub/smi-hang" ]; then
    seconds=
    read -r seconds <"$root/etc/nvidia-stub/smi-hang"
    if [ -n "$seconds" ]; then sleep "$seconds"; else while :; do sleep 1; done; fi
fi
if [ -n "$node" ] && [ -f "$root/etc/nvidia-stub/smi-fail" ]; then
    message=
    read -r message <"$root/etc/nvidia-stub/smi-fail"
    printf '%s\n' "${message:-Failed to initialize NVML: Unknown Error}"
    exit 255
fi

action=table
fields=
format=
policy=
if [ "${1:-}" = compute-policy ]; then
    policy=yes
    action=no-policy
    shift
fi
while [ $# -gt 0 ]; do
    case "$1" in -i | --id | -c | --compute-mode | --set-timeslice)
        [ $# -gt 1 ] || { printf 'Option %s needs a value.\n' "$1"; exit 2; } ;;
    esac
    case "$policy:$1" in
        *:-i | *:--id) only=$2; shift ;;
        *:--id=*) only=${1#*=} ;;
        yes:-l | yes:--list) action=list-policies ;;
        yes:--set-timeslice) slice_number "$2"; shift ;;
        yes:--set-timeslice=*) slice_number "${1#*=}" ;;
        :-L | :--list-gpus) action=list ;;
        :-c | :--compute-mode) mode_name "$2"; shift ;;
        :--compute-mode=*) mode_name "${1#*=}" ;;
        :--query-gpu=*) action=query fields=${1#*=} ;;
        :--format=*) format=${1#*=} ;;
        *:-h | *:--help) usage; exit 0 ;;
        :--version) printf 'NVIDIA-SMI version  : %s (simulated)\n' "$driver_version"; exit 0 ;;
        *) wrong "$1 is not known to the simulated nvidia-smi" ;;
    esac
    shift
done
[ "$action" != no-policy ] || wrong 'compute-policy needs --list or --set-timeslice'

wanted=$only
only=
every_gpu silent
visible=$count
only=$wanted
every_gpu silent
if [ "$count" -eq 0 ]; then
    printf 'No devices were found\n'
    exit 6
fi

case "$action" in
    list) mig_command=list_mig; every_gpu list_line ;;
    query) query ;;
    table) table ;;
    list-policies) list_policies ;;
    set-timeslice) every_gpu set_timeslice ;;
    set-mode) every_gpu set_mode; printf 'All done.\n' ;;
esac
