#!/bin/sh
# Sets up a Debian machine: the packages, and the guest kernels in the cache.
#
#   test/setup.sh demo   what 'make demo' needs: QEMU for the lab, the stock kernel
#   test/setup.sh test   that, a C compiler for the race detector, iasl, checkers of file systems, fio for the benchmarks,
#                        mmdebstrap, and the minimal kernel
#   test/setup.sh python DIR   what 'make demo DEMO=python' and 'make python-test' need: mmdebstrap, and in DIR/bases
#                              the image that the python template is made from; it is on a disk for the lab, DIR.ext4, too
#   test/setup.sh kernel the minimal kernel alone
#
# As root it installs what is missing; for others it says what that is.
set -eu
cd "$(dirname "$0")/.."

demo="qemu-system-x86 e2fsprogs"
tools="gcc libc6-dev acpica-tools erofs-utils e2fsck-static fio mmdebstrap"

say() { echo "setup: $*" >&2; }

# packages PACKAGE... installs those that are missing.
packages() {
	missing=
	for p in "$@"; do
		dpkg-query -W -f '${db:Status-Abbrev}' "$p" 2>/dev/null | grep -q '^ii' || missing="$missing $p"
	done
	[ -n "$missing" ] || return 0
	if [ "$(id -u)" -ne 0 ]; then
		say "missing packages; run as root: apt-get install -y --no-install-recommends$missing"
		exit 1
	fi
	say "installing$missing"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq >&2
	# shellcheck disable=SC2086 # a list of words
	apt-get install -y -qq --no-install-recommends $missing >&2
}

# minimal builds the minimal kernel unless the cache has it.
minimal() {
	if [ "$(id -u)" -eq 0 ]; then
		bash initrd/kernel/build.sh --install-deps
	else
		bash initrd/kernel/build.sh
	fi
}

# schemathesis has that program in the cache, in an environment of its own.
schemathesis() {
	dir="${FORKVM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/forkvm}/schemathesis-4.32.5"
	[ -e "$dir/ready" ] && return
	say "installing schemathesis"
	rm -rf "$dir"
	python3 -m venv "$dir" >&2
	"$dir/bin/pip" install --quiet --disable-pip-version-check schemathesis==4.32.5 >&2
	touch "$dir/ready"
}

case "${1:-}" in
demo)
	packages $demo
	bin/forkvm kernel fetch >&2
	;;
test)
	packages $demo $tools
	bin/forkvm kernel fetch >&2
	minimal >&2
	schemathesis
	;;
python)
	packages $demo mmdebstrap
	bin/forkvm kernel fetch >&2
	bin/forkvm template fetch --templates "$2" python >&2
	if [ ! "$2.ext4" -nt "$2/bases" ]; then
		rm -f "$2.ext4"
		PATH="$PATH:/usr/sbin:/sbin" mke2fs -q -t ext4 -d "$2" "$2.ext4" 12G >&2
	fi
	;;
kernel)
	minimal
	;;
*)
	say "usage: $0 demo|test|python DIR|kernel"
	exit 2
	;;
esac
