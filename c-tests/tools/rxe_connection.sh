# For rxe.sh, which has what differs between the sides: a server and its client, behind a `;`, who connect by librdmacm, ours and the kernel's. On the kernel's side both
# libraries are Debian's; words before the server change that: `ours`: librdmacm is ours on the kernel's side, too; `endless`: the server serves until it is killed;
# `port=N`: the port that the program knows; `rejected`: the client asks where nobody listens, and has to hear so. Words in capitals stand for what differs: SERVER, SERVER6 and CLIENT for addresses, PORT, and DEVICE.

# What is in front of a command in the namespace of a side.
within() {
    [ "$1" = rxe ] || echo "ip netns exec soft"
}

# SIDE PORT SERVER: whether somebody waits for clients: by TCP or UDP, as a listener of ours or of the kernel's manager, or, at no port, as a member of mckey's group.
is_expected() {
    local hex in
    hex=$(printf %04X "$2") in=$(within "$1")
    [[ $3 != mckey* ]] || { $in grep -q 010101EF /proc/net/igmp; return; }
    {
        $in cat /proc/self/net/tcp /proc/self/net/tcp6 | grep ":$hex .* 0A "
        $in cat /proc/self/net/udp /proc/self/net/udp6 | grep ":$hex .* 07 "
        $in grep -i "/listen/0x.*$hex\$" /proc/self/net/unix
        [ "$1" = soft ] || rdma resource show cm_id | grep "LISTEN.*:$2 "
    } | grep -q .
}

# FROM LINE: the client is FROM. perftest's server listens anew for its data after the client has its answer: a client that is sooner is rejected at once by the kernel's
# manager, which perftest does not survive, and has to come again.
connection() {
    local said
    for _ in 1 2 3; do
        said=$(try "$@") && break
        port=$((port + 1))
        grep -q "Failed to connect RDMA CM events" /run/client || break
    done
    port=$((port + 1))
    echo "$said"
}

# FROM LINE: once.
try() {
    local from=$1 line=$2 to=rxe command=$2 endless= rejected= at server client rxe=$rxe pid other status tries=0
    [ "$from" = soft ] || to=soft
    local -A address=([rxe]=10.88.0.1 [soft]=10.88.0.2) address6=([rxe]=fd88::1 [soft]=fd88::2)
    port=$((port + 1)) at=$port
    while :; do
        case $command in
        endless\ *) endless=yes ;;
        rejected\ *) endless=yes rejected=yes ;;
        ours\ *) rxe="env LD_LIBRARY_PATH=$stage/lib FERROVERBS_SOFT=off" ;;
        port=*) at=${command#port=} at=${at%% *} ;;
        *) break ;;
        esac
        command=${command#* }
    done
    command=${command//SERVER6/${address6[$to]}}
    command=${command//SERVER/${address[$to]}}
    command=${command//CLIENT/${address[$from]}}
    command=${command//PORT/$port}
    server=${command% ; *} client=${command#* ; }
    timeout -k 1 100 ${!to} ${server//DEVICE/${to}0} > /run/server 2>&1 &
    pid=$!
    until is_expected $to $at "$server"; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] && kill -0 $pid 2> /dev/null || break
        sleep 0.1
    done
    timeout -k 1 100 ${!from} ${client//DEVICE/${from}0} > /run/client 2>&1
    other=$?
    # A server whose client failed may wait for ever.
    [ $other = 0 ] || sleep 1
    [ "$other$endless" = 0 ] || kill $pid 2> /dev/null
    wait $pid
    status=$?
    [ -z "$endless" ] || status=0
    # 8: nobody has that service (IBTA vol 1, 12.6.7.2).
    [ -z "$rejected" ] || { grep -q "RDMA_CM_EVENT_REJECTED, error 8" /run/client; other=$?; }
    if [ "$other $status" = "0 0" ]; then
        echo "good $from $line"
    else
        echo "bad $from $line: client $other: $(tail -3 /run/client | tr '\n' ' '); server $status: $(tail -3 /run/server | tr '\n' ' ')"
        return 1
    fi
}
