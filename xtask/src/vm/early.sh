#!/bin/sh
# First program of the guest: reaches the host's files, and goes on with them as its root.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in /modules/*; do
    $b insmod "$module" || echo "cannot load $module"
done
nine=trans=virtio,version=9p2000.L,access=any
# Nobody changes the host's files under a guest: what was read once need not be asked for again.
$b mount -t 9p -o $nine,msize=512000,cache=loose,ro host /host || echo "cannot mount the host's files"
$b mount -t tmpfs -o size=75% scratch /scratch
$b mkdir /scratch/upper /scratch/work
$b mount -t overlay -o lowerdir=/host,upperdir=/scratch/upper,workdir=/scratch/work root /root ||
    echo "cannot lay a writable layer over the host's files"
for dir in proc sys dev; do
    $b mount -o move /$dir /root/$dir
done
$b mount -t tmpfs run /root/run
$b mkdir -p /root/run/ferroverbs /root/run/lock
$b mount -t 9p -o $nine,msize=131072,cache=none job /root/run/ferroverbs || echo "cannot mount the job"
exec $b switch_root /root /bin/bash /run/ferroverbs/guest
