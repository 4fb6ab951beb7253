# shellcheck shell=bash
# Shared by the clouds' launch scripts: each host mounts the network file system and gets its cache directories, then
# horovodrun starts the ranks.
#
# A launch script sets CLOUD, FILE_SYSTEM_TYPE and MOUNT_OPTIONS, describes machines in MACHINES, as "GPUS SHM-SIZE words",
# and calls start_on_cloud "$@".
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

declare -A MACHINES=()
VALUES+=(
    [--machine]=""                 # type of the instances
    [--file-system]=""             # SERVER:/PATH, as mount takes it
    [--mount-point]=/mnt/data      # where the network file system appears on each host
    [--local-dir]=/var/tmp/datacache # on a disk of the host: DataCache(local_dir=...)
    [--memory-dir]=/dev/shm        # a tmpfs: DataCache(memory_dir=...)
    [--shm-size]=""                # least size of the tmpfs, such as 200G (default: half the machine's memory)
)

# The commands for a host: they do nothing twice, and fail if another file system is mounted at the mount point.
prepare_commands() {
    local server=${VALUES[--file-system]} place=${VALUES[--mount-point]}
    local cache=${VALUES[--local-dir]} memory=${VALUES[--memory-dir]} size=${VALUES[--shm-size]}
    cat <<END
set -eu
as_root() { if [ "\$(id -u)" = 0 ]; then "\$@"; else sudo "\$@"; fi; }
stop() { echo "\$(hostname): \$*" >&2; exit 1; }
if mountpoint -q $place; then
    there=\$(findmnt -n -o SOURCE $place | tail -n 1)
    [ "\$there" = $server ] || stop "$place is \$there, not $server"
else
    command -v mount.nfs >/dev/null || stop "no NFS client: install nfs-common (Debian, Ubuntu) or nfs-utils"
    as_root mkdir -p $place
    as_root mount -t $FILE_SYSTEM_TYPE -o $MOUNT_OPTIONS $server $place
fi
as_root mkdir -p $cache
[ -w $cache ] || as_root chown "\$(id -u):\$(id -g)" $cache
END
    [[ -n $size ]] || return 0
    cat <<END
wanted=\$(numfmt --from=iec $size)
[ "\$(df --output=size -B1 $memory | tail -n 1)" -ge "\$wanted" ] || as_root mount -o remount,size=$size $memory
END
}

prepare_hosts() {
    local name commands shell
    commands=$(prepare_commands)
    mapfile -t secure < <(ssh_arguments)
    for name in "${HOST_NAMES[@]}"; do
        if is_this_machine "$name"; then
            shell=(bash -s)
        else
            shell=(ssh "${secure[@]}" "$name" bash -s)
        fi
        printf "%s <<'END'\n%s\nEND\n" "${shell[*]}" "$commands"
        [[ -n $DRY_RUN ]] || "${shell[@]}" <<<"$commands" || fail "host $name was not prepared; see its error above."
    done
}

check_cloud_options() {
    local name
    [[ ${VALUES[--file-system]} =~ ^[A-Za-z0-9.-]+:/[A-Za-z0-9._/-]*$ ]] \
        || fail "--file-system must be SERVER:/PATH, got ${VALUES[--file-system]:-nothing}."
    for name in --mount-point --local-dir --memory-dir; do
        [[ ${VALUES[$name]} =~ ^/[A-Za-z0-9._/-]+$ ]] || fail "$name must be an absolute path, got ${VALUES[$name]}."
    done
    [[ ${VALUES[--local-dir]}/ != "${VALUES[--mount-point]}"/* ]] \
        || fail "--local-dir must be on a disk of the host, not in ${VALUES[--mount-point]} on the network file system."
    [[ ${VALUES[--shm-size]} =~ ^([0-9]+[KMGT]?)?$ ]] || fail "--shm-size must be a size such as 200G, got ${VALUES[--shm-size]}."
}

# Takes the size of the tmpfs from the machine's type, and compares GPUs with slots.
use_machine() {
    local machine=${VALUES[--machine]} known gpus size words index
    known=$(printf '%s\n' "${!MACHINES[@]}" | sort | paste -sd ' ')
    if [[ ! -v "MACHINES[$machine]" ]]; then
        [[ -n ${VALUES[--shm-size]} ]] || fail "--machine $machine is none of $known: give its --shm-size, too."
        note "$CLOUD, $machine"
        return
    fi
    read -r gpus size words <<<"${MACHINES[$machine]}"
    VALUES[--shm-size]=${VALUES[--shm-size]:-$size}
    note "$CLOUD, $machine: $words"
    for index in "${!HOST_NAMES[@]}"; do
        ((gpus == 0 || HOST_SLOTS[index] <= gpus)) \
            || fail "host ${HOST_NAMES[index]} would get ${HOST_SLOTS[index]} ranks, and $machine has $gpus GPUs."
    done
}

start_on_cloud() {
    parse_options "$@"
    check_cloud_options
    [[ -n ${VALUES[--hosts]}${VALUES[--hostfile]} ]] || fail "specify the instances with --hosts or --hostfile."
    resolve_hosts
    use_machine
    check_command
    prepare_hosts
    set_variable DATA_DIR "${VALUES[--mount-point]}"
    set_variable DATACACHE_LOCAL_DIR "${VALUES[--local-dir]}"
    set_variable DATACACHE_MEMORY_DIR "${VALUES[--memory-dir]}"
    start_horovodrun
}
