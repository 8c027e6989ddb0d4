#!/bin/sh
# Open the window with the sample model at hand; without a display do the same job as text.
# Usage: run.sh PYTHON
python=$1

has_display() {
    [ -n "$QT_QPA_PLATFORM" ] || [ -n "$DISPLAY" ] || [ -n "$WAYLAND_DISPLAY" ] || [ "$(uname)" = Darwin ]
}

sample=$("$python" -m core.sample) || exit 1
if has_display; then
    "$python" -m app.bootstrap "$sample"
    status=$?
    # 69 (EX_UNAVAILABLE): the window can not open here, and app.bootstrap has said why.
    [ "$status" -eq 69 ] || exit "$status"
else
    echo "There is no display here, so this does the main job as text instead of opening the window."
fi
exec "$python" -m core.sample --demo
