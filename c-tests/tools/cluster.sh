#!/bin/sh
# What runs in the hosts of `ferroverbs cluster`, and around one. cluster.sh WHAT ...
set -u
own=$(hostname)

# Runs a client until there is a server: the hosts start at the same time. Each try says what it did only if it is the last.
persist() {
    tries=0
    until "$@" > "out.$own" 2>&1; do
        tries=$((tries + 1))
        if [ $tries -ge 100 ]; then
            cat "out.$own"
            return 1
        fi
        sleep 0.2
    done
    cat "out.$own"
}

# Waits for a file by which another host says what it did.
reach() {
    tries=0
    until [ -e "$1" ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { echo "there is no $1"; exit 1; }
        sleep 0.1
    done
}

case $1 in
pair) # PROGRAM ARGS: a server in host1, its client in host2
    shift
    case $FERROVERBS_HOST in
    1) exec "$@" ;;
    2) persist "$@" host1 ;;
    esac
    ;;
connect) # SERVER CLIENT: two lines; the server in host1, its client in host2 when our librdmacm listens there
    case $FERROVERBS_HOST in
    1) exec $2 ;;
    2)
        tries=0
        until ssh host1 grep -q '/listen/' /proc/net/unix; do
            tries=$((tries + 1))
            [ $tries -lt 100 ] || { echo "nobody listens"; exit 1; }
            sleep 0.1
        done
        exec $3
        ;;
    esac
    ;;
ring) # each host has a server, and is the client of the next one
    ibv_rc_pingpong -g 1 -n 200 > "server.$own" 2>&1 &
    server=$!
    next=$((FERROVERBS_HOST % FERROVERBS_HOSTS + 1))
    persist ibv_rc_pingpong -g 1 -n 200 host$next || exit 1
    wait $server || { cat "server.$own"; exit 1; }
    echo "$own is between its neighbours"
    ;;
without-gid) # both ends connect without a GID: the line that says which GID index reaches the other host
    case $FERROVERBS_HOST in
    1)
        ibv_rc_pingpong -n 10 > "out.$own" 2>&1 &
        server=$!
        reach seen.without-gid
        kill $server
        ;;
    2)
        tries=0
        until ibv_rc_pingpong -n 10 host1 > "out.$own" 2>&1; grep -q 'GID index' "out.$own"; do
            tries=$((tries + 1))
            [ $tries -lt 100 ] || { cat "out.$own"; exit 1; }
            sleep 0.1
        done
        : > seen.without-gid
        ;;
    esac
    grep 'GID index' "out.$own"
    ;;
doctor) # FERROVERBS: host2 looks at the way to host1, which answers, then has another MTU, then answers no more
    case $FERROVERBS_HOST in
    1)
        "$2" doctor --answer 2> answering &
        answering=$!
        reach seen.ok
        ip link set dev eth0 mtu 600
        : > small
        reach seen.small
        kill $answering
        : > mute
        ;;
    2)
        see() {
            tries=0
            until "$1" doctor --peer 10.76.0.1 > "out.$own" 2>&1; grep -q "^$3  *$2 " "out.$own"; do
                tries=$((tries + 1))
                [ $tries -lt 20 ] || { cat "out.$own"; exit 1; }
            done
            grep "^[a-z]*  *peer" "out.$own"
        }
        see "$2" peer-gids ok
        : > seen.ok
        reach small
        see "$2" peer-mtu note
        : > seen.small
        reach mute
        see "$2" peer missing
        ;;
    esac
    ;;
orphan) # the server in host1 is killed in the middle; the client in host2 hears of it by a request that fails
    case $FERROVERBS_HOST in
    1)
        ib_write_bw -x 1 --run_infinitely > "server.$own" 2>&1 &
        server=$!
        tries=0
        until [ "$(cat /sys/class/net/eth0/statistics/rx_packets)" -gt 2000 ]; do
            tries=$((tries + 1))
            [ $tries -lt 600 ] || { echo "nothing comes"; cat "server.$own"; exit 1; }
            sleep 0.1
        done
        kill -9 $server
        ;;
    2)
        tries=0
        until ib_write_bw -x 1 --run_infinitely host1 > "out.$own" 2>&1; grep -i "failed status 12" "out.$own"; do
            tries=$((tries + 1))
            [ $tries -lt 100 ] || { cat "out.$own"; exit 1; }
            sleep 0.2
        done
        ;;
    esac
    ;;
gids) # PROGRAM ADDRESS: the program hears of an address that comes and goes
    address=${3#::ffff:}
    "$2" "$3" > "out.$own" &
    program=$!
    for step in open came went; do
        tries=0
        until grep -q $step "out.$own"; do
            tries=$((tries + 1))
            [ $tries -lt 300 ] || { echo "it did not say $step"; cat "out.$own"; kill -9 $program; exit 1; }
            sleep 0.1
        done
        case $step in
        open) ip address add $address dev eth0 ;;
        came) ip address del $address dev eth0 ;;
        esac
    done
    wait $program && cat "out.$own"
    ;;
plugged) # the cable is plugged in before the command begins
    state=$(cat /sys/class/net/eth0/operstate)
    [ $state = up ] || { echo "the cable of $own is $state"; exit 1; }
    echo "$own is plugged in"
    ;;
apart) # what hosts do not share
    [ "$own" = "host$FERROVERBS_HOST" ] || { echo "this is $own"; exit 1; }
    grep -q " host$FERROVERBS_HOSTS\$" /etc/hosts || { echo "/etc/hosts"; exit 1; }
    : > "/dev/shm/of-$own"
    [ "$(ls -d /dev/shm/of-*)" = "/dev/shm/of-$own" ] || { ls /dev/shm; exit 1; }
    [ "$(ls "$FERROVERBS_FABRIC_DIR")" = "" ] || { ls "$FERROVERBS_FABRIC_DIR"; exit 1; }
    there=$(ssh -o BatchMode=yes "me@host$FERROVERBS_HOSTS" 'hostname; exit 9')
    status=$?
    [ "$status $there" = "9 host$FERROVERBS_HOSTS" ] || { echo "ssh: $status $there"; exit 1; }
    echo "$own is a host"
    ;;
killed) # FERROVERBS: kills a cluster; nothing of it may be left
    mark=86399.$$
    "$2" cluster 2 -- sh -c "echo up; sleep $mark & exec sleep $mark" > up 2>&1 &
    cluster=$!
    tries=0
    until [ "$(grep -c up up)" = 2 ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { echo "the hosts did not start"; cat up; exit 1; }
        sleep 0.1
    done
    kill -9 $cluster
    tries=0
    # All of them have the mark among their arguments; so that the one who looks has not, it looks for a class of one character.
    while left=$(grep -al "[8]6399.$$" /proc/[0-9]*/cmdline 2>/dev/null); do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { echo "left: $left"; exit 1; }
        sleep 0.1
    done
    echo "nothing is left"
    ;;
told) # FERROVERBS: a cluster that is asked to end passes that on, and ends as its command does
    "$2" cluster 2 -- sh -c 'trap "echo told; exit 9" TERM; echo up; while :; do sleep 0.1; done' > up 2>&1 &
    cluster=$!
    tries=0
    until [ "$(grep -c up up)" = 2 ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { echo "the hosts did not start"; cat up; exit 1; }
        sleep 0.1
    done
    kill -TERM $cluster
    wait $cluster
    status=$?
    # A child that the shell forks just then runs the trap as well.
    [ "$status $(sort -u up | grep -c told)" = "9 2" ] || { echo "status $status"; cat up; exit 1; }
    echo "it was passed on"
    ;;
refused) # FERROVERBS: where no namespaces can be had, or too few, it says by which setting, and how that is mended
    within() { # KIND LIMIT STARTER ...
        kind=$1 limit=$2
        shift 2
        unshare -Ur sh -c 'echo "$1" > "/proc/sys/user/max_$0_namespaces" && shift && exec "$@"' "$kind" "$limit" "$@" > said 2>&1
        [ $? = 2 ] && grep -q "virtual hosts need user and network namespaces, which are refused here" said &&
            grep -q "user.max_${kind}_namespaces is $limit, and . are needed; as root: sysctl -w user.max_${kind}_namespaces=10000\$" said &&
            ! grep -q container said && return
        echo "with $limit namespaces of kind $kind:"
        cat said
        exit 1
    }
    for kind in net mnt pid; do
        within $kind 0 "$2" cluster 2 -- true
    done
    # The switch gets one, and the first host another.
    for kind in net uts ipc; do
        within $kind 2 "$2" cluster 3 -- true
    done
    # Who may make namespaces needs none of users.
    within user 0 setpriv --bounding-set=-sys_admin "$2" cluster 2 -- true
    echo "each setting was named"
    ;;
*)
    echo "cluster.sh: what is $1?"
    exit 2
    ;;
esac
