#!/bin/bash
# Builds the minimal guest kernel from Debian's kernel source package.
#
#   bash initrd/kernel/build.sh [--install-deps] [OUTDIR]
#
# OUTDIR receives vmlinux (stripped; what boots), bzImage, config, and the notes
# that forkvm reads: release, source, built-from, SHA256SUMS. Its default is
# kernels/minimal-RELEASE in forkvm's cache directory ($FORKVM_CACHE, else forkvm in
# the user's cache directory), where forkvm finds it. Nothing is built if there is
# one already of the same source archive and fragment. The build takes about four
# minutes on two cores and 3 GB below $TMPDIR (default /tmp).
#
# The last line of standard output is the kernel's directory; progress and errors
# go to standard error. Exit codes: 2 usage, 3 something is missing on this machine.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fragment=$here/minimal.config
archive=/usr/src/linux-source-6.12.tar.xz
packages="linux-source-6.12 build-essential flex bison bc libelf-dev libssl-dev xz-utils lz4"
# Counts changes of this script that change the kernel it builds.
recipe=1

# Called from a Makefile, its job server and variables must not reach Kbuild.
unset MAKEFLAGS MFLAGS MAKEOVERRIDES MAKELEVEL

say() { echo "kernel: $*" >&2; }
die() { local code=$1; shift; say "$*"; exit "$code"; }

# missing prints what the build needs and this machine has not, one a line.
missing() {
	local tool header
	[ "$(uname -m)" = x86_64 ] || echo "an x86-64 machine"
	[ -r "$archive" ] || echo "$archive"
	for tool in gcc make ld flex bison bc perl tar xz lz4 sha256sum strip; do
		command -v "$tool" >/dev/null || echo "$tool"
	done
	for header in libelf.h openssl/ssl.h; do
		[ -e "/usr/include/$header" ] || [ -e "/usr/include/x86_64-linux-gnu/$header" ] || echo "$header"
	done
}

# listed joins lines by commas.
listed() {
	local line all=
	while IFS= read -r line; do all=${all:+$all, }$line; done
	echo "$all"
}

# built DIR tells whether DIR holds a complete kernel of the wanted fingerprint.
built() {
	[ -s "$1/vmlinux" ] && [ -s "$1/bzImage" ] && [ "$(cat "$1/built-from" 2>/dev/null)" = "$fingerprint" ]
}

# check_config CONFIG fails if a line of the fragment did not survive Kconfig: an
# option that was renamed or lost a dependency must not vanish unnoticed.
check_config() {
	local line option lost=0
	while IFS= read -r line; do
		case $line in
		"# CONFIG_"*" is not set")
			option=${line#\# }
			grep -q "^${option% is not set}=" "$1" || continue ;;
		CONFIG_*)
			grep -qxF "$line" "$1" && continue ;;
		*)
			continue ;;
		esac
		say "the configuration lost: $line"
		lost=1
	done <"$fragment"
	return $lost
}

install_deps=no out=
for arg in "$@"; do
	case $arg in
	--install-deps) install_deps=yes ;;
	-*) die 2 "unknown option $arg; usage: build.sh [--install-deps] [OUTDIR]" ;;
	*) [ -z "$out" ] || die 2 "more than one OUTDIR"; out=$arg ;;
	esac
done
# An OUTDIR is replaced as a whole, so it must be ours or empty.
if [ -n "$out" ] && [ ! -e "$out/built-from" ] && [ -n "$(ls -A "$out" 2>/dev/null)" ]; then
	die 2 "$out holds something else than a kernel of this script"
fi
cache=${FORKVM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/forkvm}

if [ "$install_deps" = yes ] && [ -n "$(missing)" ]; then
	[ "$(id -u)" = 0 ] || die 3 "--install-deps needs root; run: sudo apt-get install -y $packages"
	# shellcheck disable=SC2086 # a list of words on purpose
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages >&2
fi
lacks=$(missing | listed)
[ -z "$lacks" ] || die 3 "missing: $lacks; install with: apt-get install -y $packages"

fingerprint=$({ echo "recipe $recipe"; cat "$fragment" "$archive"; } | sha256sum | cut -d' ' -f1)
for dir in ${out:+"$out"} ${out:-"$cache"/kernels/minimal-*}; do
	if built "$dir"; then
		say "up to date: $dir"
		echo "$dir"
		exit 0
	fi
done

work=$(mktemp -d "${TMPDIR:-/tmp}/forkvm-kernel.XXXXXX")
staging=
trap 'rm -rf "$work" ${staging:+"$staging"}' EXIT
# Not relative to where we are about to go.
[ -z "$out" ] || out=$(realpath -m "$out")
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
staging=$(mktemp -d "$(dirname "$out")/.staging-XXXXXX")
chmod 755 "$staging"
cp arch/x86/boot/bzImage "$staging/bzImage"
strip -o "$staging/vmlinux" vmlinux
cp .config "$staging/config"
(cd "$staging" && sha256sum vmlinux >SHA256SUMS)
echo "$release" >"$staging/release"
echo "$(basename "$archive") with minimal.config" >"$staging/source"
echo "$fingerprint" >"$staging/built-from"
rm -rf "$out"
mv "$staging" "$out"
staging=
say "built $release: $(stat -c %s "$out/vmlinux") bytes of vmlinux, $(stat -c %s "$out/bzImage") of bzImage"
echo "$out"
