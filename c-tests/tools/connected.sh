#!/bin/bash
# Programs of others that connect by librdmacm, each as docs/guide/connections.md has it: connected.sh FERROVERBS TOOLS [HOST [some]], in a folder where it may make
# files, over the adapter. With HOST it is in that host of a cluster of two, and the clients are in host2; `some` leaves out what is large or tested elsewhere.
# Prints `good NAME`, or `bad NAME` and what was said.
ferroverbs=$1 tools=$2 some=${4:-}
port=$((20000 + $$ % 10000))
if [ $# -gt 2 ]; then
    # UCX's example knows no names.
    at=$(getent ahostsv4 "$3" | sed -n '1s/ .*//p')
    between=" between two hosts" nodes=
    # By the IPv4 address.
    export UCX_IB_GID_INDEX=1
else
    at=127.0.0.1 between= nodes="$ferroverbs -n"
fi

# LINE: runs it where the clients are, in this folder, too.
far() {
    if [ -n "$between" ]; then
        ssh host2 "exec $1"
    else
        sh -c "exec $1"
    fi
}

# Whether anybody listens at the port, by librdmacm or by TCP.
listens() {
    grep -q "/listen/$(printf 0x106%04x $port)/" /proc/net/unix ||
        grep -qi ":$(printf %04X $port) .* 0A " /proc/net/tcp /proc/net/tcp6
}

next_port() {
    port=$((port + 1))
    while listens; do port=$((port + 1)); done
}

# NAME STATUS FILE...: says how it ended.
report() {
    local name=$1$between status=$2
    shift 2
    if [ "$status" = 0 ]; then
        echo "good $name"
    else
        echo "bad $name: status $status: $(tail -qn 4 "$@" | tr '\n' ' ')"
    fi
}

# NAME SERVER CLIENT [endless]: both lines for the shell, PORT and the server's ADDRESS in them.
pair() {
    local name=$1 server client ends tries=0
    next_port
    server=${2//PORT/$port} client=${3//PORT/$port}
    client=${client//ADDRESS/$at}
    sh -c "exec timeout -k 1 60 $server" > server 2>&1 &
    local pid=$!
    until listens; do
        tries=$((tries + 1))
        [ $tries -lt 400 ] && kill -0 $pid 2> /dev/null || break
        sleep 0.05
    done
    far "timeout -k 1 60 $client" > client 2>&1
    ends=$?
    [ $ends = 0 ] && [ -z "${4:-}" ] || kill $pid 2> /dev/null
    wait $pid
    local status=$?
    [ -z "${4:-}" ] && [ $ends = 0 ] && ends=$status
    report "$name" $ends client server
}

if [ -z "$some" ]; then
    for program in ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_atomic_bw ib_atomic_lat; do
        pair "$program -R" "$program -R -F -n 200 -p PORT" "$program -R -F -n 200 -p PORT ADDRESS"
    done
fi
pair "qperf -cm 1" "qperf -lp PORT" "qperf -lp PORT -cm 1 -t 1 ADDRESS rc_lat rc_bw quit"
pair "fi_pingpong verbs" "fi_pingpong -p verbs -e msg -c -I 20 -B PORT" "fi_pingpong -p verbs -e msg -c -I 20 -P PORT ADDRESS"
pair "fi_pingpong verbs;ofi_rxm" "fi_pingpong -p 'verbs;ofi_rxm' -e rdm -c -I 20 -B PORT" \
    "fi_pingpong -p 'verbs;ofi_rxm' -e rdm -c -I 20 -P PORT ADDRESS"
# It connects with an RNR retry count of 0: all 128 receives are there before the first message.
both="--port=PORT --bs=64k --size=8m --iodepth=128 --verify=crc32c"
pair "fio with verified data" "fio --name=s --ioengine=rdma --rw=read $both" "fio --name=c --ioengine=rdma --hostname=ADDRESS --verb=send --rw=write --do_verify=0 $both"

cc -O1 -o client_server /usr/share/doc/libucx-dev/examples/ucp_client_server.c -lucp -lucs > client 2>&1 || report "UCX rdmacm" 1 client
export UCX_TLS=rc_v,self UCX_NET_DEVICES=soft0:1 UCX_SOCKADDR_TLS_PRIORITY=rdmacm UCX_WARN_UNUSED_ENV_VARS=n
pair "UCX rdmacm" "$nodes ./client_server -p PORT" "$nodes ./client_server -a ADDRESS -p PORT" endless

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpicc.openmpi -O1 -o ring "$tools/mpi_ring.c" > client 2>&1 &&
    timeout -k 1 100 mpirun.openmpi --oversubscribe --map-by node -n 4 --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm' --mca osc pt2pt ./ring > client 2>&1
report "Open MPI over verbs;ofi_rxm" $? client

# It binds to the address of a device, which loopback's is not (docs/reference/rdmacm.md), and has ports of its own.
if [ -n "$between" ]; then
    udapl() {
        echo "soft-c u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"$2 0\" \"\"" > "$1.conf"
        echo "env DAT_OVERRIDE=$PWD/$1.conf"
    }
    own=$(udapl server "$at") theirs=$(udapl client "$(getent ahostsv4 host2 | sed -n '1s/ .*//p')")
    port=15827
    pair "uDAPL by rdma_cm" "$own dtest -P soft-c -b 100000" "$theirs dtest -P soft-c -b 100000 -h ADDRESS"
    grep -q "DAPL Test Complete. PASSED" client || report "uDAPL's test" 1 client server
fi

[ -z "$some" ] || exit 0

live="sh $tools/live_migration.sh"
pair "QEMU's live migration" "$live server live $at PORT" "$live client live ADDRESS PORT"

next_port
mkdir -p ceph && (cd ceph && timeout -k 1 200 sh "$tools/ceph_mon.sh" $port cm ${between:+host2}) > client 2>&1 && grep -q "4 values, 0 wrong" client
report "Ceph by rdma_cm" $? client
exit 0
