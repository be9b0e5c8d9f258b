# Process 1 of the guest, once the host's files are its root: makes RDMA devices, runs the job, stops.
# The job's folder holds `settings` (shell assignments) and `command`; `status` or `failure` is what
# comes back.
job=/run/ferroverbs
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb
. $job/settings

stop() {
    sync
    echo o > /proc/sysrq-trigger
    sleep 60
}
failure() {
    echo "$*" > $job/failure
    stop
}

mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
ln -sfn /proc/self/fd /dev/fd
ln -sfn fd/0 /dev/stdin
ln -sfn fd/1 /dev/stdout
ln -sfn fd/2 /dev/stderr
mkdir -p /lib/modules
ln -sfn "$modules" "/lib/modules/$(uname -r)"
n=0
for dir in "${shares[@]}"; do
    mount -t 9p -o trans=virtio,version=9p2000.L,access=any,msize=262144,cache=mmap "share$n" "$dir" ||
        failure "cannot share $dir"
    n=$((n + 1))
done
hostname rdmavm
ip link set lo up
modprobe -a ib_uverbs rdma_ucm ib_umad || failure "cannot load the kernel's RDMA modules"

# Two ends of one cable in one network namespace, an RDMA device on each. Traffic between the two has
# to leave through the cable, so the rule that keeps local addresses local comes last.
veth() {
    modprobe rdma_rxe || failure "the kernel has no rdma_rxe"
    ip link add rdma0 address 02:00:00:77:00:01 mtu 1500 type veth \
        peer name rdma1 address 02:00:00:77:00:02 mtu 1500 || failure "cannot make network interfaces"
    for n in 0 1; do
        dev=rdma$n me=$((n + 1)) other=$((2 - n))
        sysctl -qw net.ipv4.conf.$dev.accept_local=1 net.ipv4.conf.$dev.rp_filter=0 \
            net.ipv4.conf.$dev.arp_ignore=1 net.ipv6.conf.$dev.accept_dad=0
        ip address add 10.77.0.$me/24 dev $dev
        ip -6 address add fd77::$me/64 dev $dev nodad
        ip link set $dev up
        ip neighbour replace 10.77.0.$other lladdr 02:00:00:77:00:0$other dev $dev nud permanent
        ip -6 neighbour replace fd77::$other lladdr 02:00:00:77:00:0$other dev $dev nud permanent
        ip rule add pref 10 iif $dev lookup local
        ip -6 rule add pref 10 iif $dev lookup local
        ip rule add pref 50 from 10.77.0.$me to 10.77.0.$other lookup 10$n
        ip -6 rule add pref 50 from fd77::$me to fd77::$other lookup 10$n
        ip route add 10.77.0.$other dev $dev table 10$n
        ip -6 route add fd77::$other dev $dev table 10$n
    done
    sysctl -qw net.ipv4.conf.all.rp_filter=0 net.core.netdev_max_backlog=20000
    ip rule add pref 1000 lookup local
    ip rule del pref 0
    ip -6 rule add pref 1000 lookup local
    ip -6 rule del pref 0
    for n in 0 1; do
        rdma link add rxe$n type rxe netdev rdma$n || failure "cannot make the RDMA device rxe$n"
    done
    for n in 0 1; do
        for _ in $(seq 600); do
            grep -qs ACTIVE /sys/class/infiniband/rxe$n/ports/1/state && continue 2
            sleep 0.1
        done
        failure "the port of rxe$n does not become active"
    done
}
[ "$net" = none ] || veth
chmod 666 /dev/infiniband/* 2>/dev/null
ulimit -l unlimited
ulimit -c 0

for port in /sys/class/virtio-ports/*; do
    case $(cat "$port/name") in
    out) out=/dev/${port##*/} ;;
    err) err=/dev/${port##*/} ;;
    esac
done
# Through pipes: programs ask what their outputs are, and a device would be taken for a terminal.
mkfifo /run/out /run/err
cat < /run/out > "$out" &
cat < /run/err > "$err" &
timeout --kill-after=5 "$limit" /bin/bash $job/command < /dev/null > /run/out 2> /run/err
status=$?
# What the command left behind may hold on to its outputs.
for _ in $(seq 30); do
    [ -z "$(jobs -r)" ] && break
    sleep 0.1
done
echo $status > $job/status
stop
