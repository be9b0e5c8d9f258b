# For rxe.sh, which has what differs between the sides: a server and its client, behind a `;`, who connect by librdmacm, ours and the kernel's. On the kernel's side both
# libraries are Debian's; words before the server change that: `ours`: librdmacm is ours on the kernel's side, too; `endless`: the server serves until it is killed;
# `again`: the client comes again until the server has enough; `from=SIDE`: the client is that one only; `port=N`: the port that the program knows; `rejected`: the client asks where nobody listens, and has to hear so; `lost=KIND`: the first of every two MADs of that kind,
# such as REQ, is lost, which is seen to have happened; `kill=client,KIND` or `kill=server,KIND`: all of that kind are lost until one was, whereupon that program is killed, and others have
# to be served. Words in capitals stand for what differs: SERVER, SERVER6 and CLIENT for addresses, PORT, DEVICE, and TOOLS for this folder.

# What is in front of a command in the namespace of a side.
within() {
    [ "$1" = rxe ] || echo "ip netns exec soft"
}

# SIDE PORT SERVER: whether somebody waits for clients: by TCP or UDP, as a listener of ours or of the kernel's manager, or, at no port, as a member of mckey's group.
is_expected() {
    local hex in
    hex=$(printf %04X "$2") in=$(within "$1")
    [[ $3 != *mckey* ]] || { $in grep -q 010101EF /proc/net/igmp; return; }
    {
        $in cat /proc/self/net/tcp /proc/self/net/tcp6 | grep ":$hex .* 0A "
        $in cat /proc/self/net/udp /proc/self/net/udp6 | grep ":$hex .* 07 "
        $in grep -i "/listen/0x.*$hex/" /proc/self/net/unix
        [ "$1" = soft ] || rdma resource show cm_id | grep "LISTEN.*:$2 "
    } | grep -q .
}

# Where MADs are lost: where they arrive. A queue pair whose packets are dropped while they are sent has a send that fails, and its process cannot end.
ends=("tc filter DO dev rxe ingress" "ip netns exec soft tc filter DO dev eth0 ingress")

# KIND HOW: MADs of this kind are lost at both ends, all of them or as `tc` says it.
lose() {
    # Attributes of the communication management class (IBTA 1.7 12.6.1), and 14 bytes less than a capture says: what follows Ethernet's header.
    local -A attribute=([REQ]=0x10 [REJ]=0x12 [REP]=0x13 [RTU]=0x14 [DREQ]=0x15 [DREP]=0x16 [SIDR_REQ]=0x17 [SIDR_REP]=0x18)
    local end
    modprobe -a sch_ingress cls_u32 act_gact && tc qdisc add dev rxe clsact && ip netns exec soft tc qdisc add dev eth0 clsact || exit 1
    for end in "${ends[@]}"; do
        # UDP to RoCE's port; a datagram of SEND; to QP 1.
        ${end/DO/add} protocol ip u32 match ip protocol 17 0xff match u16 4791 0xffff at 22 match u8 0x64 0xff at 28 match u32 1 0x00ffffff at 32 \
            match u16 ${attribute[$1]} 0xffff at 64 action drop $2 || exit 1
    done
}
# How many were.
lost() {
    local end
    for end in "${ends[@]}"; do
        ${end/filter DO/-s filter show}
    done | awk -F '[( ,]' '/dropped/ { for (n = 1; n < NF; n++) if ($n == "dropped") sum += $(n + 1) } END { print sum + 0 }'
}
# None is any more.
lose_none() {
    tc qdisc del dev rxe clsact
    ip netns exec soft tc qdisc del dev eth0 clsact
}

# FROM LINE: the client is FROM. perftest's server listens anew for its data after the client has its answer: a client that is sooner is rejected at once by the kernel's
# manager, which perftest does not survive, and has to come again. So have a client of UCX over rxe that breaks off as it does between two devices of rxe, too, and an rping whose threads met
# (docs/reference/programs.md, "Known faults").
connection() {
    local said
    [[ $2 != *from=* || $2 == *"from=$1 "* ]] || return 0
    for _ in 1 2 3 4 5; do
        said=$(try "$@") && break
        port=$((port + 1))
        grep -qe "Failed to connect RDMA CM events" -e "rdma_get_cm_event: Bad file descriptor" /run/client ||
            { [ "$1" = rxe ] && grep -qF "Assertion \`wait_ctx->cb_id == (-1)' failed" /run/client; } || break
    done
    port=$((port + 1))
    echo "$said"
}

# FROM LINE: once.
try() {
    local from=$1 line=$2 to=rxe command=$2 endless= rejected= lost= victim= again= at server client rxe=$rxe pid other status tries=0
    [ "$from" = soft ] || to=soft
    local -A address=([rxe]=10.88.0.1 [soft]=10.88.0.2) address6=([rxe]=fd88::1 [soft]=fd88::2)
    port=$((port + 1)) at=$port
    while :; do
        case $command in
        endless\ *) endless=yes ;;
        again\ *) again=yes ;;
        from=*) ;;
        rejected\ *) endless=yes rejected=yes ;;
        ours\ *) rxe="env LD_LIBRARY_PATH=$stage/lib FERROVERBS_SOFT=off" ;;
        lost=*) lost=${command#lost=} lost=${lost%% *} ;;
        kill=*) victim=${command#kill=} victim=${victim%% *} lost=${victim#*,} victim=${victim%,*} endless=yes ;;
        port=*) at=${command#port=} at=${at%% *} ;;
        *) break ;;
        esac
        command=${command#* }
    done
    command=${command//SERVER6/${address6[$to]}}
    command=${command//SERVER/${address[$to]}}
    command=${command//CLIENT/${address[$from]}}
    command=${command//PORT/$port}
    command=${command//TOOLS/${0%/*}}
    server=${command% ; *} client=${command#* ; }
    server="${!to} ${server//DEVICE/${to}0}" client="${!from} ${client//DEVICE/${from}0}"
    serve
    if [ -n "$victim" ]; then
        survives
        other=$?
    else
        [ -z "$lost" ] || lose "$lost" "random determ pass 2"
        while :; do
            timeout -k 1 100 $client > /run/client 2>&1
            other=$? tries=$((tries + 1))
            [ "$other" = 0 ] && [ -n "$again" ] && [ $tries -lt 20 ] && sleep 1 && kill -0 $pid 2> /dev/null || break
        done
    fi
    # A server whose client failed may wait for ever.
    [ $other = 0 ] || sleep 1
    [ "$other$endless" = 0 ] || kill $pid 2> /dev/null
    wait $pid
    status=$?
    [ -z "$endless" ] || status=0
    if [ -n "$lost" ] && [ -z "$victim" ]; then
        [ "$(lost)" != 0 ] || { other=99; echo "no $lost was lost" >> /run/client; }
        lose_none
    fi
    # 8: nobody has that service (IBTA 1.7 12.6.7.2).
    [ -z "$rejected" ] || { grep -q "RDMA_CM_EVENT_REJECTED, error 8" /run/client; other=$?; }
    if [ "$other $status" = "0 0" ]; then
        echo "good $from $line"
    else
        echo "bad $from $line: client $other: $(tail -40 /run/client | tr '\n' ' '); server $status: $(tail -40 /run/server | tr '\n' ' ')"
        return 1
    fi
}

# Of `try`: its server runs and is heard of.
serve() {
    local tries=0
    timeout -k 1 150 $server > /run/server 2>&1 &
    pid=$!
    until is_expected $to $at "$server"; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] && kill -0 $pid 2> /dev/null || break
        sleep 0.1
    done
}

# Of `try`: kills the program, not the timeout around it, which ends with it.
end() {
    local inner status
    inner=$(pgrep -P "$1" | head -1)
    [ -n "$inner" ] && kill -KILL $inner
    status=$?
    wait $1 2> /dev/null
    return $status
}

# Of `try`: one of the two is killed while they connect. Who is left ends in time, be it connected or not, and the next client is served: what it says is the verdict.
survives() {
    local first status
    lose "$lost" ""
    timeout -k 1 150 $client > /run/first 2>&1 &
    first=$!
    until [ "$(lost)" != 0 ]; do
        kill -0 $first 2> /dev/null || break
        sleep 0.1
    done
    if [ "$(lost)" = 0 ]; then
        lose_none
        echo "no $lost was lost: $(tail -1 /run/first)" > /run/client
        return 99
    fi
    if [ $victim = server ]; then end $pid; else end $first; fi
    status=$?
    lose_none
    [ $status = 0 ] || { echo "it had ended before it was killed" > /run/client; return 99; }
    if [ $victim = server ]; then
        serve
        wait $first
        status=$?
        # 124 and 137: it never ended.
        [ $status -lt 124 ] || { echo "who is left never ended: $status" > /run/client; return 99; }
    fi
    timeout -k 1 100 $client > /run/client 2>&1
}
