#!/usr/bin/env bash
# Starts ranks on AWS p3.16xlarge (8 V100, 488 GiB, 25 Gbit/s) with data on EFS, by NFS 4.1.
#
#   examples/launch/aws.sh --file-system fs-0123.efs.eu-west-1.amazonaws.com:/ --hostfile hosts -- \
#       python -m examples.imagenet --recipe recommended --data /mnt/data/imagenet --cache-dir /var/tmp/datacache
#
# The mount targets' security group must admit port 2049, and the instances' must admit all traffic between them.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cloud.sh
source "$(dirname "${BASH_SOURCE[0]}")/cloud.sh"

INSTANCE="AWS p3.16xlarge, EFS"
FILE_SYSTEM_TYPE=nfs4
# https://docs.aws.amazon.com/efs/latest/ug/mounting-fs-nfs-mount-settings.html
MOUNT_OPTIONS=nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport
VALUES[--shm-size]=240G
start_on_cloud "$@"
