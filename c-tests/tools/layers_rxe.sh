#!/bin/bash
# In the virtual machine: layers over the kernel's devices rxe0 and rxe1. layers_rxe.sh FOLDER: where the programs misuse, advice and cm of c-tests/validate are and the
# layer liar.so of c-tests/layers, and where all goes that is found out. Of each pair of twins ID.HOW.json has what `validate` told, ID.HOW.said what the program printed, and its
# exit status last. The folders trace, capture and stats have what these layers leave of a ping-pong, which prints NAME.said; packets.d and packets.said are those of c-tests/layers/packets.c under
# `capture`.
set -u
folder=$1
cd "$folder" || exit 1
# The address is that of a device: to the kernel's rdma_cm 127.0.0.1 is of none.
export FERROVERBS_QUIET=1 CM_ADDRESS=10.77.0.1

# PROGRAM ID wrong|right
twin() {
    local name=$2.$3
    JSON=$folder/$name.json timeout -k 1 100 env FERROVERBS_LAYERS="validate,$folder/liar.so" FERROVERBS_VALIDATE="on=$2:json=$folder/$name.json" \
        ./$1 "$2" "$3" > "$name.said" 2>&1
    echo $? >> "$name.said"
}

for program in misuse advice cm; do
    for id in $(./$program); do
        twin $program "$id" wrong &
        twin $program "$id" right
        wait
        echo "$id"
    done
done

mkdir -p packets.d
FERROVERBS_LAYERS=capture FERROVERBS_CAPTURE=dir=$folder/packets.d:snap=0 timeout -k 1 60 ./packets > packets.said 2>&1
echo $? >> packets.said

port=18600
for layer in trace capture stats; do
    mkdir -p $layer
    keep=$([ $layer = trace ] && echo keep=1:)
    under="env FERROVERBS_LAYERS=$layer FERROVERBS_${layer^^}=${keep}dir=$folder/$layer"
    port=$((port + 1))
    timeout -k 1 100 $under ibv_rc_pingpong -d rxe0 -g 1 -n 100 -s 3000 -p $port > $layer.said 2>&1 &
    server=$! tries=0
    until grep -qi ":$(printf %04X $port) .* 0A " /proc/net/tcp /proc/net/tcp6; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] && kill -0 $server 2> /dev/null || break
        sleep 0.1
    done
    timeout -k 1 100 $under ibv_rc_pingpong -d rxe1 -g 1 -n 100 -s 3000 -p $port localhost >> $layer.said 2>&1
    status=$?
    wait $server
    echo "$? $status" >> $layer.said
    echo "$layer"
done
exit 0
