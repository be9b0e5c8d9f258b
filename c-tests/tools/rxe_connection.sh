# For rxe.sh, which has what differs between the sides: a server and its client, behind a `;`, who connect by librdmacm, ours and the kernel's. On the kernel's side both
# libraries are Debian's; words before the server change that: `ours`: librdmacm is ours on the kernel's side, too; `endless`: the server serves until it is killed;
# `port=N`: the port that the program knows; `rejected`: the client asks where nobody listens, and has to hear so; `lost=KIND`: the first
# of every two MADs of that kind, such as REQ, is lost, which is seen to have happened. Words in capitals stand for what differs: SERVER, SERVER6 and CLIENT for addresses, PORT, and DEVICE.

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

# KIND: the first of every two MADs of this kind is lost, on the way in and out.
lose() {
    # Attributes of the communication management class (IBTA vol 1, 12.6.1), and 14 bytes less than a capture says: what follows Ethernet's header.
    local -A attribute=([REQ]=0x10 [REJ]=0x12 [REP]=0x13 [RTU]=0x14 [DREQ]=0x15 [DREP]=0x16 [SIDR_REQ]=0x17 [SIDR_REP]=0x18)
    local way
    modprobe -a sch_ingress cls_u32 act_gact && tc qdisc add dev rxe clsact || exit 1
    for way in ingress egress; do
        # UDP to RoCE's port; a datagram of SEND; to QP 1.
        tc filter add dev rxe $way protocol ip u32 match ip protocol 17 0xff match u16 4791 0xffff at 22 match u8 0x64 0xff at 28 match u32 1 0x00ffffff at 32 \
            match u16 ${attribute[$1]} 0xffff at 64 action drop random determ pass 2 || exit 1
    done
}
# How many were.
lost() {
    for way in ingress egress; do
        tc -s filter show dev rxe $way
    done | awk -F '[( ,]' '/dropped/ { for (n = 1; n < NF; n++) if ($n == "dropped") sum += $(n + 1) } END { print sum + 0 }'
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
    local from=$1 line=$2 to=rxe command=$2 endless= rejected= lost= at server client rxe=$rxe pid other status tries=0
    [ "$from" = soft ] || to=soft
    local -A address=([rxe]=10.88.0.1 [soft]=10.88.0.2) address6=([rxe]=fd88::1 [soft]=fd88::2)
    port=$((port + 1)) at=$port
    while :; do
        case $command in
        endless\ *) endless=yes ;;
        rejected\ *) endless=yes rejected=yes ;;
        ours\ *) rxe="env LD_LIBRARY_PATH=$stage/lib FERROVERBS_SOFT=off" ;;
        lost=*) lost=${command#lost=} lost=${lost%% *} ;;
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
    [ -z "$lost" ] || lose "$lost"
    timeout -k 1 100 ${!from} ${client//DEVICE/${from}0} > /run/client 2>&1
    other=$?
    # A server whose client failed may wait for ever.
    [ $other = 0 ] || sleep 1
    [ "$other$endless" = 0 ] || kill $pid 2> /dev/null
    wait $pid
    status=$?
    [ -z "$endless" ] || status=0
    if [ -n "$lost" ]; then
        [ "$(lost)" != 0 ] || { other=99; echo "no $lost was lost" >> /run/client; }
        tc qdisc del dev rxe clsact
    fi
    # 8: nobody has that service (IBTA vol 1, 12.6.7.2).
    [ -z "$rejected" ] || { grep -q "RDMA_CM_EVENT_REJECTED, error 8" /run/client; other=$?; }
    if [ "$other $status" = "0 0" ]; then
        echo "good $from $line"
    else
        echo "bad $from $line: client $other: $(tail -3 /run/client | tr '\n' ' '); server $status: $(tail -3 /run/server | tr '\n' ' ')"
        return 1
    fi
}
