#!/bin/bash
# In the virtual machine: rxe0 with rxe1, and soft with soft between two network namespaces, each over a cable with MTU 1500. wire_in_guest.sh STAGE: an installed tree.
# Prints `NAME latency|ib_send_bw BYTES VALUE` for each: microseconds of a round trip by ibv_rc_pingpong, MB a second by perftest. All sleep until an event comes: where
# there is one processor, who spins keeps the other one from it. So there is no WRITE and no READ, of which perftest knows no events.
set -u
stage=$1
port=18800

modprobe veth && ip netns add a && ip netns add b && ip link add va netns a type veth peer name vb netns b || exit 1
for n in "a 10.66.0.1" "b 10.66.0.2"; do
    set -- $n
    ip -n $1 address add $2/24 dev v$1 && ip -n $1 link set v$1 up && ip -n $1 link set lo up || exit 1
    mkdir -p /run/fabric-$1
done
soft() {
    local side=$1
    shift
    ip netns exec $side env -u FERROVERBS_SOFT_WIRE LD_LIBRARY_PATH=$stage/lib FERROVERBS_SOFT=on FERROVERBS_FABRIC_DIR=/run/fabric-$side "$@"
}
rxe() {
    shift
    env -u LD_LIBRARY_PATH "$@"
}

# Whether a server listens on the port of now; the second is soft's namespace.
listens() {
    { cat /proc/net/tcp; ip netns exec a cat /proc/net/tcp; } | grep -qi ":$(printf %04X $port) .* 0A "
}

# NAME DEVICES ADDRESS WORDS...: a server, and what its client says.
pair() {
    local name=$1 devices=($2) address=$3 pid
    shift 3
    port=$((port + 1))
    $name a "$@" -p $port -d ${devices[0]} > /run/server 2>&1 &
    pid=$!
    until listens; do
        kill -0 $pid || { cat /run/server >&2; exit 1; }
        sleep 0.1
    done
    $name b "$@" -p $port -d ${devices[1]} $address > /run/client 2>&1 || { cat /run/server /run/client >&2; exit 1; }
    wait $pid
}

for way in "rxe|rxe0 rxe1|127.0.0.1" "soft|soft0 soft0|10.66.0.1"; do
    IFS='|' read -r name devices address <<< "$way"
    for bytes in 8 4096; do
        pair $name "$devices" $address ibv_rc_pingpong -e -g 1 -s $bytes -n 500
        echo "$name latency $bytes $(awk '/usec\/iter/ { print $(NF - 1) }' /run/client)"
    done
    for bytes in 8 4096 65536 1048576; do
        pair $name "$devices" $address ib_send_bw -F -e -x 1 -s $bytes -n $((20000000 / (bytes + 19000)))
        echo "$name ib_send_bw $bytes $(awk '$1 ~ /^[0-9]+$/ && NF == 5 { print $5 * $1 }' /run/client)"
    done
done
