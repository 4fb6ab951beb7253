#!/usr/bin/env bash
# Starts ranks under Slurm: on a login node it submits itself with sbatch, inside the allocation it starts the ranks.
#
#   examples/launch/slurm.sh --nodes 16 --slots-per-host 8 -- python -m examples.imagenet --data /shared/imagenet
#   sbatch --nodes 2 --ntasks-per-node 4 examples/launch/slurm.sh -- python -m examples.keras_digits
#
# --launcher horovodrun (Gloo) connects the nodes over ssh, which the cluster must allow inside a job; --launcher srun
# needs no ssh, but Horovod built with an MPI that supports Slurm's PMI (srun --mpi=list lists the available ones).
#
# --signal TERM@60, with srun, tells ranks 60 s before the time limit. A script whose elastic state has a backup_dir then
# writes it and ends with status 143; the job is queued again, and goes on (docs/elastic.md).
#SBATCH --job-name=hvd_sparse
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --output=%x-%j.log
set -euo pipefail
# sbatch runs a copy of this file elsewhere, so the original's folder is passed on.
HVD_SPARSE_LAUNCH=${HVD_SPARSE_LAUNCH:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
[[ -r $HVD_SPARSE_LAUNCH/common.sh ]] || HVD_SPARSE_LAUNCH=${SLURM_SUBMIT_DIR:-.}/examples/launch
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$HVD_SPARSE_LAUNCH/common.sh"

VALUES+=([--nodes]=2 [--slots-per-host]=8 [--launcher]=horovodrun [--mpi]=pmix [--partition]="" [--time]="" [--gpus-per-node]="" [--signal]="")
GIVEN=("$@")

submit() {
    local arguments=(--nodes "${VALUES[--nodes]}" --ntasks-per-node "${VALUES[--slots-per-host]}") name
    for name in --partition --time --gpus-per-node --signal; do
        [[ -z ${VALUES[$name]} ]] || arguments+=("$name" "${VALUES[$name]}")
    done
    command -v sbatch >/dev/null || [[ -n $DRY_RUN ]] || fail "sbatch was not found: run this on a login node of the cluster."
    note "$((VALUES[--nodes] * VALUES[--slots-per-host])) ranks on ${VALUES[--nodes]} nodes, by ${VALUES[--launcher]}"
    set_variable HVD_SPARSE_LAUNCH "$HVD_SPARSE_LAUNCH"
    local handed=()
    for name in "${GIVEN[@]:0:${#GIVEN[@]}-${#COMMAND[@]}}"; do
        [[ $name == --dry-run ]] || handed+=("$name")
    done
    run sbatch "${arguments[@]}" "$HVD_SPARSE_LAUNCH/slurm.sh" "${handed[@]}" "${COMMAND[@]}"
}

# SLURM_TASKS_PER_NODE is 8(x2),4 for nodes with 8, 8 and 4 tasks.
resolve_allocation() {
    local names slots=() part count
    command -v scontrol >/dev/null || fail "scontrol, which lists the allocation's nodes, was not found."
    names=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || fail "scontrol does not know the nodes $SLURM_JOB_NODELIST."
    for part in ${SLURM_TASKS_PER_NODE//,/ }; do
        [[ $part =~ ^([0-9]+)(\(x([0-9]+)\))?$ ]] || fail "SLURM_TASKS_PER_NODE is $SLURM_TASKS_PER_NODE; expected 8(x2)."
        for ((count = 0; count < ${BASH_REMATCH[3]:-1}; count++)); do
            slots+=("${BASH_REMATCH[1]}")
        done
    done
    local index=0 name list=""
    for name in $names; do
        list+=,$name:${slots[index]:-0}
        ((index += 1))
    done
    VALUES[--hosts]=${list#,}
}

start_srun() {
    command -v srun >/dev/null || fail "srun was not found."
    check_mpi
    find_interface
    set_mpi_variables
    [[ -z $INTERFACE ]] || set_variable OMPI_MCA_btl_tcp_if_include "$INTERFACE"
    describe_ranks
    run srun --mpi "${VALUES[--mpi]}" --nodes "${#HOST_NAMES[@]}" --ntasks "$NUM_PROC" \
        --ntasks-per-node "${HOST_SLOTS[0]}" --cpu-bind none --kill-on-bad-exit "${COMMAND[@]}" || queue_again "$?"
}

# 143 is the status of ranks that were told to end and have written what they had.
queue_again() {
    [[ $1 == 143 && -n ${VALUES[--signal]} ]] || exit "$1"
    note "the ranks were told to end: job $SLURM_JOB_ID is queued again"
    run scontrol requeue "$SLURM_JOB_ID"
}

parse_options "$@"
[[ ${VALUES[--launcher]} =~ ^(srun|horovodrun)$ ]] || fail "--launcher must be srun or horovodrun, got ${VALUES[--launcher]}."
[[ ${VALUES[--nodes]} =~ ^[1-9][0-9]*$ && ${VALUES[--slots-per-host]} =~ ^[1-9][0-9]*$ ]] \
    || fail "--nodes and --slots-per-host must be whole numbers, got ${VALUES[--nodes]} and ${VALUES[--slots-per-host]}."
[[ -z ${VALUES[--signal]} || ${VALUES[--launcher]} == srun ]] \
    || fail "--signal needs --launcher srun: ranks that are started over ssh get no signals of Slurm's."
check_command
if [[ -z ${SLURM_JOB_NODELIST:-} ]]; then
    submit
    exit
fi
resolve_allocation
resolve_hosts
"start_${VALUES[--launcher]}"
