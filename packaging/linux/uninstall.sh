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
command -v update-desktop-database >/dev/null && [ -d "$prefix/share/applications" ] &&
    update-desktop-database -q "$prefix/share/applications" || :
command -v update-mime-database >/dev/null && [ -d "$prefix/share/mime/packages" ] &&
    update-mime-database "$prefix/share/mime" >/dev/null 2>&1 || :
for folder in bin lib share; do rmdir "$prefix/$folder" 2>/dev/null || :; done
echo "Removed. Models, outputs and settings are where they were."
