#!/bin/sh
# For rxe_connection.sh: a TCP program over librspreload: ours on soft, and Debian's on the kernel's device; preloaded.sh DEVICE COMMAND...
device=$1
shift
case $device in
soft*) preload=$LD_LIBRARY_PATH/rsocket/librspreload.so ;;
*)
    preload=$(ldconfig -p | sed -n 's/.*librdmacm\.so\.1 .*x86-64.* => //p' | head -1)
    preload=${preload%/*}/rsocket/librspreload.so
    ;;
esac
export LD_PRELOAD="$preload"
exec "$@"
