#!/usr/bin/env bash
# make_dmg.sh Bitsmith.app TARGET.dmg VERSION: sign, pack, notarize.
# BITSMITH_MACOS_IDENTITY      a "Developer ID Application" identity of the keychain; without it the app is signed ad hoc
# BITSMITH_NOTARY_PROFILE      a profile of `xcrun notarytool store-credentials`; without it nothing is notarized
set -euo pipefail
app=$1 target=$2 version=$3
here=$(cd "$(dirname "$0")" && pwd)
identity=${BITSMITH_MACOS_IDENTITY:--}
options=(--force --options runtime --entitlements "$here/entitlements.plist" --sign "$identity")
if [[ $identity != - ]]; then options+=(--timestamp); fi

# Inner code first: a signature covers those of what it contains. Bit 111 also marks data, so `file` decides.
while IFS= read -r -d '' inner; do
    if file -b "$inner" | grep -q 'Mach-O'; then codesign "${options[@]}" "$inner"; fi
done < <(find "$app/Contents" -type f \( -name '*.dylib' -o -name '*.so' -o -perm -111 \) -print0)
codesign "${options[@]}" "$app"
codesign --verify --deep --strict "$app"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -R "$app" "$folder/"
ln -s /Applications "$folder/Applications"
rm -f "$target"
hdiutil create -volname "Bitsmith $version" -srcfolder "$folder" -fs HFS+ -format ULMO "$target"
if [[ $identity != - ]]; then codesign --force --timestamp --sign "$identity" "$target"; fi
if [[ -n ${BITSMITH_NOTARY_PROFILE:-} ]]; then
    xcrun notarytool submit "$target" --keychain-profile "$BITSMITH_NOTARY_PROFILE" --wait
    xcrun stapler staple "$target"
    spctl --assess --type open --context context:primary-signature "$target"
fi
