#!/bin/sh
# Install the program for this user, or for everybody: install.sh [--prefix FOLDER]   (default: ~/.local)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=${HOME:-}/.local
case "${1:-}" in
--prefix) prefix=${2:?"--prefix needs a folder"} ;;
--prefix=*) prefix=${1#--prefix=} ;;
"") [ -n "${HOME:-}" ] || { echo "HOME is not set; say where: install.sh --prefix FOLDER" >&2; exit 2; } ;;
*) echo "Usage: install.sh [--prefix FOLDER]" >&2; exit 2 ;;
esac
mkdir -p "$prefix/lib" "$prefix/bin" "$prefix/share"
prefix=$(cd "$prefix" && pwd)
home=$prefix/lib/@NAME@
if [ -e "$home" ]; then
    if [ ! -f "$home/uninstall.sh" ]; then
        echo "$home is there and is not this program's. Remove it, or install elsewhere with --prefix." >&2
        exit 1
    fi
    sh "$home/uninstall.sh"
fi
mkdir -p "$prefix/lib" "$prefix/bin"
# The program becomes visible under its name only when it is whole.
rm -rf "$home.new"
cp -R "$here/program" "$home.new"
cp "$here/uninstall.sh" "$here/THIRD-PARTY.txt" "$home.new/"
: >"$home.new/installed-files"
(cd "$here/share" && find . -type f) | while IFS= read -r file; do
    file=share/${file#./}
    mkdir -p "$prefix/$(dirname "$file")"
    cp "$here/$file" "$prefix/$file"
    printf '%s\n' "$file" >>"$home.new/installed-files"
done
mv "$home.new" "$home"
ln -sf "../lib/@NAME@/@NAME@" "$prefix/bin/@NAME@"
# A program started from the desktop is named by its whole path: ~/.local/bin is on few desktops' PATH. In the entry's
# quotes " ` $ take two backslashes before them, \ becomes four, and % is doubled (Desktop Entry Specification, Exec).
quoted=$(printf '%s' "$home/@NAME@" | sed -e 's/\\/\\\\\\\\/g' -e 's/["`$]/\\\\&/g' -e 's/%/%%/g')
entry=$prefix/share/applications/@NAME@.desktop
while IFS= read -r line; do
    case $line in
    Exec=*) printf 'Exec="%s" %%f\n' "$quoted" ;;
    *) printf '%s\n' "$line" ;;
    esac
done <"$here/share/applications/@NAME@.desktop" >"$entry"
command -v update-desktop-database >/dev/null && update-desktop-database -q "$prefix/share/applications" || :
command -v update-mime-database >/dev/null && update-mime-database "$prefix/share/mime" >/dev/null 2>&1 || :
echo "Installed. Start it from the menu, or with: $prefix/bin/@NAME@"
echo "Remove it with: sh '$home/uninstall.sh'"
