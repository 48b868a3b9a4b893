#!/bin/sh
# Serves sandboxes where the KVM is, which is here or else the lab, and goes
# through 'forkvm demo service' against that over HTTP, from outside.
#
#   test/service-demo.sh [--json]
#
# HERE=1 serves here whatever 'forkvm doctor' says. PORT is where the server is
# reached.
set -eu
cd "$(dirname "$0")/.."

port=${PORT:-18080}
scratch=$(mktemp -d)
server=
end() {
	[ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true
	rm -rf "$scratch"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

FORKVM_API_KEY=$(bin/forkvm key new --keys "$scratch/keys")
export FORKVM_API_KEY
mkfifo "$scratch/log"
if [ "${HERE:-}" = 1 ] || bin/forkvm doctor | grep -q '^PASS  kvm flavor '; then
	bin/forkvm serve --state "$scratch/state" --keys "$scratch/keys" --listen "127.0.0.1:$port" --on-stop destroy 2>"$scratch/log" &
else
	sh test/setup.sh demo
	# The lab's network is this machine alone, and a port is forwarded to its address.
	bin/lab run --forward "$port:8080" --file "$scratch/keys:/tmp/forkvm-keys" -- \
		bin/forkvm serve --state /tmp/forkvm-demo --keys /tmp/forkvm-keys --listen 0.0.0.0:8080 \
		--insecure-plain-http --on-stop destroy 2>"$scratch/log" &
fi
server=$!

# It serves once it says so. What it logs goes on to standard error.
exec 3<"$scratch/log"
ready=
while [ -z "$ready" ] && read -r line <&3; do
	echo "$line" >&2
	case $line in *listening*network=tcp*) ready=1 ;; esac
done
if [ -z "$ready" ]; then
	echo "service-demo: the server has ended" >&2
	exit 1
fi
cat <&3 >&2 &

bin/forkvm demo service --server "http://127.0.0.1:$port" "$@"
