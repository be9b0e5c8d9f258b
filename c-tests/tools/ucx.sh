#!/bin/sh
# For rxe_connection.sh: a program of UCX by its rdmacm and RC, on a device; ucx.sh DEVICE COMMAND...
device=$1
shift
# UCX takes a device only if there is a node of that name, whatever it is for.
[ -e "/dev/infiniband/$device" ] || mknod "/dev/infiniband/$device" c 1 3
# By the IPv4 address.
export UCX_SOCKADDR_TLS_PRIORITY=rdmacm UCX_TLS=rc_v,self UCX_NET_DEVICES=$device:1 UCX_IB_GID_INDEX=1 UCX_WARN_UNUSED_ENV_VARS=n
exec "$@"
