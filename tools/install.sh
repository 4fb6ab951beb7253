#!/usr/bin/env bash
# Installs hvd_sparse, and what it needs, into an environment of your own (python3.12 -m venv ENV, or conda).
#
#   tools/install.sh ENV/bin/python
#
# TENSORFLOW names what is installed if the environment has no TensorFlow (default: tensorflow-cpu==2.21.0; for GPUs,
# tensorflow[and-cuda]==2.21.0). tools/horovod/build_wheel.sh says what else can be set.
set -euo pipefail
usage="usage: install.sh ENV/bin/python, the interpreter of the environment to install into"
python=${1:?$usage}
source=$(cd "$(dirname "$0")/.." && pwd)
wanted=${TENSORFLOW:-tensorflow-cpu==2.21.0}

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

pip() {
    "$python" -m pip --quiet --disable-pip-version-check --no-input "$@"
}

has_tensorflow() {
    "$python" -c 'import sys; from importlib.util import find_spec; sys.exit(find_spec("tensorflow") is None)'
}

python=$(command -v "$python") || fail "$1 was not found."
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
    || fail "hvd_sparse needs Python 3.11, 3.12 or 3.13, and $python is $("$python" -V)."
"$python" -m pip --version >/dev/null || fail "$python has no pip: $python -m ensurepip"
cd "$source"
if ! has_tensorflow; then
    echo "Installing $wanted (about a minute) ..."
    pip install "$wanted"
fi
tools/horovod/build_wheel.sh "$python"
echo "Compiling and installing hvd_sparse (some three minutes) ..."
pip install '.[examples]'
printf 'Installed. To try it: cd %q && %q -np 2 %q examples/keras_digits.py\n' \
    "$source" "$(dirname "$python")/horovodrun" "$python"
