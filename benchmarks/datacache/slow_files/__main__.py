"""Mounts a directory as a slow network file system until it is stopped, then prints its counters as JSON."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.datacache import slow_files


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.datacache.slow_files",
        description=slow_files.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--source", type=Path, required=True, help="directory to serve")
    parser.add_argument("--mount", type=Path, required=True, help="mount point: an empty directory, created if missing")
    parser.add_argument(
        "--rate", type=slow_files.bytes_per_second, help="total of all readers, such as 50MB/s (default: no limit)"
    )
    parser.add_argument(
        "--latency", type=slow_files.seconds, default="0ms", help="of each operation, such as 2ms (default: 0ms)"
    )
    parser.add_argument(
        "--in-flight", type=int, default=16, help="maximum number of concurrent operations (default: 16)"
    )
    parser.add_argument("--until-closed", action="store_true", help="also stop at the end of standard input")
    options = parser.parse_args()
    reason = slow_files.unavailable()
    if reason is not None:
        sys.exit(reason)
    if options.in_flight < 1 or not options.source.is_dir():
        parser.error(f"expected --in-flight of at least 1 and a directory, got {options.in_flight}, {options.source}")

    from benchmarks.datacache.slow_files import link, server  # they need pyfuse3

    options.mount.mkdir(parents=True, exist_ok=True)
    made = link.Link(options.rate, options.latency, options.in_flight)

    def ready() -> None:
        print(f"Mounted on {options.mount}", flush=True)

    try:
        server.serve(options.source.absolute(), options.mount, made, options.until_closed, ready)
    except RuntimeError as error:
        sys.exit(str(error))
    if options.until_closed:
        options.mount.rmdir()  # as whoever made it may have been killed
    print(made.counted().decode(), flush=True)


if __name__ == "__main__":
    main()
