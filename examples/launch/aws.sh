#!/usr/bin/env bash
# Starts ranks on AWS instances with data on EFS, by NFS 4.1.
#
#   examples/launch/aws.sh --file-system fs-0123.efs.eu-west-1.amazonaws.com:/ --hostfile hosts -- \
#       python -m examples.imagenet --recipe recommended --data /mnt/data/imagenet --cache-dir /var/tmp/datacache
#
# --machine is p5.48xlarge (8 H100), p4d.24xlarge (8 A100), g6.12xlarge (4 L4) or c7i.24xlarge (no GPU), or another with
# its --shm-size. The mount targets' security group must admit port 2049, and the instances' must admit all traffic between
# them.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cloud.sh
source "$(dirname "${BASH_SOURCE[0]}")/cloud.sh"

CLOUD="AWS with EFS"
VALUES[--machine]=p5.48xlarge
MACHINES=(
    [p5.48xlarge]="8 1T 8 H100, 2 TiB"
    [p4d.24xlarge]="8 576G 8 A100, 1,152 GiB"
    [g6.12xlarge]="4 96G 4 L4, 192 GiB"
    [c7i.24xlarge]="0 96G 96 vCPUs, 192 GiB"
)
FILE_SYSTEM_TYPE=nfs4
# https://docs.aws.amazon.com/efs/latest/ug/mounting-fs-nfs-mount-settings.html
MOUNT_OPTIONS=nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport
start_on_cloud "$@"
