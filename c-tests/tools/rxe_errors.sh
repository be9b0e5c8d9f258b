#!/bin/bash
# In the virtual machine, with its two devices: programs of c-tests/connections by the kernel's connection manager, through Debian's librdmacm and through ours. rxe_errors.sh STAGE FOLDER
# PROGRAM...: an installed tree, and a folder with the compiled programs, where each leaves what it said as PROGRAM.debian and PROGRAM.ours, with its exit status behind.
stage=$1 folder=$2
shift 2
# The addresses of the devices; the programs meet at the first.
first=10.77.0.1 second=10.77.0.2
export MEET=$first MEET6=fd77::1
for program in "$@"; do
    more=
    [ "$program" != addresses ] || more="$first $second"
    for over in debian ours; do
        case $over in
        debian) in="env -u LD_LIBRARY_PATH" ;;
        ours) in="env LD_LIBRARY_PATH=$stage/lib FERROVERBS_SOFT=off" ;;
        esac
        echo "$program, $over"
        timeout -k 1 150 $in "$folder/$program" $more > "$folder/$program.$over" 2>&1
        echo "exit status $?" >> "$folder/$program.$over"
    done
done
