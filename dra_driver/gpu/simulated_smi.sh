#!/bin/sh
# nvidia-smi of a simulated driver: speaks of the simulated GPUs whose device nodes exist where it runs, and of no others.
# Needs nothing but a POSIX shell. DRA_SIM_SYSROOT names another root than / to look for dev/nvidia<minor> in.
# Exit status as in the nvidia-smi manual: 2 for a wrong argument, 6 when no device is found.

driver_version='@DRIVER_VERSION@'
cuda_version='@CUDA_VERSION@'
dev="${DRA_SIM_SYSROOT:-}/dev"
only=
count=0

# every_gpu COMMAND: runs COMMAND with index minor name uuid memory-in-MiB pci-bus-id compute-capability of each visible GPU.
every_gpu() {
    index=0
    count=0
    :
@GPUS@
}

gpu() {
    [ -e "$dev/nvidia$2" ] || return 0
    command=$1
    shift
    this=$index
    index=$((index + 1))
    if [ -z "$only" ] || [ "$only" = "$this" ] || [ "$only" = "$3" ] || [ "$only" = "$5" ]; then
        count=$((count + 1))
        "$command" "$this" "$@"
    fi
}

silent() { :; }

list_line() { printf 'GPU %s: %s (UUID: %s)\n' "$1" "$3" "$4"; }

table_line() {
    memory="${5:+$5 MiB}"
    printf '| %-3s  %-46s  %-40s  %10s |\n' "$1" "$3" "$4" "${memory:-[N/A]}"
}

rule() { printf '+-----------------------------------------------------------------------------------------------------------+\n'; }

table() {
    rule
    printf '| %-105s |\n' "NVIDIA-SMI $driver_version (simulated)   Driver Version: $driver_version   CUDA Version: $cuda_version"
    rule
    printf '| %-3s  %-46s  %-40s  %10s |\n' GPU Name UUID Memory
    rule
    every_gpu table_line
    rule
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
        index | name | gpu_name | uuid | gpu_uuid | pci.bus_id | gpu_bus_id | driver_version | compute_cap | count) ;;
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
        count) value=$visible ;;
    esac
}

query_line() {
    this_index=$1 this_name=$3 this_uuid=$4 this_memory=$5 this_bus=$6 this_capability=$7
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
Fields: index, name, uuid, memory.total, pci.bus_id, driver_version, compute_cap, count. This is a simulated driver.'
    printf '%s\n' "$cat_usage"
}

action=table
fields=
format=
while [ $# -gt 0 ]; do
    case "$1" in
        -L | --list-gpus) action=list ;;
        -i | --id)
            [ $# -gt 1 ] || { printf 'Option %s needs a GPU.\n' "$1"; exit 2; }
            only=$2
            shift
            ;;
        --id=*) only=${1#*=} ;;
        --query-gpu=*) action=query fields=${1#*=} ;;
        --format=*) format=${1#*=} ;;
        -h | --help) usage; exit 0 ;;
        --version) printf 'NVIDIA-SMI version  : %s (simulated)\n' "$driver_version"; exit 0 ;;
        *)
            printf 'Invalid combination of input arguments: %s is not known to the simulated nvidia-smi.\n' "$1"
            usage
            exit 2
            ;;
    esac
    shift
done

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
    list) every_gpu list_line ;;
    query) query ;;
    table) table ;;
esac
