#!/bin/sh
# For rxe_connection.sh: a TCP program whose children serve, over librspreload; forking.sh DEVICE COMMAND... A word behind its own tells the program that the
# library is Debian's.
case $1 in
soft*) ;;
*) set -- "$@" upstreams ;;
esac
RDMAV_FORK_SAFE=1 exec sh "${0%/*}/preloaded.sh" "$@"
