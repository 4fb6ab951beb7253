# shellcheck shell=bash
# Shared by all launch scripts: options named as in horovodrun, hosts, slots, and commands that are run or only printed.
#
# A launch script sources this one, adds its own options to VALUES, and calls parse_options "$@", resolve_hosts and
# check_command. Then NUM_PROC, HOST_NAMES, HOST_SLOTS, HOST_LIST, OTHERS (the addresses of hosts other than this machine)
# and COMMAND are set. `run` prints a command and, unless --dry-run was given, runs it; what --dry-run prints on standard
# output is itself a shell script.

declare -A VALUES=(
    [--num-proc]="" [--hosts]="" [--hostfile]="" [--network-interfaces]="" [--ssh-port]="" [--ssh-identity-file]=""
    [--start-timeout]=120        # seconds; importing TensorFlow from a network file system takes a while
    [--fusion-threshold-mb]=1    # as hvd.init sets it
    [--cycle-time-ms]=1          # Horovod's default; how often it looks for tensors that are ready on all ranks
)
declare -A ALIASES=(
    [-np]=--num-proc [-H]=--hosts [-hostfile]=--hostfile [-p]=--ssh-port [-i]=--ssh-identity-file
    [--network-interface]=--network-interfaces
)
DRY_RUN="" NUM_PROC="" HOST_LIST=""
HOST_NAMES=() HOST_SLOTS=() OTHERS=() COMMAND=()
LAUNCH_FOLDER=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 2
}

usage() {
    sed -n '2,/^[^#]/{/^#SBATCH/d;s/^# \{0,1\}//p}' "$0"
    printf 'Options, with their defaults:\n'
    local name
    for name in $(printf '%s\n' "${!VALUES[@]}" | sort); do
        printf '  %-24s %s\n' "$name" "${VALUES[$name]}"
    done
    printf '  %-24s %s\n' --dry-run "check, and print the commands without running them"
    exit 0
}

# Reads options up to -- or the first word that is not an option; the rest is the command that every rank runs.
parse_options() {
    local name
    while (($#)); do
        case $1 in
            --) shift; break ;;
            --dry-run) DRY_RUN=yes; shift; continue ;;
            -h | --help) usage ;;
            --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
            -*) ;;
            *) break ;;
        esac
        name=${ALIASES[$1]:-$1}
        [[ -v "VALUES[$name]" ]] || fail "unknown option $1; see --help."
        (($# > 1)) || fail "$1 requires a value."
        VALUES[$name]=$2
        shift 2
    done
    COMMAND=("$@")
    check_numbers
}

check_numbers() {
    local name
    for name in --num-proc --ssh-port --start-timeout --fusion-threshold-mb; do
        [[ ${VALUES[$name]} =~ ^([0-9]+)?$ ]] || fail "$name must be a whole number, got ${VALUES[$name]}."
    done
    [[ ${VALUES[--cycle-time-ms]} =~ ^([0-9]+(\.[0-9]+)?)?$ ]] \
        || fail "--cycle-time-ms must be a number of milliseconds, got ${VALUES[--cycle-time-ms]}."
    local key=${VALUES[--ssh-identity-file]}
    [[ -z $key || -r $key ]] || fail "--ssh-identity-file $key cannot be read."
}

# Takes names and slots from --hosts or --hostfile, or else this machine alone, and sets the number of ranks per host.
resolve_hosts() {
    local wanted=${VALUES[--num-proc]} total=0 index
    if [[ -n ${VALUES[--hosts]} && -n ${VALUES[--hostfile]} ]]; then
        fail "use --hosts or --hostfile, not both."
    elif [[ -n ${VALUES[--hostfile]} ]]; then
        read_hostfile "${VALUES[--hostfile]}"
    else
        local host entries
        IFS=, read -ra entries <<<"${VALUES[--hosts]:-localhost:${wanted:-1}}"
        for host in "${entries[@]}"; do
            [[ $host == *:* ]] || fail "--hosts must be HOST:SLOTS,HOST:SLOTS, got $host."
            add_host "${host%:*}" "${host##*:}"
        done
    fi
    for index in "${!HOST_NAMES[@]}"; do
        ((total += HOST_SLOTS[index]))
    done
    NUM_PROC=${wanted:-$total}
    ((NUM_PROC >= 1)) || fail "-np must be at least 1."
    ((NUM_PROC <= total)) || fail "-np $NUM_PROC exceeds the total of $total slots."
    fill_hosts
    HOST_LIST=$(for index in "${!HOST_NAMES[@]}"; do printf '%s:%s,' "${HOST_NAMES[index]}" "${HOST_SLOTS[index]}"; done)
    HOST_LIST=${HOST_LIST%,}
    check_addresses
}

# Lines are "HOST slots=N", as for horovodrun and Open MPI; empty lines and comments are allowed here, too.
read_hostfile() {
    [[ -r $1 ]] || fail "--hostfile $1 cannot be read."
    local line number=0
    while IFS= read -r line || [[ -n $line ]]; do
        ((number += 1))
        line=${line%%#*}
        [[ $line =~ [^[:space:]] ]] || continue
        [[ $line =~ ^[[:space:]]*([^[:space:]]+)[[:space:]]+slots[[:space:]]*=[[:space:]]*([^[:space:]]+)[[:space:]]*$ ]] \
            || fail "$1, line $number: expected HOST slots=N, got $line"
        add_host "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
    done <"$1"
    ((${#HOST_NAMES[@]})) || fail "$1 lists no hosts."
}

add_host() {
    [[ $1 =~ ^[A-Za-z0-9_.-]+$ ]] || fail "$1 is not a valid host name."
    [[ $2 =~ ^[1-9][0-9]*$ ]] || fail "host $1: expected a number of slots, got $2."
    local other
    for other in "${HOST_NAMES[@]}"; do
        [[ $other != "$1" ]] || fail "host $1 is listed twice: list it once with all its slots."
    done
    HOST_NAMES+=("$1")
    HOST_SLOTS+=("$2")
}

# Ranks fill host after host, as Horovod places them; hosts without ranks are left out. hvd_sparse needs equal nodes.
fill_hosts() {
    local left=$NUM_PROC index ranks names=() slots=()
    for index in "${!HOST_NAMES[@]}"; do
        ranks=$((left < HOST_SLOTS[index] ? left : HOST_SLOTS[index]))
        ((left -= ranks)) || true
        ((ranks)) || continue
        names+=("${HOST_NAMES[index]}")
        slots+=("$ranks")
    done
    HOST_NAMES=("${names[@]}") HOST_SLOTS=("${slots[@]}")
    for ranks in "${slots[@]}"; do
        ((ranks == slots[0])) || [[ -n ${HVD_SPARSE_LOCAL_SIZE:-} ]] || fail \
            "hosts would get unequal numbers of ranks (${slots[*]}): use the same on each, or set HVD_SPARSE_LOCAL_SIZE=n."
    done
}

is_this_machine() {
    [[ $1 == localhost || $1 == 127.* || $1 == "$(hostname)" ]]
}

# If ranks run on several hosts, a name that resolves to the loopback address cannot be reached from the others.
check_addresses() {
    local name address
    for name in "${HOST_NAMES[@]}"; do
        address=$(getent ahostsv4 "$name" | awk 'NR == 1 { print $1 }') || true
        [[ ${#HOST_NAMES[@]} == 1 || $address != 127.* ]] \
            || fail "host $name has the address $address here, which the other hosts cannot reach: see /etc/hosts."
        if [[ -z $address ]]; then
            note "$name does not resolve here; it must on the machine that starts the ranks."
        elif ! is_this_machine "$name"; then
            OTHERS+=("$address")
        fi
    done
}

# What MPI is to use between the hosts: as wanted, or the network that they share with this machine (an interface may have
# another name on each host), or else the interface that leads to the first of them.
find_interface() {
    local route address device network
    INTERFACE=${VALUES[--network-interfaces]}
    [[ -z $INTERFACE ]] || return 0
    for address in "${OTHERS[@]}"; do
        route=$(ip -o route get "$address" 2>/dev/null) || return 0
        device=${device:-$(sed -nE 's/.* dev ([^ ]+).*/\1/p' <<<"$route")}
        [[ $route == "$address dev $device "* ]] || network=none
    done
    [[ -n ${device:-} && $device != lo ]] || return 0
    network=${network:-$(ip -o route show dev "$device" scope link match "${OTHERS[0]}" | awk 'NR == 1 { print $1 }')}
    INTERFACE=$device
    [[ $network != */* ]] || INTERFACE=$network
    note "$INTERFACE leads to ${OTHERS[0]}; choose others with --network-interfaces."
}

# The first word must be a program; a module or script that Python is to run must exist.
check_command() {
    ((${#COMMAND[@]})) || fail "expected the command for every rank after --, such as -- python -m examples.keras_digits"
    command -v "${COMMAND[0]}" >/dev/null || fail "program ${COMMAND[0]} was not found."
    [[ $(basename "${COMMAND[0]}") == python* ]] || return 0
    if [[ ${COMMAND[1]:-} == -m ]]; then
        "${COMMAND[0]}" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' \
            "${COMMAND[2]:-}" 2>/dev/null || fail "Python cannot find module ${COMMAND[2]:-} from $PWD."
    elif [[ ${COMMAND[1]:-} != -* ]]; then
        [[ -r ${COMMAND[1]:-} ]] || fail "the script ${COMMAND[1]:-} cannot be read."
    fi
}

# Ranks that MPI starts end by a segmentation fault if their Horovod was built without it.
check_mpi() {
    [[ $(basename "${COMMAND[0]}") == python* ]] || return 0
    local answer
    answer=$("${COMMAND[0]}" -c 'import horovod.tensorflow as hvd; print("MPI:", hvd.mpi_built())' 2>&1) \
        || fail "${COMMAND[0]} cannot import Horovod: ${answer##*$'\n'}"
    [[ $answer == *"MPI: True"* ]] || fail "the Horovod of ${COMMAND[0]} was built without MPI: install Open MPI with its" \
        "headers (on Debian openmpi-bin and libopenmpi-dev) and run tools/horovod/build_wheel.sh ${COMMAND[0]}, or start" \
        "the ranks with horovodrun.sh, which needs no MPI."
}

# The Python that has Horovod: the command's, or that of horovodrun on the PATH, or the PATH's.
find_python() {
    local candidate
    for candidate in "${COMMAND[0]}" "$(dirname "$(command -v horovodrun)")/python" python3; do
        [[ $(basename "$candidate") == python* ]] || continue
        candidate=$(command -v "$candidate") || continue
        "$candidate" -c 'import horovod.runner' 2>/dev/null || continue
        printf '%s\n' "$candidate"
        return
    done
    fail "found no Python with Horovod: neither the command's, ${COMMAND[0]}, nor horovodrun's or python3 on the PATH."
}

ssh_arguments() {
    [[ -z ${VALUES[--ssh-port]} ]] || printf '%s\n' -p "${VALUES[--ssh-port]}"
    [[ -z ${VALUES[--ssh-identity-file]} ]] || printf '%s\n' -i "${VALUES[--ssh-identity-file]}"
}

note() {
    printf '# %s\n' "$*"
}

describe_ranks() {
    note "$NUM_PROC ranks on ${#HOST_NAMES[@]} hosts: $HOST_LIST"
}

# Sets an environment variable for all ranks.
set_variable() {
    printf 'export %s=%q\n' "$1" "$2"
    export "$1=$2"
}

run() {
    local line
    printf -v line '%q ' "$@"
    line=${line//\\,/,}
    printf '%s\n' "${line% }"
    [[ -n $DRY_RUN ]] || "$@"
}

start_horovodrun() {
    local python arguments interfaces=${VALUES[--network-interfaces]}
    python=$(find_python)
    arguments=(
        -np "$NUM_PROC" -H "$HOST_LIST" --gloo
        --start-timeout "${VALUES[--start-timeout]}"
        --fusion-threshold-mb "${VALUES[--fusion-threshold-mb]}"
        --cycle-time-ms "${VALUES[--cycle-time-ms]}"
    )
    [[ -z $interfaces ]] || arguments+=(--network-interfaces "$interfaces")
    [[ -z ${VALUES[--ssh-port]} ]] || arguments+=(--ssh-port "${VALUES[--ssh-port]}")
    [[ -z ${VALUES[--ssh-identity-file]} ]] || arguments+=(--ssh-identity-file "${VALUES[--ssh-identity-file]}")
    describe_ranks
    run "$python" "$LAUNCH_FOLDER/horovodrun.py" "${arguments[@]}" "${COMMAND[@]}"
}

# horovodrun sets these from its options; launchers without it pass them on as environment variables.
set_mpi_variables() {
    set_variable HOROVOD_CONTROLLER mpi
    set_variable HOROVOD_CPU_OPERATIONS mpi
    set_variable HOROVOD_FUSION_THRESHOLD $((VALUES[--fusion-threshold-mb] * 1024 * 1024))
    set_variable HOROVOD_CYCLE_TIME "${VALUES[--cycle-time-ms]}"
    [[ -z $INTERFACE || $INTERFACE == */* ]] || set_variable NCCL_SOCKET_IFNAME "$INTERFACE" # it takes no networks
}
