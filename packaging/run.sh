#!/bin/sh
# Open the window with the sample model at hand; where no window can open, say why and do the same job as text.
# Usage: run.sh FOLDER_OF_PROGRAMS
bin=$1

sample=$("$bin/python" -m core.sample) || exit 1
reason=$("$bin/python" -c 'from app.system_check import why_not; print(why_not())') || exit 1
if [ -z "$reason" ]; then
    exec "$bin/bitsmith" "$sample"
fi
echo "$reason The main job runs as text instead."
exec "$bin/python" -m core.sample --demo
