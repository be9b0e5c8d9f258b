#!/bin/bash
# In the virtual machine: what a connection costs by the kernel's connection manager over rxe, through Debian's librdmacm and through ours, by ours over soft, and by TCP.
# connections_in_guest.sh STAGE CONNECT COUNT AT_ONCE: an installed tree, the program of c-tests/bench/connect.c, connections one after the other, and by cmtime at once.
# Prints, for each way: `one NAME READY CONNECT ALL RATE`, as that program, and `at_once NAME MILLISECONDS`, from the first call to connect to the last event of it.
set -u
stage=$1 connect=$2 count=$3 at_once=$4
port=18700
mkdir -p /run/fabric

# What is in front of a command of a way.
debian="env -u LD_LIBRARY_PATH"
kernel="env LD_LIBRARY_PATH=$stage/lib FERROVERBS_SOFT=off"
soft="env LD_LIBRARY_PATH=$stage/lib FERROVERBS_SOFT=on FERROVERBS_FABRIC_DIR=/run/fabric"

listens() {
    { grep -i " 0A " /proc/net/tcp | grep ":$(printf %04X $port) "
      grep -i "/listen/0x.*$(printf %04X $port)/" /proc/net/unix
      rdma resource show cm_id | grep "LISTEN.*:$port "; } | grep -q .
}

# COMMAND...: starts a server.
serve() {
    port=$((port + 1))
    "$@" > /run/server 2>&1 &
    pid=$!
    until listens; do
        kill -0 $pid || { cat /run/server >&2; exit 1; }
        sleep 0.1
    done
}

# NAME KIND ADDRESS COMMAND...
one() {
    local name=$1 kind=$2 address=$3 said
    shift 3
    serve "$@" "$connect" $kind server $address $((port + 1))
    said=$("$@" "$connect" $kind client $address $port $count) || exit 1
    echo "one $name $(echo "$said" | awk '{ printf "%s ", $2 }')"
    kill $pid
    wait $pid 2> /dev/null || true
}

# NAME ADDRESS COMMAND...
at_once() {
    local name=$1 address=$2 said
    shift 2
    serve "$@" cmtime -p $((port + 1))
    said=$("$@" cmtime -p $port -c $at_once -s $address) || exit 1
    echo "at_once $name $(echo "$said" | awk '$1 == "connect" { print $3 }')"
    kill $pid
    wait $pid 2> /dev/null || true
}

one debian rdma 10.77.0.1 $debian
one kernel rdma 10.77.0.1 $kernel
one soft rdma 127.0.0.1 $soft
one tcp tcp 127.0.0.1 env
at_once debian 10.77.0.1 $debian
at_once kernel 10.77.0.1 $kernel
at_once soft 127.0.0.1 $soft
