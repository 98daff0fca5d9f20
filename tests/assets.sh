#!/usr/bin/env bash
# Builds (once) what the test bed runs: a real control plane and real Garage; and the tools that judge the alerts, the
# documentation and the dependencies.
#
#   tests/assets.sh            everything `make test` and `make demo` need
#   tests/assets.sh oldest     also the oldest API server of the matrix (`make soak`)
#   tests/assets.sh path       prints the folder, builds nothing
#   tests/assets.sh path NAME  prints where the binary NAME of the other tools is or will be, builds nothing
#
# Every asset is made in a temporary folder beside its place and renamed when whole, so a
# half-built one is never used and an interrupted run can simply be started again.
# Binaries that are there already are taken: $KUBEBUILDER_ASSETS and PATH where their
# version fits, $GARAGE_BIN for Garage of its own version.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root="${XDG_CACHE_HOME:-$HOME/.cache}/garage-holdfast/assets"
# Kept until all is there, so that an interrupted run goes on where it was.
go_caches="$root/.go"
kube_version=1.37.2
oldest_version=1.34.4
garage_versions="2.5.0 2.0.0"
helm_version=4.3.1
prometheus_version=3.13.5 # of the module in tests/prometheus, which calls it v0.313.5
declare -A crates=([cargo-deny]=0.20.2 [mdbook]=0.5.4)
declare -A crate_arguments=([mdbook]="--no-default-features --features search") # no server

if [ "${1:-}" = path ]; then echo "$root${2:+/$2-${crates[$2]}/$2}"; exit 0; fi

# --- what the machine must have, named before anything is built -------------------------
missing=0
need() { # need COMMAND WHAT-TO-DO
  command -v "$1" >/dev/null 2>&1 && return 0
  echo "assets: '$1' is missing: $2" >&2
  missing=1
}
if [ "$(uname -s)" != Linux ]; then echo "assets: the bed needs Linux (namespaces); this is $(uname -s)" >&2; exit 1; fi
need cargo "install the Rust toolchain (rustup.rs)"
need go "install Go 1.26 or newer"
need cc "install a C compiler (Debian: apt-get install build-essential)"
need make "install make (Debian: apt-get install make)"
need ip "install iproute2 (Debian: apt-get install iproute2)"
need unshare "install util-linux (Debian: apt-get install util-linux)"
need nsenter "install util-linux (Debian: apt-get install util-linux)"
need flock "install util-linux (Debian: apt-get install util-linux)"
if command -v go >/dev/null 2>&1; then
  gv=$(go env GOVERSION | sed 's/^go//; s/[^0-9.].*//')
  if [ "$(printf '1.26\n%s\n' "$gv" | sort -V | head -1)" != 1.26 ]; then
    echo "assets: Go $gv is too old: install Go 1.26 or newer" >&2; missing=1
  fi
fi
if ! unshare --user --map-root-user --mount --net --pid --fork true 2>/dev/null; then
  echo "assets: this user may not make namespaces: run as root, or allow unprivileged user namespaces (sysctl -w kernel.unprivileged_userns_clone=1; on Ubuntu also kernel.apparmor_restrict_unprivileged_userns=0)" >&2
  missing=1
fi
[ "$missing" = 0 ] || exit 1

mkdir -p "$root"
# Two runs at once build nothing twice: the second waits here. The lock ends with its owner.
exec 9>"$root/.lock"
if ! flock -n 9; then echo "assets: another run is building; waiting for it"; flock 9; fi
# What an interrupted run left behind.
rm -rf "$root"/.building-*

say() { printf '%s assets: %s\n' "$(date +%H:%M:%S)" "$*"; }

# Rough minutes on two cores, only for the remaining time that is shown.
declare -A minutes=()
todo=()
# there NAME: Prometheus' asset had promtool alone once.
there() { [ -e "$root/$1/.whole" ] && { [[ $1 != prometheus-* ]] || [ -x "$root/$1/prometheus" ]; }; }
plan() { there "$1" || { todo+=("$1"); minutes[$1]=$2; }; }
plan "controlplane-$kube_version" 7
[ "${1:-}" = oldest ] && plan "controlplane-$oldest_version" 5
plan "prometheus-$prometheus_version" 5
for v in $garage_versions; do plan "garage-$v" 6; done
for crate in "${!crates[@]}"; do plan "$crate-${crates[$crate]}" 2; done

remaining() { local sum=0 a; for a in "${todo[@]}"; do there "$a" || sum=$((sum + minutes[$a])); done; echo "$sum"; }

# begin NAME -> prints the folder to build in
begin() { local d="$root/.building-$1-$$"; rm -rf "$d"; mkdir -p "$d"; echo "$d"; }
# whole NAME DIR: the only place where an asset gets its name
whole() { rm -rf "${root:?}/$1"; touch "$2/.whole"; mv "$2" "$root/$1"; say "$1 is ready"; }

# A heartbeat for a build that prints nothing for minutes.
tick() { local name=$1 start; start=$(date +%s); while sleep 30; do say "$name: $((($(date +%s) - start) / 60)) min; about $(remaining) min in all were left at its start"; done; }
run_ticking() { # run_ticking NAME COMMAND...
  local name=$1 log rc=0; shift
  log="$root/$name.log"
  # The lock (9) is this script's alone: a child that outlived it would hold up the next run.
  tick "$name" 9>&- & local ticker=$!
  "$@" >"$log" 2>&1 9>&- || rc=$?
  kill "$ticker" 2>/dev/null || true; wait "$ticker" 2>/dev/null || true
  if [ "$rc" != 0 ]; then echo "assets: building $name failed ($rc); the end of $log:" >&2; tail -30 "$log" >&2; exit 1; fi
}

# existing COMMAND VERSION-REGEX VERSION-ARGS... -> prints the path of a fitting binary
existing() {
  local name=$1 want=$2 dir; shift 2
  for dir in "${KUBEBUILDER_ASSETS:-}" $(tr ':' ' ' <<<"$PATH"); do
    if [ -n "$dir" ] && [ -x "$dir/$name" ] && "$dir/$name" "$@" 2>/dev/null | grep -Eq "$want"; then echo "$dir/$name"; return 0; fi
  done
  return 1
}

go_build() { # go_build MODULE-DIR OUT PACKAGE BINARY [LINKER-FLAGS [TAGS]]
  # In caches of its own: what a control plane leaves in them is 12 GB that nothing here needs again.
  (cd "$1" && GOCACHE="$go_caches/build" GOMODCACHE="$go_caches/modules" CGO_ENABLED=0 \
    GOFLAGS='-mod=readonly -modcacherw' GOTOOLCHAIN=local go build -trimpath ${6:+-tags "$6"} -ldflags "-s -w ${5:-}" -o "$2/$4" "$3")
}

controlplane() { # controlplane VERSION MODULE-DIR BINARY...
  local version=$1 module=$2 out path name; shift 2
  local line="v${version%.*}\\."
  local stamp=k8s.io/component-base/version flags
  flags="-X $stamp.gitVersion=v$version -X $stamp.gitMajor=${version%%.*} -X $stamp.gitMinor=$(cut -d. -f2 <<<"$version") -X $stamp.gitTreeState=clean"
  flags+=" -X helm.sh/helm/v4/internal/version.version=v$helm_version"
  out=$(begin "controlplane-$version")
  for name in "$@"; do
    path=
    case $name in
      etcd) path=$(existing etcd 'etcd Version: 3\.(6|7)' --version) || true ;;
      helm) path=$(existing helm '^v?4\.' version --template '{{.Version}}') || true ;;
      kubectl) path=$(existing kubectl "$line" version --client) || true ;;
      *) path=$(existing "$name" "$line" --version) || true ;;
    esac
    if [ -n "$path" ]; then say "$name: taking $path"; ln -s "$path" "$out/$name"; continue; fi
    say "building $name $version"
    case $name in
      etcd) run_ticking "controlplane-$version" go_build "$module" "$out" go.etcd.io/etcd/server/v3 etcd "$flags" ;;
      helm) run_ticking "controlplane-$version" go_build "$module" "$out" helm.sh/helm/v4/cmd/helm helm "$flags" ;;
      *) run_ticking "controlplane-$version" go_build "$module" "$out" "k8s.io/kubernetes/cmd/$name" "$name" "$flags" ;;
    esac
  done
  whole "controlplane-$version" "$out"
}

prometheus() {
  local asset=prometheus-$prometheus_version out name; out=$(begin "$asset")
  for name in promtool prometheus; do
    # What is there already is kept: a test may run it now.
    if [ -e "$root/$asset/.whole" ] && [ -x "$root/$asset/$name" ]; then continue; fi
    say "building $name $prometheus_version"
    # Without the service discoveries of clouds, which are most of it, and without the pages for browsers.
    run_ticking "$asset" go_build "$here/prometheus" "$out" "github.com/prometheus/prometheus/cmd/$name" "$name" "" remove_all_sd
  done
  if [ ! -e "$root/$asset/.whole" ]; then whole "$asset" "$out"; return; fi
  mv "$out"/* "$root/$asset/"
  rmdir "$out"
  say "$asset is ready"
}

# The crate's binary of the same name, in OUT. The environment of an outer cargo must not leak in.
install_crate() { # install_crate CRATE VERSION OUT OPTIMIZATION [CARGO-ARGUMENT...]
  local crate=$1 version=$2 out=$3 optimization=$4; shift 4
  run_ticking "$crate-$version" env -u CARGO_TARGET_DIR -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS \
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    CARGO_PROFILE_RELEASE_OPT_LEVEL="$optimization" \
    cargo install "$crate" --version "$version" --locked "$@" --root "$out/install" --target-dir "$out/target"
  mv "$out/install/bin/$crate" "$out/$crate"
  rm -rf "$out/target" "$out/install"
}

garage() { # garage VERSION
  local out; out=$(begin "garage-$1")
  if [ -n "${GARAGE_BIN:-}" ] && "$GARAGE_BIN" --version 2>/dev/null | grep -Eq "[: v]$1( |$)"; then
    say "garage $1: taking \$GARAGE_BIN"; ln -s "$GARAGE_BIN" "$out/garage"
  else
    say "building garage $1"
    # Enough optimization for a bed.
    install_crate garage "$1" "$out" 1
  fi
  whole "garage-$1" "$out"
}

crate() { # crate NAME
  local version=${crates[$1]} out path; out=$(begin "$1-$version")
  if path=$(existing "$1" "(^| v?)$version( |\$)" --version); then
    say "$1: taking $path"; ln -s "$path" "$out/$1"
  else
    say "building $1 $version"
    # Each runs for seconds: what optimizing them takes is never won back.
    # shellcheck disable=SC2086 # a list of words
    install_crate "$1" "$version" "$out" 0 ${crate_arguments[$1]:-}
  fi
  whole "$1-$version" "$out"
}

if [ "${#todo[@]}" -gt 0 ]; then say "to build: ${todo[*]}; about $(remaining) min on 2 cores"; fi
for asset in "${todo[@]}"; do
  case $asset in
    "controlplane-$kube_version") controlplane "$kube_version" "$here/controlplane" etcd kube-apiserver kube-controller-manager kube-scheduler kubectl helm ;;
    "controlplane-$oldest_version") controlplane "$oldest_version" "$here/controlplane/oldest" kube-apiserver kube-controller-manager kube-scheduler ;;
    prometheus-*) prometheus ;;
    # No Go from here on.
    garage-*) rm -rf "$go_caches"; garage "${asset#garage-}" ;;
    *) crate "${asset%-*}" ;;
  esac
done
rm -rf "$go_caches"
say "all there: $root"
