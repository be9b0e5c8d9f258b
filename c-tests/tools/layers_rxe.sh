#!/bin/bash
# In the virtual machine: layers over the kernel's devices rxe0 and rxe1. layers_rxe.sh FOLDER: where the programs misuse, advice, cm and flushed of c-tests/validate are and the
# layer faulty_provider.so of c-tests/layers (and poisoned, where the compiler has AddressSanitizer), and where all goes that is found out. Of each pair of twins ID.HOW.json has what `validate` told, ID.HOW.said what the program printed, and its
# exit status last. The folders trace, capture, stats and killed have what these layers leave of a ping-pong, which prints NAME.said; told.text and told.json are what `ferroverbs trace`
# says of another, and packets.d and packets.said are those of c-tests/layers/packets.c under `capture`.
set -u
given=$1
# In the guest's memory: each file that is opened in the host's folder costs a round trip, and every program here opens dozens.
folder=/run/layers
mkdir -p $folder/stage && cd "$given" && cp -a misuse advice cm flushed packets faulty_provider.so $folder && { [ ! -e poisoned ] || cp -a poisoned $folder; } && cp -a stage/{bin,etc,lib} $folder/stage && cd $folder || exit 1
export LD_LIBRARY_PATH=$folder/stage/lib
# The address is that of a device: to the kernel's rdma_cm 127.0.0.1 is of none.
export FERROVERBS_QUIET=1 CM_ADDRESS=10.77.0.1

# PROGRAM ID wrong|right
twin() {
    local name=$2.$3 stack=stack=0:
    # To find lines takes half a minute on an emulated processor: of one post they are asked for.
    [ "$name" = WR-03.wrong ] && stack=
    JSON=$folder/$name.json timeout -k 1 100 env FERROVERBS_LAYERS="validate,$folder/faulty_provider.so" FERROVERBS_VALIDATE="on=$2:${stack}json=$folder/$name.json" \
        ./$1 "$2" "$3" > "$name.said" 2>&1
    echo $? >> "$name.said"
}

mkdir -p packets.d
FERROVERBS_LAYERS=capture FERROVERBS_CAPTURE=dir=$folder/packets.d:snap=0 timeout -k 1 60 ./packets > packets.said 2>&1
echo $? >> packets.said
echo packets

port=18600
# pingpong NAME ITERATIONS SERVER CLIENT: a server under the words SERVER and a client under CLIENT; what they said and their exit statuses are in NAME.said.
pingpong() {
    local name=$1 server tries=0 status
    port=$((port + 1))
    timeout -k 1 100 $3 ibv_rc_pingpong -d rxe0 -g 1 -n "$2" -s 3000 -p $port > $name.said 2>&1 &
    server=$!
    until grep -qi ":$(printf %04X $port) .* 0A " /proc/net/tcp /proc/net/tcp6; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] && kill -0 $server 2> /dev/null || break
        sleep 0.1
    done
    timeout -k 1 100 $4 ibv_rc_pingpong -d rxe1 -g 1 -n "$2" -s 3000 -p $port localhost >> $name.said 2>&1
    status=$?
    wait $server
    echo "$? $status" >> $name.said
    echo "$name"
}
for layer in trace capture stats; do
    mkdir -p $layer
    keep=$([ $layer = trace ] && echo keep=1:)
    under="env FERROVERBS_LAYERS=$layer FERROVERBS_${layer^^}=${keep}dir=$folder/$layer"
    pingpong $layer 100 "$under" "$under"
done
command="$folder/stage/bin/ferroverbs trace -s off"
pingpong told 100 "$command -o $folder/told.text --" "$command --format json -o $folder/told.json --"

# Both are killed at work, which they would go on with for hours.
mkdir -p killed
under="env FERROVERBS_LAYERS=stats FERROVERBS_STATS=dir=$folder/killed"
pingpong killed 100000000 "$under" "$under" &
pair=$! tries=0
# Until both have received something, as their files say.
until [ "$(stage/bin/ferroverbs stats show --prometheus killed 2> /dev/null | grep -c '^ferroverbs_received_total{.*} [1-9][0-9]')" = 2 ]; do
    tries=$((tries + 1))
    [ $tries -lt 60 ] || break
    sleep 0.5
done
pkill -KILL -x ibv_rc_pingpong
wait $pair
stage/bin/ferroverbs stats show --prometheus killed > killed.prometheus 2>&1

for program in advice misuse cm flushed; do
    for id in $(./$program); do
        twin $program "$id" wrong &
        twin $program "$id" right
        wait
        echo "$id"
    done
done
if [ -e poisoned ]; then
    export ASAN_OPTIONS=detect_leaks=0
    twin poisoned MR-10 wrong &
    twin poisoned MR-10 right
    wait
    echo MR-10
fi
rm -r stage
cp -r . "$given"
