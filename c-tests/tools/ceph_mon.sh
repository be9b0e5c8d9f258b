#!/bin/sh
# A Ceph monitor and its clients, which talk by Ceph's messenger "async+rdma": ceph_mon.sh PORT [cm [HOST]], in a folder where it may make files.
# With HOST the clients are in that host of a cluster, and the monitor is in its first one.
# Stores values of several lengths, gets them back, and prints how many were wrong and what the messenger counted.
port=$1
# Of both ways to exchange addresses the first one is by TCP, the other one is rdma_cm.
case ${2:-} in
cm) way="iwarp true" ;;
*) way="ib false" ;;
esac
here=$(pwd)
CEPH_CONF=$here/ceph.conf
export CEPH_CONF
case ${3:-} in
"") address="[v2:127.0.0.1:$port]" clients=env ;;
*) address="[v2:$(getent ahostsv4 host1 | sed -n '1s/ .*//p'):$port]" clients="ssh $3" ;;
esac
cat > ceph.conf << EOC
[global]
fsid = 00000000-0000-4000-8000-000000000001
mon host = $address
ms type = async+rdma
ms async rdma device name = soft0
ms async rdma type = ${way% *}
ms async rdma cm = ${way#* }
# Otherwise each process registers a gigabyte.
ms async rdma send buffers = 256
ms async rdma receive buffers = 512
ms async rdma receive queue len = 256
auth cluster required = none
auth service required = none
auth client required = none
run dir = $here
admin socket = $here/\$name.asok
log file = $here/\$name.log
mon cluster log file = $here/cluster.log
mon data = $here/mon
mon data avail crit = 0
mon data avail warn = 0
EOC
fail() {
	echo "$1" >&2
	tail -n 20 ./*.log >&2
	[ -z "$monitor" ] || kill "$monitor"
	exit 1
}
monmaptool --create --fsid 00000000-0000-4000-8000-000000000001 --addv a "$address" monmap > made.log 2>&1 || fail "no map of monitors"
ceph-mon --mkfs -i a --monmap monmap >> made.log 2>&1 || fail "no store"
ceph-mon -i a -f --public-addrv "$address" > monitor.log 2>&1 &
monitor=$!
wrong=0
for bytes in 1 3000 20000 65000; do
	# Every line is another one.
	seq 1000000 | head -c $bytes > "in.$bytes"
	$clients ceph --connect-timeout 120 config-key set "key.$bytes" -i "in.$bytes" > said.log 2>&1 || fail "cannot store $bytes bytes"
	$clients ceph --connect-timeout 120 config-key get "key.$bytes" -o "out.$bytes" > said.log 2>&1 || fail "cannot get $bytes bytes"
	cmp -s "in.$bytes" "out.$bytes" || wrong=$((wrong + 1))
done
ceph daemon mon.a perf dump > counters.json || fail "no counters"
grep -o '"[rt]x_bytes": [1-9][0-9]*' counters.json | sort
kill $monitor
wait $monitor
echo "4 values, $wrong wrong"
