#!/bin/sh
# A monitor of Ceph and its client, who talk by its messenger "async+rdma" and find each other by rdma_cm: ceph_pair.sh server|client FOLDER ADDRESS PORT DEVICE, both with
# the same folder, where they may make files. The client stores values and gets them back (ceph_values.py); the monitor serves until it is killed.
tools=$(cd "${0%/*}" && pwd)
side=$1 folder=$2 address="[v2:$3:$4]" device=$5
fail() {
	echo "$1" >&2
	tail -n 20 made.log >&2
	exit 1
}
if [ "$side" = server ]; then
	rm -rf "$folder"
	mkdir -p "$folder" && cd "$folder" || exit 1
	. "$tools/ceph_store.sh"
	store "$address" "$device" iwarp true
	exec ceph-mon -i a -f --public-addrv "$address"
fi
cd "$folder" && /usr/bin/python3 "$tools/ceph_values.py" ceph.conf "$device" && exit
tail -n 5 ./*.log >&2
exit 1
