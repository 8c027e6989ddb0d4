#!/bin/sh
# Remove what install.sh put here. Models, settings and outputs are the user's own and stay.
set -eu
home=$(cd "$(dirname "$0")" && pwd)
if [ ! -f "$home/installed-files" ]; then
    echo "Run the uninstall.sh that stands in the installed program's folder (lib/@NAME@)." >&2
    exit 1
fi
prefix=$(cd "$home/../.." && pwd)
while IFS= read -r file; do
    rm -f "$prefix/$file"
    folder=$(dirname "$file")
    while [ "$folder" != . ] && rmdir "$prefix/$folder" 2>/dev/null; do folder=$(dirname "$folder"); done
done <"$home/installed-files"
rm -f "$prefix/bin/@NAME@"
rm -rf "$home"
# What was made of these files goes as well; where other programs have such files, it is made anew without ours.
applications=$prefix/share/applications mime=$prefix/share/mime
if ls "$applications"/*.desktop >/dev/null 2>&1; then
    command -v update-desktop-database >/dev/null && update-desktop-database -q "$applications" || :
else
    rm -f "$applications/mimeinfo.cache"
fi
if [ -d "$mime/packages" ]; then
    command -v update-mime-database >/dev/null && update-mime-database "$mime" >/dev/null 2>&1 || :
else
    for name in XMLnamespaces aliases generic-icons globs globs2 icons magic mime.cache subclasses treemagic types version \
        application/x-gguf.xml application/x-safetensors.xml; do rm -f "$mime/$name"; done
fi
rmdir "$applications" "$mime/application" "$mime" 2>/dev/null || :
for folder in bin lib share; do rmdir "$prefix/$folder" 2>/dev/null || :; done
echo "Removed. Models, outputs and settings are where they were."
