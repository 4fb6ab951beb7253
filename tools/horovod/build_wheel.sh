#!/usr/bin/env bash
# Installs Horovod into the virtual environment given, building its wheel once for each set of
# things it depends on and keeping it in a cache outside the checkout.
#
#   build_wheel.sh PYTHON          installs, building when the cache has no wheel
#
# HVD_SPARSE_CACHE names the cache (default: ~/.cache/hvd_sparse).
set -euo pipefail
python=${1:?usage: build_wheel.sh PYTHON}
here=$(cd "$(dirname "$0")" && pwd)
version=0.28.1
cache=${HVD_SPARSE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hvd_sparse}

with_mpi=0
command -v mpicxx >/dev/null && with_mpi=1
tensorflow=$("$python" -c 'from importlib.metadata import version; print(version("tensorflow-cpu"))' 2>/dev/null \
    || "$python" -c 'from importlib.metadata import version; print(version("tensorflow"))')
key=$( { echo "$version $tensorflow mpi=$with_mpi"; "$python" -VV; c++ --version | head -1; uname -m
         cat "$here"/build_wheel.sh "$here"/include/tensorflow/compiler/xla/client/xla_builder.h
         [ "$with_mpi" = 1 ] && mpicxx --version; true; } | sha256sum | cut -c1-16)
wheels=$cache/horovod-$version-$key

if ! ls "$wheels"/horovod-*.whl >/dev/null 2>&1; then
    echo "Building Horovod $version for TensorFlow $tensorflow (about 3 minutes, once); the wheel goes to $wheels"
    building=$(mktemp -d)
    trap 'rm -rf "$building"' EXIT
    include=$("$python" -c 'import os; os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf; print(tf.sysconfig.get_include())' 2>/dev/null)
    export CPATH="$here/include:$include/external/highwayhash:$include/external/farmhash_archive/src${CPATH:+:$CPATH}"
    export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
    if [ "$with_mpi" = 1 ]; then export HOROVOD_WITH_MPI=1; else export HOROVOD_WITHOUT_MPI=1; fi
    export MAKEFLAGS="-j$(nproc)" PATH="$(dirname "$python"):$PATH"
    # The source archive only: there are no binary wheels, and a stray one would be built for something else. So would be
    # one that pip itself kept from an earlier build: its cache knows nothing of MPI, TensorFlow or the compiler.
    "$python" -m pip wheel --no-cache-dir --no-deps --no-build-isolation --no-binary horovod \
        -w "$building" "horovod==$version" >"$building/log" 2>&1 || {
        tail -60 "$building/log" >&2
        echo "Horovod $version did not build; the end of its log stands above." >&2
        exit 1
    }
    mkdir -p "$wheels"
    # Rename last, so that an interrupted build never leaves half a wheel in the cache.
    for wheel in "$building"/horovod-*.whl; do
        cp "$wheel" "$wheels/.$$.part"
        mv "$wheels/.$$.part" "$wheels/$(basename "$wheel")"
    done
fi
"$python" -m pip install -q --no-deps --force-reinstall "$wheels"/horovod-*.whl
