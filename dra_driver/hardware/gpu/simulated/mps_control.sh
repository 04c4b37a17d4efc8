#!/bin/sh
# nvidia-cuda-mps-control of a simulated driver. It shares no GPU; it keeps the files and settings of the real one.
#   -f  is the daemon, in the foreground, until SIGTERM or quit
#   without arguments: reads commands for the running daemon from standard input, answers on standard output
# CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY must name existing folders. One daemon per pipe directory: a second
# one is refused. While it runs, the pipe directory holds nvidia-cuda-mps-control.pid, control, control_lock, log and,
# under stub/, the defaults that were set. Needs sleep, rm, mkdir, stat, tr and grep besides a POSIX shell.
#
# <log directory>/control.log, and var/log/nvidia-stub/mps-control.log below the driver root where that can be written,
# get a line for each event: "start ARGUMENTS", "devices $CUDA_VISIBLE_DEVICES", "command WORDS", "exit"; the latter
# begins each with the pipe directory.
#
# <driver root>/etc/nvidia-stub/mps-fail         no daemon starts: exit status 1
# <driver root>/etc/nvidia-stub/mps-never-ready  the daemon runs but answers no command
# <driver root>/etc/nvidia-stub/mps-hang         commands never return
# Words in the first line of such a file limit it to daemons with these devices in CUDA_VISIBLE_DEVICES.

root=${0%/usr/bin/nvidia-cuda-mps-control}
stub="$root/etc/nvidia-stub"
pipe=${CUDA_MPS_PIPE_DIRECTORY:-}
logs=${CUDA_MPS_LOG_DIRECTORY:-}
pid_file="$pipe/nvidia-cuda-mps-control.pid"

say() { printf '%s\n' "$*" >&2; }

note() {
    printf '%s\n' "$*" >>"$logs/control.log"
    record="$root/var/log/nvidia-stub/mps-control.log"
    [ ! -d "${record%/*}" ] || { printf '%s %s\n' "$pipe" "$*" >>"$record"; } 2>/dev/null
}

# struck FILE: whether that fault is on and applies to the devices of this daemon.
struck() {
    words=
    [ -f "$stub/$1" ] || return 1
    { read -r words <"$stub/$1"; } 2>/dev/null # removed meanwhile: as if it were empty
    [ -n "$words" ] || return 0
    devices=$CUDA_VISIBLE_DEVICES
    [ -n "$devices" ] || [ ! -r "$pipe/stub/devices" ] || read -r devices <"$pipe/stub/devices"
    for word in $words; do
        case "$devices" in *"$word"*) return 0 ;; esac
    done
    return 1
}

# running: whether the daemon of this pipe directory runs; sets pid.
running() {
    pid=
    { read -r pid <"$pid_file"; } 2>/dev/null
    [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null || return 1
    [ ! -r "/proc/$pid/environ" ] || has_this_pipe
}

# has_this_pipe: whether process $pid, which may have the number of a daemon that was killed, uses this pipe directory:
# under the same name, and (mounts may make one name mean many) with the same pid file. The process may end at any point
# of this; then the answer is no, and nothing is printed.
has_this_pipe() {
    { tr '\0' '\n' <"/proc/$pid/environ"; } 2>/dev/null | grep -qxF "CUDA_MPS_PIPE_DIRECTORY=$pipe" || return 1
    seen=$(stat -L -c %d:%i "/proc/$pid/root$pid_file" 2>/dev/null) || return 1
    [ "$seen" = "$(stat -L -c %d:%i "$pid_file" 2>/dev/null)" ]
}

refuse_second() {
    if running; then
        say "An instance of this daemon is already running (pid $pid)."
        exit 1
    fi
}

# claim_pid_file: creates it with this process' id, or finds that another daemon was faster.
claim_pid_file() {
    (set -C; printf '%s\n' "$$" >"$pid_file") 2>/dev/null && return 0
    sleep 0.2 # the other daemon may not have written its id yet
    refuse_second
    rm -f "$pid_file" # of a daemon that was killed
    (set -C; printf '%s\n' "$$" >"$pid_file") 2>/dev/null
}

finish() {
    trap '' TERM INT HUP
    rm -rf "$pipe/control" "$pipe/control_lock" "$pipe/log" "$pipe/stub"
    note exit
    rm -f "$pid_file" # last: who asked for the end waits for it
    [ -z "${pause:-}" ] || kill "$pause" 2>/dev/null
    exit 0
}

daemon() {
    refuse_second
    if struck mps-fail; then
        say 'Failed to start the MPS control daemon: a test made it fail.'
        exit 1
    fi
    trap finish TERM INT
    trap '' HUP
    claim_pid_file || { say 'Cannot create the pid file.'; exit 1; }
    rm -rf "$pipe/stub"
    mkdir -p "$pipe/stub"
    printf '%s\n' "$CUDA_VISIBLE_DEVICES" >"$pipe/stub/devices"
    note "start $*"
    note "devices $CUDA_VISIBLE_DEVICES"
    if ! struck mps-never-ready; then
        : >"$pipe/control_lock"
        : >"$pipe/log"
        : >"$pipe/control"
    fi
    while :; do
        sleep 1 </dev/null >/dev/null 2>&1 &
        pause=$!
        wait "$pause"
    done
}

percentage() {
    case "$1" in '' | *[!0-9.]* | *.*.*) return 1 ;; esac
    whole=${1%%.*}
    [ "${#whole}" -le 3 ] && [ "${whole:-0}" -le 100 ] && { [ "${whole:-0}" -gt 0 ] || return 1; }
}

quantity() {
    number=${1%[MG]}
    case "$number" in '' | *[!0-9]*) return 1 ;; esac
    [ "$number" != "$1" ]
}

answer() {
    value=$2
    { read -r value <"$pipe/stub/$1"; } 2>/dev/null
    [ -z "$value" ] || printf '%s\n' "$value"
}

# ask COMMAND WORD...: one command of the daemon.
ask() {
    case "$1" in
        get_default_active_thread_percentage) answer percentage 100.0 ;;
        set_default_active_thread_percentage)
            percentage "${2:-}" || { printf 'Invalid active thread percentage: %s\n' "${2:-}"; return 1; }
            case "$2" in *.*) value=$2 ;; *) value=$2.0 ;; esac
            printf '%s\n' "$value" >"$pipe/stub/percentage"
            answer percentage ''
            ;;
        get_default_device_pinned_mem_limit) answer "memory-${2:-}" '' ;;
        set_default_device_pinned_mem_limit)
            quantity "${3:-}" || { printf 'Invalid memory limit: %s\n' "${3:-}"; return 1; }
            printf '%s\n' "$3" >"$pipe/stub/memory-$2"
            ;;
        get_server_list) ;;
        quit)
            kill -TERM "$pid" 2>/dev/null
            for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
                running || break
                sleep 0.1
            done
            ;;
        *)
            printf 'Unknown command: %s\n' "$1"
            return 1
            ;;
    esac
}

client() {
    while struck mps-hang; do sleep 1; done
    if ! running || [ ! -e "$pipe/control" ]; then
        say 'Cannot find MPS control daemon process'
        exit 1
    fi
    status=0
    while read -r line || [ -n "$line" ]; do
        [ -n "$line" ] || continue
        note "command $line"
        set -f # no word is expanded to file names
        # shellcheck disable=SC2086 - a command is words
        ask $line || status=1
    done
    exit "$status"
}

CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-}
for folder in "$pipe" "$logs"; do
    if [ -z "$folder" ] || [ ! -d "$folder" ]; then
        say "CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY must name folders, got '$pipe' and '$logs'."
        exit 1
    fi
done
case "$#:${1:-}" in
    0:) client ;;
    1:-f) daemon "$@" ;;
    *)
        say 'Usage: nvidia-cuda-mps-control [-f]'
        exit 1
        ;;
esac
