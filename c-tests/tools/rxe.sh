#!/bin/bash
# In the virtual machine: soft in a network namespace against the kernel's rxe in the first one, each as server and as client. rxe.sh STAGE LINES:
# an installed tree, and a file with a program and its options on each line. Before the program may stand `loss=5%`, which both ways then have, by netem or, where
# the kernel has none, for what soft sends; and `kill=soft` or `kill=rxe`, who is killed while they run, of which the other has to hear. Prints `good DIRECTION LINE`
# or `bad DIRECTION LINE` and what was said. Lines with a `;` are those of rxe_connection.sh. With CAPTURE set to a file, all packets are kept there.
set -u
stage=$1 lines=$2
port=18600

modprobe -a ib_uverbs rdma_rxe veth || exit 1
ip netns add soft
ip link add rxe type veth peer name eth0 netns soft
for n in 1 2; do
    in=$([ $n = 2 ] && echo "ip netns exec soft")
    dev=$([ $n = 1 ] && echo rxe || echo eth0)
    $in ip address add 10.88.0.$n/24 dev $dev
    $in ip address add fd88::$n/64 dev $dev nodad
    $in ip link set $dev up
    $in ip link set lo up
done
rdma link add rxe0 type rxe netdev rxe || exit 1
for _ in $(seq 300); do
    grep -qs ACTIVE /sys/class/infiniband/rxe0/ports/1/state && break
    sleep 0.1
done
mkdir -p /run/fabric
soft="ip netns exec soft env -u FERROVERBS_SOFT_WIRE LD_LIBRARY_PATH=$stage/lib FERROVERBS_SOFT=on FERROVERBS_FABRIC_DIR=/run/fabric"
rxe="env -u LD_LIBRARY_PATH"
modprobe sch_netem 2> /dev/null && netem=yes || { netem=; echo "no netem: only what soft sends is lost"; }

# LOSS: what both ways lose from now on; none: nothing.
lose() {
    weather=
    if [ -n "$netem" ]; then
        tc qdisc del dev rxe root 2> /dev/null
        ip netns exec soft tc qdisc del dev eth0 root 2> /dev/null
        [ -z "$1" ] || { tc qdisc add dev rxe root netem loss "$1" && ip netns exec soft tc qdisc add dev eth0 root netem loss "$1"; } || exit 1
    elif [ -n "$1" ]; then
        weather="FERROVERBS_SOFT_WEATHER=loss=$1"
    fi
}
if [ -n "${CAPTURE:-}" ]; then
    dumpcap -q -i rxe -w "$CAPTURE" > /run/dumpcap 2>&1 &
    capture=$!
    until grep -q File: /run/dumpcap; do sleep 0.1; kill -0 $capture || exit 1; done
fi

# Whether the server listens, in its namespace.
listens() {
    $1 cat /proc/self/net/tcp /proc/self/net/tcp6 | grep -qi ":$(printf %04X $port) .* 0A "
}

# FROM LINE: the client is FROM.
pair() {
    local from=$1 line=$2 loss= victim= server client address in program
    set -- $line
    while :; do
        case $1 in
        loss=*) loss=${1#*=} ;;
        kill=*) victim=${1#*=} ;;
        *) break ;;
        esac
        shift
    done
    program=$1
    shift
    lose "$loss"
    local ours="$soft"
    [ -z "$weather" ] || ours="${soft/ LD_LIBRARY_PATH=/ $weather LD_LIBRARY_PATH=}"
    if [ "$from" = soft ]; then
        server="$rxe $program -d rxe0" client="$ours $program -d soft0" address=10.88.0.1 in=
    else
        server="$ours $program -d soft0" client="$rxe $program -d rxe0" address=10.88.0.2 in="ip netns exec soft"
    fi
    port=$((port + 1))
    timeout -k 1 100 $server -p $port "$@" > /run/server 2>&1 &
    local pid=$! tries=0
    until listens "$in"; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] && kill -0 $pid 2> /dev/null || break
        sleep 0.1
    done
    timeout -k 1 100 $client -p $port "$@" $address > /run/client 2>&1 &
    local other=$!
    if [ -n "$victim" ]; then
        sleep 4
        # The program, not the timeout around it, which ends with it.
        local gone=$pid left=$other
        [ "$victim" != "$from" ] || { gone=$other left=$pid; }
        local inner
        inner=$(pgrep -P "$gone" | head -1)
        kill -KILL ${inner:-$gone}
        wait $left
        local status=$?
        wait $gone 2> /dev/null
        if [ $status != 0 ] && [ $status != 124 ] && [ $status != 137 ]; then
            echo "good $from $line"
        else
            echo "bad $from $line: who is left: $status, $(tail -qn 2 /run/client /run/server | tr '\n' ' ')"
        fi
        return
    fi
    wait $other
    local ends=$?
    # A server whose client failed may wait for ever.
    [ $ends = 0 ] || { sleep 1; kill $pid 2> /dev/null; }
    wait $pid
    local status=$?
    if [ "$ends $status" = "0 0" ]; then
        echo "good $from $line"
    else
        echo "bad $from $line: client $ends: $(tail -3 /run/client | tr '\n' ' '); server $status: $(tail -3 /run/server | tr '\n' ' ')"
    fi
}

. "${0%/*}/rxe_connection.sh"
while read -r line; do
    for from in soft rxe; do
        case $line in
        *" ; "*) connection $from "$line" ;;
        *) pair $from "$line" ;;
        esac
    done
done < "$lines"
if [ -n "${capture:-}" ]; then
    # What the kernel still has for it.
    sleep 1
    kill -INT $capture
    wait $capture
fi
exit 0
