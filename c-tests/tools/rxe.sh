#!/bin/bash
# In the virtual machine: soft in a network namespace against the kernel's rxe in the first one, each as server and as client. rxe.sh STAGE LINES:
# an installed tree, in a folder that may have programs, too; and a file with a program and its options on each line. Before the program may stand `loss=5%`, `duplicate=5%`,
# `reorder=5%` or `mark=5%` (ECN), which both ways then have, by netem or, where the kernel has none, for what soft sends; `kill=soft` or `kill=rxe`, who is killed while they run, of which the other has to hear;
# `beside`, another pair that runs meanwhile and has to end well; and `uncut`: see below. Prints `good DIRECTION LINE` or `bad DIRECTION LINE` and what was said.
# Lines with a `;` are those of rxe_connection.sh. With CAPTURE set to a file, all packets are kept there.
set -u
stage=$1 lines=$2
port=18600
PATH=${stage%/*}:$PATH

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

# IMPAIRMENT: impairs the packets of both directions from now on, such as loss=5%; empty: none.
# Without netem, `setting` is the variable that soft gets.
impair() {
    setting=
    if [ -n "$netem" ]; then
        tc qdisc del dev rxe root 2> /dev/null
        ip netns exec soft tc qdisc del dev eth0 root 2> /dev/null
        [ -n "$1" ] || return
        # netem's share of packets overtakes the delayed others.
        local words="${1/=/ }"
        words=${words/reorder/delay 2ms reorder}
        # What can be marked is not lost.
        [ "${words/mark/}" = "$words" ] || words="${words/mark/loss} ecn"
        tc qdisc add dev rxe root netem $words && ip netns exec soft tc qdisc add dev eth0 root netem $words || exit 1
    elif [ -n "$1" ]; then
        setting="FERROVERBS_SOFT_IMPAIRMENT=$1"
    fi
}
# SEGMENTS: in how many pieces the cable takes what soft hands over whole (UDP_SEGMENT). With 1 the kernel cuts it before, as for an adapter that cannot, and the
# packets are captured as they are; with more, veth passes it on whole, and the receiving socket cuts it.
offload() {
    ip netns exec soft ip link set dev eth0 gso_max_segs "$1" || exit 1
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
    local from=$1 line=$2 impairment= victim= segments=1 beside= server client address in program
    set -- $line
    while :; do
        case $1 in
        loss=* | duplicate=* | reorder=* | mark=*) impairment=$1 ;;
        kill=*) victim=${1#*=} ;;
        uncut) segments=64 ;;
        beside) beside=yes ;;
        *) break ;;
        esac
        shift
    done
    program=$1
    shift
    impair "$impairment"
    offload $segments
    local ours="$soft"
    [ -z "$setting" ] || ours="${soft/ LD_LIBRARY_PATH=/ $setting LD_LIBRARY_PATH=}"
    if [ "$from" = soft ]; then
        server="$rxe $program -d rxe0" client="$ours $program -d soft0" address=10.88.0.1 in=
    else
        server="$ours $program -d soft0" client="$rxe $program -d rxe0" address=10.88.0.2 in="ip netns exec soft"
    fi
    port=$((port + 1))
    local said=/run/$port
    timeout -k 1 100 $server -p $port "$@" > $said.server 2>&1 &
    local pid=$! tries=0
    until listens "$in"; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] && kill -0 $pid 2> /dev/null || break
        sleep 0.1
    done
    timeout -k 1 100 $client -p $port "$@" $address > $said.client 2>&1 &
    local other=$!
    if [ -n "$victim" ]; then
        killed
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
        echo "bad $from $line: client $ends: $(tail -3 $said.client | tr '\n' ' '); server $status: $(tail -3 $said.server | tr '\n' ' ')"
    fi
}

# The rest of `pair` where one of the two is killed. Of `messages` is known when it is under way, and what whoever is left has to say: a client, that its retries
# are used up; a server, that or that the client is gone.
killed() {
    local gone=$pid left=$other why= neighbour= inner status
    [ "$victim" != "$from" ] || { gone=$other left=$pid; }
    if [ -n "$beside" ]; then
        (port=$((port + 5000)); pair "$from" "messages -x 1 -o send -s 16384 -n 1500") > $said.beside &
        neighbour=$!
        until grep -qs "under way" /run/$((port + 5001)).client; do sleep 0.1; kill -0 $neighbour || break; done
    fi
    if [ "$program" = messages ]; then
        until grep -qs "under way" $said.client; do sleep 0.1; kill -0 $other || break; done
    else
        sleep 4
    fi
    # The program, not the timeout around it, which ends with it.
    inner=$(pgrep -P "$gone" | head -1)
    kill -KILL ${inner:-$gone}
    [ -z "$neighbour" ] || kill -0 $neighbour || why="the other pair ended too early; "
    wait $left
    status=$?
    wait $gone 2> /dev/null
    # 12: IBV_WC_RETRY_EXC_ERR. 101: what a server heard by TCP. 124 and 137: who never ended.
    case $victim:$program:$status in
    *:0 | *:124 | *:137) why+="who is left: $status" ;;
    *:messages:12 | $from:messages:101) ;;
    *:messages:*) why+="who is left: $status" ;;
    esac
    [ -z "$neighbour" ] || { wait $neighbour; grep -q ^good $said.beside || why+="beside: $(cat $said.beside)"; }
    if [ -z "$why" ]; then
        echo "good $from $line"
    else
        echo "bad $from $line: $why, $(tail -qn 2 $said.client $said.server | tr '\n' ' ')"
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
