#!/usr/bin/env bash
# Create .venv with a Python of 3.11 or newer and install Bedload and its tools into it.
#
# Idempotent: a .venv that works is kept. Everything verbose goes to .venv/setup.log.
# PYTHON=/path/to/python chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
log=$venv/setup.log
new_enough='import sys; sys.exit(sys.version_info < (3, 11))'

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# A name on the PATH proves nothing: version managers put shims there that refuse to run.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.11 python3.12 python3.13 python3.14; do
        if "$candidate" -c "$new_enough" >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

# Debian splits venv off from Python.
ensure_venv_module() {
    local python=$1 package apt_log
    "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 && return
    package=python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt_log=$(mktemp)
        say "Installing $package (log: $apt_log)"
        if apt-get update >"$apt_log" 2>&1 &&
            DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package" >>"$apt_log" 2>&1 &&
            "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
            rm -f "$apt_log"
            return
        fi
        tail -n 15 "$apt_log" >&2
    fi
    die "$python has no venv module. Run: sudo apt-get update && sudo apt-get install -y $package
(elsewhere than on Debian and Ubuntu: install a Python that comes with venv and ensurepip), then run this again."
}

# For tests alone: those that need it are skipped without it, and say what to do.
ensure_redis() {
    command -v redis-server >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "Installing redis-server, for tests (log: $log)"
        if apt-get update >>"$log" 2>&1 &&
            DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends redis-server >>"$log" 2>&1; then
            return
        fi
        say "redis-server could not be installed (see $log)."
    fi
    say "Without redis-server, tests of state in Redis are skipped. Run: sudo apt-get update && sudo apt-get install -y redis-server"
}

if ! "$venv/bin/python" -c "$new_enough" >/dev/null 2>&1; then
    python=$(find_python) || die "Bedload needs Python 3.11 or newer, and neither python3 nor python3.11 to python3.14 on the
PATH is one. Install it (Debian 12 and later: sudo apt-get install -y python3 python3-venv; Fedora:
sudo dnf install -y python3; macOS: brew install python@3.12), or set PYTHON to its path, then run this again."
    ensure_venv_module "$python"
    say "Creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi

SECONDS=0
say "Installing Bedload and its tools into $venv (a minute or so: Spark alone takes 0.5 GB; log: $log)"
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >"$log" 2>&1
if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input -e ".[dev]" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    die "The installation failed; all of its output is in $log."
fi
ensure_redis
"$venv/bin/python" -m bedload.compile >>"$log" 2>&1 || say "The kernels could not be compiled ahead (see $log): the first query will do it."
say "Installed in $SECONDS s."
