# Process 1 of a room, still with the machine's files: room ROOT TOOLCHAIN TOOLCHAIN-INSIDE ARCHIVES [GROUP...]
set -eu
root=$1 toolchain=$2 inside=$3 archives=$4
shift 4

# A mount point, so that it can become the root: namespaces of users cannot be made below a chroot.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys" 2> /dev/null || mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755,nosuid dev "$root/dev"
for node in null zero full random urandom tty; do
	: > "$root/dev/$node"
	mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777,nosuid,nodev shm "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
ln -s fd/0 "$root/dev/stdin"
ln -s fd/1 "$root/dev/stdout"
ln -s fd/2 "$root/dev/stderr"
mkdir -p "$archives/partial"
mount --bind "$archives" "$root/var/cache/apt/archives"
mount --bind "$toolchain" "$root$inside"
mount -o remount,bind,ro "$root$inside"

mkdir -p "$root/machine"
cd "$root"
pivot_root . machine
exec chroot . /bin/sh /inside.sh "$@"
