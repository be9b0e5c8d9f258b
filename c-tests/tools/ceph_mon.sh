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
case ${3:-} in
"") address="[v2:127.0.0.1:$port]" clients=env ;;
*) address="[v2:$(getent ahostsv4 host1 | sed -n '1s/ .*//p'):$port]" clients="ssh $3" ;;
esac
fail() {
	echo "$1" >&2
	tail -n 20 ./*.log >&2
	[ -z "$monitor" ] || kill "$monitor"
	exit 1
}
. "${0%/*}/ceph_store.sh"
store "$address" soft0 $way
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
