# For ceph_mon.sh and ceph_pair.sh: store ADDRESS DEVICE TYPE CM: the settings of Ceph, and an empty store of a monitor, in this folder, with its messenger "async+rdma" at that
# device. TYPE and CM are what Ceph calls the way by which two of it find each other: `ib false` is TCP, `iwarp true` is rdma_cm.
store() {
	local here
	here=$(pwd)
	CEPH_CONF=$here/ceph.conf
	export CEPH_CONF
	cat > ceph.conf << EOC
[global]
fsid = 00000000-0000-4000-8000-000000000001
mon host = $1
ms type = async+rdma
ms async rdma device name = $2
ms async rdma type = $3
ms async rdma cm = $4
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
	monmaptool --create --fsid 00000000-0000-4000-8000-000000000001 --addv a "$1" monmap > made.log 2>&1 || fail "no map of monitors"
	ceph-mon --mkfs -i a --monmap monmap >> made.log 2>&1 || fail "no store"
}
