#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves that a release is reproducible, and that what is in it works: builds it twice for this machine's architecture,
# from two copies of the tree in different folders with different temporary folders, umasks, time zones and file times,
# and compares all files byte for byte. Then it installs, upgrades and purges the Debian package in a folder.
#
# Both builds use the compiler's cache, so that the check takes seconds; COLD=1 compiles twice from nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
arch=$("$go" env GOARCH)
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
version=$(<VERSION)
epoch=$(git log -1 --format=%ct)

build() { # build COPY UMASK TIMEZONE
    local copy=$work/$1 cache
    mkdir -p "$copy" "$work/tmp-$1"
    git ls-files -z --cached --others --exclude-standard |
        tar --null --files-from - --ignore-failed-read -cf - 2>/dev/null | (umask "$2" && tar --touch -xf - -C "$copy")
    if [ -n "${COLD:-}" ]; then cache=$work/cache-$1; else cache=$("$go" env GOCACHE); fi
    # The copies are no git repositories: they get the commit's time, and no commit.
    (cd "$copy" && umask "$2" && TMPDIR=$work/tmp-$1 TZ=$3 GOCACHE=$cache SOURCE_DATE_EPOCH=$epoch ARCHITECTURES=$arch \
        GZIP_LEVEL=1 GIT_CEILING_DIRECTORIES=$work hack/release.sh) >"$work/$1.log" 2>&1 || { cat "$work/$1.log" >&2; exit 1; }
}
fail() { echo "release-check: $*" >&2; exit 1; }

build one 022 UTC
build a/longer/path/two 077 Asia/Tokyo
one=$work/one/dist two=$work/a/longer/path/two/dist
diff -r "$one" "$two" || fail "two builds of the same tree differ: compare the files with diffoscope"
(cd "$one" && sha256sum --quiet --strict --check SHA256SUMS)
echo "two builds are equal: $(find "$one" -type f | wc -l) files, $(du -sh "$one" | cut -f 1)"

mkdir "$work/unpacked"
tar -xzf "$one/wangell_${version}_linux_$arch.tar.gz" -C "$work/unpacked"
for program in "$work/unpacked"/*/wangell; do
    "$program" version | grep -qF "v$version " || fail "$program is not v$version: $("$program" version)"
done
digest=$(tar -xOf "$one/wangell-image_$version.tar" index.json | grep -oE 'sha256:[0-9a-f]{64}' | head -1)
grep -q "wangell@$digest\$" "$one/wangell_$version.yaml" || fail "the manifests do not pin the image $digest"
rendered=$(hack/helm.sh template wangell "$one/wangell-$version.tgz")
grep -q "wangell@$digest\$" <<<"$rendered" || fail "the chart does not use the image v$version by its digest $digest"
if grep -E '^ *image: ' <<<"$rendered" | grep -vE '@sha256:[0-9a-f]{64}$'; then fail "the chart uses images by tag"; fi
rendered=$(hack/helm.sh template wangell "$one/wangell-$version.tgz" --set image.tag=other)
grep -q 'wangell:other$' <<<"$rendered" || fail "image.tag does not replace the digest of the release"
statement=$one/wangell_$version.intoto.json
jq -e --arg digest "${digest#sha256:}" '.predicateType == "https://slsa.dev/provenance/v1" and
    ([.subject[] | select(.digest.sha256 == $digest)] | length == 1)' "$statement" >/dev/null ||
    fail "the provenance does not name the image $digest"
(cd "$one" && jq -r '.subject[] | select(.name | contains("/") | not) | "\(.digest.sha256)  \(.name)"' "$statement" |
    sha256sum --quiet --strict --check) || fail "the provenance does not have the files as they are"
named=$(jq '[.subject[] | select(.name | contains("/") | not)] | length' "$statement")
files=$(find "$one" -type f | wc -l)
[ "$((named + 2))" = "$files" ] || fail "the provenance names $named of $files files: want all but itself and SHA256SUMS"
for bom in "$one"/*.cdx.json; do
    jq -e '.bomFormat == "CycloneDX" and (.components | length > 20)' "$bom" >/dev/null || fail "$bom is no full SBOM"
done
# What the dashboard is made of.
for package in $(jq -r '.packages | to_entries[] | select(.key != "" and (.value.dev | not)) |
    "\(.key | ltrimstr("node_modules/"))@\(.value.version)"' ui/package-lock.json); do
    jq -e --arg purl "pkg:npm/$package" '.components[] | select(.purl == $purl and .licenses != null)' \
        "$one/wangell_${version}_linux_$arch.cdx.json" >/dev/null || fail "the SBOM of wangell has no $package"
    grep -q "^== ${package/@/ }\$" ui/LICENSES.txt || fail "ui/LICENSES.txt has no $package"
done
cp "$one/kubectl-wangell_$version.yaml" "$work/wangell.yaml"
hack/tool.sh validate-krew-manifest -skip-install -manifest "$work/wangell.yaml" >"$work/krew.log" 2>&1 ||
    { cat "$work/krew.log" >&2; fail "krew does not accept its manifest"; }
for os in linux darwin; do
    plugin=kubectl-wangell_${version}_${os}_$arch.tar.gz
    sum=$(sha256sum <"$one/$plugin") sum=${sum%% *}
    grep -A 1 -F "sha256: $sum" "$one/kubectl-wangell_$version.yaml" | grep -q "/v$version/$plugin\$" ||
        fail "the krew manifest does not name $plugin with its checksum"
    mkdir "$work/plugin-$os"
    tar -xzf "$one/$plugin" -C "$work/plugin-$os"
    for file in kubectl-wangell LICENSE LICENSES-libraries.txt; do
        [ -f "$work/plugin-$os/$file" ] || fail "$plugin has no $file"
    done
done
"$work/plugin-linux/kubectl-wangell" --version | grep -qF "v$version" || fail "kubectl-wangell is not v$version"
echo "programs, manifests, chart and SBOM are v$version; the manifests pin $digest"

if ! command -v dpkg >/dev/null; then
    echo "no dpkg here: the Debian package was not installed"
    exit
fi
deb=$one/wangell_${version}_$arch.deb root=$work/root
mkdir -p "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/info"
touch "$root/var/lib/dpkg/status" "$root/var/lib/dpkg/available"
# The package's scripts run here with DPKG_ROOT set. That folder has no /run/systemd/system, so they start nothing.
package() {
    dpkg --root="$root" --force-not-root --force-script-chrootless --force-depends --force-confold --log=/dev/null \
        "$@" >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" >&2; fail "dpkg $*"; }
}
dpkg-deb --info "$deb" >/dev/null
dpkg-deb --contents "$deb" | awk '$2 != "root/root" { print; bad = 1 } END { exit bad }' ||
    fail "files in the package do not belong to root"
package --install "$deb"
"$root/usr/bin/wangell" version >/dev/null
"$root/usr/bin/wangell-snapshotter" --version | grep -qF "v$version" || fail "wangell-snapshotter is not v$version"
for file in etc/default/wangell etc/wangell/services usr/lib/systemd/system/wangell.service \
    usr/lib/systemd/system/wangell-snapshotter.service usr/share/bash-completion/completions/wangell \
    usr/share/zsh/vendor-completions/_wangell usr/share/fish/vendor_completions.d/wangell.fish \
    usr/share/doc/wangell/copyright usr/share/doc/wangell/LICENSES-dashboard.txt \
    usr/share/doc/wangell/LICENSES-libraries.txt; do
    [ -e "$root/$file" ] || fail "the package has no /$file"
done
echo 'WANGELL_FLAGS="--interface eth1"' >"$root/etc/default/wangell"
package --install "$deb"
grep -q eth1 "$root/etc/default/wangell" || fail "an upgrade replaced /etc/default/wangell"
mkdir -p "$root/var/lib/wangell/logs"
package --purge wangell
for file in etc/default/wangell etc/wangell usr/bin/wangell var/lib/wangell; do
    [ ! -e "$root/$file" ] || fail "purged, and /$file is still there"
done
echo "the Debian package installs, keeps its configuration in an upgrade, and leaves nothing after a purge"

if command -v systemd-analyze >/dev/null; then
    # verify looks for the program, which is not installed on this machine.
    program=$(find "$work/unpacked" -name wangell -type f)
    sed "s,^ExecStart=/usr/bin/wangell,ExecStart=$program," deploy/debian/wangell.service >"$work/wangell.service"
    problems=$(systemd-analyze verify --man=no "$work/wangell.service" 2>&1 | grep -F wangell.service || true)
    [ -z "$problems" ] || fail "systemd-analyze verify: $problems"
    echo "the systemd unit is sound"
fi
