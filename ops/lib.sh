# Shared by ops/up and ops/test: what a fresh Debian 12 machine lacks is installed by name, once, and only when missing.
# Sourced, not run. Everything it prints goes to standard error: standard output belongs to the command that follows.

set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
VENV="$ROOT/.venv"
TOOLS="$ROOT/.tuneplane-data/tools"

step() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
give_up() { printf 'error: %s\n' "$*" >&2; exit 1; }

# ensure_command COMMAND PACKAGE... : install the packages unless COMMAND is there. Several may be asked at once by
# calling want_command first and install_wanted then, so that apt runs a single time.
WANTED=()
want_command() {
  local command=$1; shift
  command -v "$command" >/dev/null 2>&1 || [ -x "/usr/sbin/$command" ] || WANTED+=("$@")
}
install_wanted() {
  [ ${#WANTED[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null 2>&1 || give_up "this machine has no apt-get: install the equivalents of ${WANTED[*]} yourself, then run this again."
  [ "$(id -u)" = 0 ] || give_up "this machine lacks ${WANTED[*]} and only root can install them: run this as root, or have them installed first."
  step "installing ${WANTED[*]}"
  local quiet=(-qq -o DPkg::Lock::Timeout=600)
  apt-get "${quiet[@]}" update >&2 || give_up "apt-get update failed: is the package source of this machine reachable?"
  DEBIAN_FRONTEND=noninteractive apt-get "${quiet[@]}" install -y --no-install-recommends "${WANTED[@]}" >&2 </dev/null \
    || give_up "apt-get could not install ${WANTED[*]}."
  WANTED=()
}

want_containers() {  # podman with runc (crun refuses hybrid cgroups) and netavark by name (else apt takes CNI)
  want_command podman podman runc netavark aardvark-dns iptables catatonit
  want_command runc runc
  want_command skopeo skopeo
  want_command docker-registry docker-registry
  want_command busybox busybox-static
  want_command ip iproute2  # tests give some Nodes a network of their own
}

# A Python of 3.11 or later that can make environments. The names on PATH may be pyenv shims that fail: each is tried.
find_python() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
    "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$candidate"; return; }
  done
  return 1
}
want_python() { find_python >/dev/null || WANTED+=(python3 python3-venv); }

# ensure_venv EXTRAS : .venv with this tree installed in it; again when pyproject.toml or the extras changed.
ensure_venv() {
  local extras=$1 python stamp digest
  python=$(find_python) || give_up "no Python of version 3.11 or later that can make environments was found."
  stamp="$VENV/.installed-$extras"
  digest=$(sha256sum <"$ROOT/pyproject.toml" | cut -d' ' -f1)
  "$VENV/bin/python" -c 'import pip' >/dev/null 2>&1 || { step "making .venv"; rm -rf "$VENV"; "$python" -m venv "$VENV" >&2; }
  [ "$(cat "$stamp" 2>/dev/null)" = "$digest $ROOT" ] && return 0
  step "installing Tuneplane and its libraries"
  "$VENV/bin/python" -m pip install -qq --disable-pip-version-check -e ".[$extras]" >&2 </dev/null || give_up "pip could not install Tuneplane's libraries."
  echo "$digest $ROOT" >"$stamp"
}

# open_to_others DIR : whether every directory down to DIR may be passed through by other accounts.
open_to_others() {
  local directory=$1
  while [ "$directory" != / ]; do
    [ $((0$(stat -c %a "$directory") & 1)) = 1 ] || return 1
    directory=$(dirname "$directory")
  done
}

ensure_buf() {  # the protobuf linter comes as an npm package that carries its binary
  [ -x "$TOOLS/node_modules/.bin/buf" ] || {
    step "installing buf"
    mkdir -p "$TOOLS"
    npm install --silent --no-save --prefix "$TOOLS" @bufbuild/buf@1 >&2 </dev/null || give_up "npm could not install buf."
  }
  export PATH="$TOOLS/node_modules/.bin:$PATH"
}
