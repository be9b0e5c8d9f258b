#!/bin/bash
# In the virtual machine: rxe0 with rxe1, and soft with soft between two network namespaces, each over a cable with MTU 1500. wire_in_guest.sh STAGE ONE_SIDED: an installed tree, and that program.
# Prints `NAME latency|send|write|read BYTES VALUE` for each: microseconds of a round trip by ibv_rc_pingpong, MB a second by perftest's ib_send_bw and, as perftest knows no events
# of WRITE, by the program of c-tests/bench/one_sided.c; and `NAME send-list|write-list|read-list BYTES VALUE`: million a second in lists of 16. All sleep until an event
# comes: where there is one processor, who spins keeps the other one from it.
set -u
stage=$1 one_sided=$2
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

# Whether a server listens on the port of now, by TCP, by the kernel's connection manager or by ours; the second is soft's namespace.
listens() {
    {
        { cat /proc/net/tcp; ip netns exec a cat /proc/net/tcp; } | grep -i ":$(printf %04X $port) .* 0A "
        ip netns exec a grep -i "/listen/0x.*$(printf %04X $port)/" /proc/net/unix
        rdma resource show cm_id | grep "LISTEN.*:$port "
    } | grep -q .
}

# COMMAND...: a server, in the background, that listens.
serve() {
    "$@" > /run/server 2>&1 &
    pid=$!
    until listens; do
        kill -0 $pid || { cat /run/server >&2; exit 1; }
        sleep 0.1
    done
}

# WORDS...: a server, and what its client says.
pair() {
    port=$((port + 1))
    serve $name a "$@" -p $port -d ${devices% *}
    $name b "$@" -p $port -d ${devices#* } $address > /run/client 2>&1 || { cat /run/server /run/client >&2; exit 1; }
    wait $pid
}

# WHICH COLUMN TIMES: a number of perftest's line, so many times.
of_perftest() {
    awk -v column=$1 -v times=$2 '$1 ~ /^[0-9]+$/ && NF == 5 { print $column * times }' /run/client
}

# BYTES: how many messages are 20 MB or, of small ones, take as long.
enough() {
    echo $((20000000 / ($1 + 19000)))
}

# Name, devices, address of the server for whom it listens, and for librdmacm, and the client's own.
for way in "rxe|rxe0 rxe1|127.0.0.1|10.77.0.1|10.77.0.2" "soft|soft0 soft0|10.66.0.1|10.66.0.1|10.66.0.2"; do
    IFS='|' read -r name devices address to from <<< "$way"
    for bytes in 8 4096; do
        pair ibv_rc_pingpong -e -g 1 -s $bytes -n 500
        echo "$name latency $bytes $(awk '/usec\/iter/ { print $(NF - 1) }' /run/client)"
    done
    for bytes in 8 4096 65536 1048576; do
        pair ib_send_bw -F -e -x 1 -s $bytes -n $(enough $bytes)
        echo "$name send $bytes $(of_perftest 5 $bytes)"
    done
    pair ib_send_bw -F -e -x 1 -s 8 -n 1600 -l 16
    echo "$name send-list 8 $(of_perftest 5 1)"
    port=$((port + 1))
    serve $name a "$one_sided" server $to $port
    for operation in write read; do
        for asked in "4096 1" "65536 1" "1048576 1" "8 16"; do
            set -- $asked
            said=$($name b "$one_sided" $operation $from $to $port $1 $(enough $1) $2) || { cat /run/server >&2; exit 1; }
            if [ $2 = 1 ]; then
                echo "$name $operation $1 ${said% *}"
            else
                echo "$name $operation-list $1 ${said#* }"
            fi
        done
    done
    kill $pid
    wait $pid 2> /dev/null
done
exit 0
