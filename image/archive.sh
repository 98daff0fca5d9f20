#!/usr/bin/env bash
# Puts the container image together as an OCI archive (a tar of an OCI image layout), without a container engine.
#
#   image/archive.sh BINARIES ARCHIVE    BINARIES is a folder with garage-holdfast and kubectl-holdfast
#
# Two layers: the few libraries that the binaries are linked with (and settings), and the binaries. They are not linked
# statically: a static glibc still wants the shared one of the same build to look up names, and the product
# looks up Garage's Services. The libraries are this machine's, so the image runs on what runs here.
#
# Equal input gives an equal archive: every entry has the same owner, order and time (SOURCE_DATE_EPOCH, else 0).
set -euo pipefail
export LC_ALL=C
umask 022
[ $# = 2 ] || { echo "usage: $0 BINARIES ARCHIVE" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
binaries=$1 archive=$2 epoch=${SOURCE_DATE_EPOCH:-0}
programs=(garage-holdfast kubectl-holdfast)

for program in "${programs[@]}"; do
  [ -x "$binaries/$program" ] || { echo "image: $binaries/$program is missing: cargo build --release --locked" >&2; exit 1; }
done
case $(uname -m) in
  x86_64) architecture=amd64 ;;
  aarch64) architecture=arm64 ;;
  *) echo "image: no name for the architecture $(uname -m)" >&2; exit 1 ;;
esac
version=$("$binaries/garage-holdfast" --version | cut -d' ' -f2)
created=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
layout=$work/layout
mkdir -p "$layout/blobs/sha256"

pack() { # pack FOLDER TAR
  tar --create --format=ustar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner \
    --directory="$1" --file="$2" -- $(ls -A "$1")
}
keep() { # keep FILE: moves it among the blobs; sets digest and size
  digest=$(sha256sum "$1" | cut -d' ' -f1)
  size=$(stat -c %s "$1")
  mv "$1" "$layout/blobs/sha256/$digest"
}

# --- the libraries, at the paths where the loader looks for them; users, name services, authorities
base=$work/base
for program in "${programs[@]}"; do
  linked=$(ldd "$binaries/$program")
  if grep -q 'not found' <<<"$linked"; then echo "image: $program lacks libraries: $linked" >&2; exit 1; fi
  grep -oE '/[^ ]+ \(0x' <<<"$linked" | sed 's/ .*//'
done | sort -u | while read -r library; do install -D -m 755 "$library" "$base$library"; done
mkdir -p "$base/etc"
printf 'root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/nonexistent:/sbin/nologin\n' >"$base/etc/passwd"
printf 'root:x:0:\nnonroot:x:65532:\n' >"$base/etc/group"
printf 'hosts: files dns\n' >"$base/etc/nsswitch.conf"
# Who signs for public servers: a kubeconfig without an authority of its own relies on them.
for bundle in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
  if [ -e "$bundle" ]; then install -D -m 644 "$bundle" "$base/etc/ssl/certs/ca-certificates.crt"; break; fi
done
pack "$base" "$work/base.tar"
keep "$work/base.tar"
base_digest=$digest base_size=$size

# --- the product
own=$work/own
for program in "${programs[@]}"; do install -D -m 755 "$binaries/$program" "$own/usr/bin/$program"; done
install -D -m 644 "$here/LICENSE" "$own/usr/share/doc/garage-holdfast/LICENSE"
pack "$own" "$work/own.tar"
keep "$work/own.tar"
own_digest=$digest own_size=$size

# --- configuration (as in the Dockerfile; a test compares them), manifest, index
cat >"$work/config.json" <<EOF
{
  "created": "$created", "architecture": "$architecture", "os": "linux",
  "config": {
    "User": "65532:65532", "WorkingDir": "/", "Env": ["PATH=/usr/bin"],
    "Entrypoint": ["/usr/bin/garage-holdfast"],
    "Labels": {
      "org.opencontainers.image.title": "garage-holdfast",
      "org.opencontainers.image.source": "https://github.com/garage-holdfast/garage-holdfast",
      "org.opencontainers.image.licenses": "Apache-2.0",
      "org.opencontainers.image.version": "$version"
    }
  },
  "rootfs": {"type": "layers", "diff_ids": ["sha256:$base_digest", "sha256:$own_digest"]},
  "history": [
    {"created": "$created", "created_by": "the libraries that the binaries are linked with"},
    {"created": "$created", "created_by": "garage-holdfast $version"}
  ]
}
EOF
keep "$work/config.json"
cat >"$work/manifest.json" <<EOF
{
  "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
  "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "sha256:$digest", "size": $size},
  "layers": [
    {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "sha256:$base_digest", "size": $base_size},
    {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "sha256:$own_digest", "size": $own_size}
  ]
}
EOF
keep "$work/manifest.json"
cat >"$layout/index.json" <<EOF
{
  "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
  "manifests": [{
    "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:$digest", "size": $size,
    "platform": {"architecture": "$architecture", "os": "linux"},
    "annotations": {
      "io.containerd.image.name": "ghcr.io/garage-holdfast/garage-holdfast:$version",
      "org.opencontainers.image.ref.name": "$version"
    }
  }]
}
EOF
echo '{"imageLayoutVersion": "1.0.0"}' >"$layout/oci-layout"

mkdir -p "$(dirname "$archive")"
pack "$layout" "$archive.part"
mv "$archive.part" "$archive"
echo "garage-holdfast $version for linux/$architecture: sha256:$digest"
echo "$archive"
