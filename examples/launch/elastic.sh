#!/usr/bin/env bash
# Starts an elastic job with horovodrun and Gloo: hosts come and go while it trains.
#
#   examples/launch/elastic.sh --hostfile hosts --min-np 2 -- python -m examples.elastic_digits
#   examples/launch/elastic.sh --host-discovery-script ./hosts.sh -np 4 --min-np 2 -- python -m examples.elastic_digits
#
# The host file is read again every second: whoever adds a line while the job runs adds a host, and whoever removes one
# takes it away once its ranks have handed over. A host whose rank has failed comes back after --blacklist-cooldown-range
# seconds. The hosts need ssh without a password, and this folder and Python under the same paths. See docs/elastic.md.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
VALUES+=(
    [--host-discovery-script]="" # prints the hosts that there are now, as HOST:SLOTS
    [--min-np]=1                 # with fewer ranks the job waits for hosts
    [--max-np]=""                # more hosts than this are not used
    [--reset-limit]=""           # changes after which the job ends
    [--elastic-timeout]=600      # seconds to wait for the fewest ranks
    [--blacklist-cooldown-range]="10 100" # seconds, the first and the longest
)

parse_options "$@"
script=${VALUES[--host-discovery-script]}
if [[ -n $script ]]; then
    [[ -n ${VALUES[--num-proc]} ]] || fail "--host-discovery-script needs -np, the number of ranks to start with."
    NUM_PROC=${VALUES[--num-proc]}
else
    [[ -n ${VALUES[--hostfile]} ]] || fail "an elastic job needs --hostfile or --host-discovery-script."
    resolve_hosts
    script="$LAUNCH_FOLDER/hosts_now.sh $(realpath "${VALUES[--hostfile]}")"
    describe_ranks
fi
check_command
read -ra cooldown <<<"${VALUES[--blacklist-cooldown-range]}"
arguments=(
    -np "$NUM_PROC" --min-np "${VALUES[--min-np]}" --gloo --host-discovery-script "$script"
    --start-timeout "${VALUES[--start-timeout]}" --elastic-timeout "${VALUES[--elastic-timeout]}"
    --blacklist-cooldown-range "${cooldown[@]}"
    --fusion-threshold-mb "${VALUES[--fusion-threshold-mb]}" --cycle-time-ms "${VALUES[--cycle-time-ms]}"
)
for name in --max-np --reset-limit --network-interfaces --ssh-port --ssh-identity-file; do
    [[ -z ${VALUES[$name]} ]] || arguments+=("$name" "${VALUES[$name]}")
done
run "$(find_python)" -m horovod.runner.launch "${arguments[@]}" "${COMMAND[@]}"
