#!/bin/bash
# Builds the minimal guest kernel from Debian's kernel source package.
#
#   bash initrd/kernel/build.sh [--install-deps] [OUTDIR]
#
# OUTDIR receives bzImage, vmlinux (stripped), config, release and built-from.
# Its default is kernels/minimal-RELEASE in the cache directory of forkvm
# ($FORKVM_CACHE, else forkvm in the user's cache directory). Nothing is built
# when OUTDIR (or the cache) already holds a kernel of the same source archive,
# fragment and script. The build needs about 3 GB below $TMPDIR (default /tmp).
#
# Last line of standard output: the directory of the kernel. Progress and errors
# go to standard error. Exit code 2: usage; 3: something is missing here.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fragment=$here/minimal.config
packages="linux-source-6.12 build-essential flex bison bc libelf-dev libssl-dev xz-utils lz4"

say() { echo "kernel: $*" >&2; }
die() { say "$2"; exit "$1"; }

install_deps=no out=
for arg in "$@"; do
	case $arg in
	--install-deps) install_deps=yes ;;
	-*) die 2 "unknown option $arg; usage: build.sh [--install-deps] [OUTDIR]" ;;
	*) [ -z "$out" ] || die 2 "more than one OUTDIR"; out=$arg ;;
	esac
done

cache=${FORKVM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/forkvm}

# missing prints what the build needs and this machine has not.
missing() {
	local tool header
	[ "$(uname -m)" = x86_64 ] || echo "an x86-64 machine"
	find_source >/dev/null || echo "/usr/src/linux-source-6.12.tar.xz"
	for tool in gcc make ld flex bison bc perl tar xz lz4 sha256sum strip; do
		command -v "$tool" >/dev/null || echo "$tool"
	done
	for header in libelf.h openssl/ssl.h; do
		[ -e "/usr/include/$header" ] || [ -e "/usr/include/x86_64-linux-gnu/$header" ] || echo "$header"
	done
}

find_source() {
	local archive=/usr/src/linux-source-6.12.tar.xz
	[ -r "$archive" ] && echo "$archive"
}

# fingerprint identifies the input: source archive, fragment and this script.
fingerprint() {
	cat "$1" "$fragment" "$here/build.sh" | sha256sum | cut -d' ' -f1
}

# built DIR tells whether DIR holds a complete kernel of this fingerprint.
built() {
	[ -s "$1/vmlinux" ] && [ -s "$1/bzImage" ] && [ "$(cat "$1/built-from" 2>/dev/null)" = "$print" ]
}

# check_config CONFIG fails if a line of the fragment did not survive Kconfig:
# an option that was renamed or lost a dependency must not vanish unnoticed.
check_config() {
	local line lost=0
	while IFS= read -r line; do
		case $line in
		"# CONFIG_"*" is not set")
			line=${line#\# }; line=${line% is not set}
			grep -q "^$line=" "$1" || continue
			line="# $line is not set" ;;
		CONFIG_*) grep -qxF "$line" "$1" && continue ;;
		*) continue ;;
		esac
		say "the configuration lost: $line"
		lost=1
	done <"$fragment"
	return $lost
}

if [ "$install_deps" = yes ] && [ -n "$(missing)" ]; then
	[ "$(id -u)" = 0 ] || die 3 "--install-deps needs root: sudo apt-get install -y $packages"
	# shellcheck disable=SC2086 # a list of words on purpose
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages >&2
fi
lacks=$(missing | paste -sd, | sed 's/,/, /g')
[ -z "$lacks" ] || die 3 "missing: $lacks; install with: apt-get install -y $packages"

archive=$(find_source)
print=$(fingerprint "$archive")
for dir in ${out:+"$out"} ${out:-"$cache"/kernels/minimal-*}; do
	if built "$dir"; then
		say "up to date: $dir"
		echo "$dir"
		exit 0
	fi
done

# An OUTDIR is replaced as a whole, so it must be ours or empty.
if [ -n "$out" ] && [ ! -e "$out/built-from" ] && [ -n "$(ls -A "$out" 2>/dev/null)" ]; then
	die 2 "$out holds something else than a kernel of this script"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/forkvm-kernel.XXXXXX")
staging=
trap 'rm -rf "$work" ${staging:+"$staging"}' EXIT
say "unpacking $archive"
tar -C "$work" -xf "$archive"
cd "$work"/linux-source-*

# The same input gives the same image, whoever builds it and when.
export KBUILD_BUILD_USER=forkvm KBUILD_BUILD_HOST=forkvm
KBUILD_BUILD_TIMESTAMP=$(date -u -d "@$(stat -c %Y Makefile)")
export KBUILD_BUILD_TIMESTAMP

say "configuring"
# allnoconfig, because olddefconfig would turn on whatever the fragment makes
# visible and hardware would like: an i8042 to probe, frequency governors, and so on.
scripts/kconfig/merge_config.sh -n -O . "$fragment" >/dev/null
check_config .config || die 1 "the fragment does not fit this kernel source"

say "building with $(nproc) jobs (some minutes)"
make -s -j"$(nproc)" bzImage >&2
release=$(make -s kernelrelease)
out=${out:-$cache/kernels/minimal-$release}

# Published by rename, so nobody ever sees half a kernel.
mkdir -p "$(dirname "$out")"
staging=$(mktemp -d "$(dirname "$out")/.minimal.XXXXXX")
chmod 755 "$staging"
cp arch/x86/boot/bzImage "$staging/bzImage"
strip -o "$staging/vmlinux" vmlinux
cp .config "$staging/config"
echo "$release" >"$staging/release"
echo "$print" >"$staging/built-from"
rm -rf "$out"
mv "$staging" "$out"
staging=
say "built $release: $(stat -c %s "$out/vmlinux") bytes of vmlinux, $(stat -c %s "$out/bzImage") of bzImage"
echo "$out"
