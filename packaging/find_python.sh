#!/bin/sh
# Print a Python that is 3.11 or newer: the one asked for, else python3, else the newest named one on PATH.
# A name is tried by running it, since a version manager may leave names on PATH that start nothing.
new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

for name in ${1:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if new_enough "$name"; then
        echo "$name"
        exit 0
    fi
done
if [ -n "$1" ]; then
    echo "$1 is not Python 3.11 or newer. Name another one: make PYTHON=/path/to/python3.11." >&2
else
    echo "Bitsmith needs Python 3.11 or newer and found none. Install it, or name it: make PYTHON=/path/to/python3.11." >&2
fi
exit 1
