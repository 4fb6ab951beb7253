#!/usr/bin/env bash
# Starts ranks with Open MPI's mpirun and the flags of Horovod's manual; Horovod must have been built with MPI.
#
#   examples/launch/mpirun.sh --hostfile hosts -- python -m examples.keras_digits
#
# The hosts need ssh without a password, and this folder, Open MPI and Python under the same paths.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

LARGE=64 # from this number of hosts on, mpirun starts all of them directly, as horovodrun has it do

parse_options "$@"
resolve_hosts
check_command
command -v mpirun >/dev/null || fail "mpirun was not found: install Open MPI (the packages openmpi-bin and libopenmpi-dev)."
[[ $(mpirun --version 2>/dev/null) == *"Open MPI"* ]] || fail "this mpirun is not Open MPI's, whose options are used here."
check_mpi
find_interface

arguments=(-np "$NUM_PROC" -H "$HOST_LIST" -bind-to none -map-by slot -mca pml ob1 -mca btl ^openib)
if [[ -n $INTERFACE ]]; then
    arguments+=(-mca btl_tcp_if_include "$INTERFACE" -mca oob_tcp_if_include "$INTERFACE")
fi
if ((${#HOST_NAMES[@]} >= LARGE)); then
    arguments+=(-mca plm_rsh_no_tree_spawn true -mca plm_rsh_num_concurrent "${#HOST_NAMES[@]}")
fi
secure=$(ssh_arguments | paste -sd ' ')
[[ -z $secure ]] || arguments+=(-mca plm_rsh_args "$secure")
[[ $(id -u) != 0 ]] || arguments+=(--allow-run-as-root)

set_mpi_variables

# mpirun passes on only the environment variables that it is given by -x.
for name in $(compgen -e | grep -E '^(PATH|LD_LIBRARY_PATH|PYTHONPATH|(HOROVOD|HVD_SPARSE|DATACACHE|NCCL|TF|OMP|KERAS)_.*)$'); do
    arguments+=(-x "$name")
done
describe_ranks
run mpirun "${arguments[@]}" "${COMMAND[@]}"
