#!/bin/sh
# QEMU's live migration by RDMA: live_migration.sh server|client FOLDER ADDRESS PORT, both with the same folder, where they may make files. The client starts a machine, has it
# go over to the server's, and says what migrate.py says of it. The machine needs no system: its processor begins in 64 KiB of ROM, whose last 16 bytes count
# in each page of the first MiB, so that one sees whether it runs. The 4 MiB above that have other bytes in each page.
tools=$(cd "${0%/*}" && pwd)
side=$1 address=$3 port=$4
mkdir -p "$2" && cd "$2" || exit 1
# mov ds,cx; inc word [bx]; add cx,100h; jmp back
{ head -c 65520 /dev/zero; printf '\216\331\377\007\201\301\000\001\353\366'; head -c 6 /dev/zero; } > rom.$side
machine="qemu-system-x86_64 -accel tcg -nodefaults -display none -m 16 -bios rom.$side"
if [ "$side" = server ]; then
	rm -f to
	# What comes is looked at before it goes on.
	exec $machine -S -qmp unix:to,server=on,wait=off -incoming "rdma:$address:$port"
fi
rm -f from
head -c 4194304 /dev/urandom > bytes
$machine -device loader,file=bytes,addr=0x100000,force-raw=on -qmp unix:from,server=on,wait=off > here 2>&1 &
here=$!
# On a busy machine the server may be later than whoever started it waited.
until [ -S from ] && [ -S to ]; do
	kill -0 $here || break
	sleep 0.1
done
python3 "$tools/migrate.py" from to "rdma:$address:$port" > said 2>&1
status=$?
[ $status = 0 ] || { cat here; kill $here 2> /dev/null; }
wait $here
cat said
exit $status
