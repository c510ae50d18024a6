#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything of a release from this tree, for the version in the file VERSION. The same commit, Go release and
# archiving tools give the same files, byte for byte. RELEASE.md describes what is done with them.
#
#   hack/release.sh [FOLDER]     (default: dist)
#
# ARCHITECTURES="amd64"  builds for fewer architectures (default: amd64 arm64)
# ALLOW_DIRTY=1          accepts local changes, which no release has
# DOWNLOADS=URL          where the files are published, each release in the folder vVERSION; the krew manifest says so
# SIGNING_KEY=FILE       signs SHA256SUMS with this key of ECDSA on P-256, for cosign: SHA256SUMS.sig
# BUILDER=URL            who builds, for the provenance (default: make release on any machine)
# SOURCE_DATE_EPOCH      time of all files (default: that of the commit)
# GZIP_LEVEL=1           packs archives faster and larger (default: 6)
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
out=${1:-dist}
version=$(<VERSION)
repository=${IMAGE:-registry.loutres.me/wangell}
downloads=${DOWNLOADS:-https://wangell.loutres.me/releases}
read -ra architectures <<<"${ARCHITECTURES:-amd64 arm64}"

commit=
if commit=$(git rev-parse --verify --quiet HEAD 2>/dev/null); then
    if [ -z "${ALLOW_DIRTY:-}" ] && [ -n "$(git status --porcelain)" ]; then
        echo "the tree has local changes: commit or stash them (git status), or set ALLOW_DIRTY=1 for a trial" >&2
        exit 1
    fi
    tagged=$(git rev-parse --verify --quiet "refs/tags/v$version^{commit}" || true)
    if [ -z "${ALLOW_DIRTY:-}" ] && [ -n "$tagged" ] && [ "$tagged" != "$commit" ]; then
        echo "v$version is tagged already, at $tagged: raise VERSION" >&2
        exit 1
    fi
fi
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y VERSION)}
export LC_ALL=C TZ=UTC
umask 022

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
rm -rf "$out"
mkdir -p "$out"
out=$(realpath "$out")
say() { echo "release: $*"; }

# archive FILE FOLDER [PARENT]: a compressed tar of $stage/PARENT/FOLDER that depends on names, modes and contents only.
archive() {
    tar --create --directory "$stage/${3:-}" --sort=name --format=ustar --owner=0 --group=0 --numeric-owner \
        --mode=u+rwX,go+rX,go-w --mtime="@$SOURCE_DATE_EPOCH" "$2" | gzip "-${GZIP_LEVEL:-6}" --no-name >"$1"
}

programs=(wangell wangell-snapshotter kubectl-wangell)
if [ -d lab/cmd/wangell-lab ]; then programs+=(wangell-lab); fi
package=wangell.loutres.me/internal/base/buildinfo
ldflags="-s -w -X $package.Version=v$version -X $package.commit=$commit"

# build OS ARCHITECTURE PROGRAM FOLDER
build() {
    local module=.
    if [ "$3" = wangell-lab ]; then module=lab; fi
    GOFLAGS='' GOWORK=off GOOS=$1 GOARCH=$2 CGO_ENABLED=0 "$go" build -C "$module" -trimpath -buildvcs=false \
        -gcflags=all=-dwarf=false -ldflags "$ldflags" -o "$4/$3" "./cmd/$3"
}
GOFLAGS='' "$go" run ./hack/licenses -text "$stage/LICENSES-libraries.txt"
for shell in bash zsh fish; do
    GOFLAGS='' "$go" run ./cmd/wangell completion "$shell" >"$stage/completion.$shell"
done
for arch in "${architectures[@]}"; do
    folder=wangell_${version}_linux_$arch
    mkdir -p "$stage/$folder"
    for program in "${programs[@]}"; do
        say "$program for linux/$arch"
        build linux "$arch" "$program" "$stage/$folder"
        "$go" run ./hack/sbom --name "$program" --version "v$version" --time "$SOURCE_DATE_EPOCH" \
            --page internal/show/dashboard/assets/app.js --page-source ui \
            "$stage/$folder/$program" >"$out/${program}_${version}_linux_$arch.cdx.json"
    done
    cp LICENSE README.md CHANGELOG.md "$stage/$folder/"
    cp ui/LICENSES.txt "$stage/$folder/LICENSES-dashboard.txt"
    cp "$stage/LICENSES-libraries.txt" "$stage/$folder/"
    mkdir "$stage/$folder/examples"
    cp examples/*.yaml "$stage/$folder/examples/"
    archive "$out/$folder.tar.gz" "$folder"

    say "Debian package for $arch"
    cp "$stage/$folder/wangell" "$stage/wangell-linux-$arch"
    cp "$stage/$folder/wangell-snapshotter" "$stage/wangell-snapshotter-linux-$arch"
    mkdir -p "$stage/deb-$arch"
    ln "$stage/wangell-linux-$arch" "$stage/deb-$arch/wangell"
    ln "$stage/$folder/wangell-snapshotter" "$stage/deb-$arch/wangell-snapshotter"
    cp "$stage"/completion.* "$stage/LICENSES-libraries.txt" "$stage/deb-$arch/"
    DEB_VERSION=$version DEB_ARCH=$arch STAGE=$stage/deb-$arch hack/tool.sh nfpm package --packager deb \
        --config deploy/debian/nfpm.yaml --target "$out/wangell_${version}_$arch.deb" >/dev/null
done

# The plugin of kubectl alone, as krew installs it.
plugins=()
for os in linux darwin; do
    for arch in "${architectures[@]}"; do
        say "archive of kubectl-wangell for $os/$arch"
        folder=plugin/$os-$arch
        mkdir -p "$stage/$folder"
        if [ "$os" = linux ]; then
            cp "$stage/wangell_${version}_linux_$arch/kubectl-wangell" "$stage/$folder/"
        else
            build "$os" "$arch" kubectl-wangell "$stage/$folder"
        fi
        cp LICENSE "$stage/LICENSES-libraries.txt" "$stage/$folder/"
        plugins+=("$out/kubectl-wangell_${version}_${os}_$arch.tar.gz")
        archive "${plugins[-1]}" . "$folder"
    done
done
"$go" run ./hack/krew --version "v$version" --url "$downloads/v$version" "${plugins[@]}" >"$out/kubectl-wangell_$version.yaml"

say "image"
platforms=$(printf 'linux/%s,' "${architectures[@]}")
"$go" run ./hack/image --version "v$version" --name "$repository" --platforms "${platforms%,}" --programs "$stage" \
    --digest-file "$stage/digest" --out "$out/wangell-image_$version.tar" >/dev/null
digest=$(<"$stage/digest")

say "chart and manifests"
IMAGE_DIGEST=$digest hack/chart-generate.sh "$stage/generated"
cp "$stage/generated/manifests/wangell.yaml" "$out/wangell_$version.yaml"
cp "$stage/generated/manifests/clean.yaml" "$out/wangell-clean_$version.yaml"
mkdir "$stage/chart"
cp -r deploy/chart "$stage/chart/wangell"
printf 'annotations:\n  # What the tag of appVersion means.\n  wangell.loutres.me/image-digest: %s\n' "$digest" \
    >>"$stage/chart/wangell/Chart.yaml"
archive "$out/wangell-$version.tgz" wangell chart

"$go" run ./hack/provenance --version "$version" --commit "$commit" --time "$SOURCE_DATE_EPOCH" \
    --architectures "${architectures[*]}" --image "$repository@$digest" ${BUILDER:+--builder "$BUILDER"} \
    "$out"/* >"$stage/provenance"
cp "$stage/provenance" "$out/wangell_$version.intoto.json"
(cd "$out" && sha256sum -- * >"$stage/SHA256SUMS" && cp "$stage/SHA256SUMS" .)
if [ -n "${SIGNING_KEY:-}" ]; then "$go" run ./hack/provenance --sign "$out/SHA256SUMS" --key "$SIGNING_KEY"; fi
say "v$version in $out; image $repository:v$version is $digest"
