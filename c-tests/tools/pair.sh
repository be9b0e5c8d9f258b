#!/bin/sh
# Runs two commands that talk to each other over TCP port PORT, the second as soon as the first listens, in whatever surroundings
# it is started in itself: pair.sh PORT SERVER CLIENT, each a line for the shell. Ends with the first status that is not 0.
port=$1
sh -c "exec $2" &
server=$!
wanted=$(printf ':%04X [0-9A-F]*:0000 0A ' "$port")
until grep -q "$wanted" /proc/net/tcp /proc/net/tcp6 2> /dev/null; do
	kill -0 $server 2> /dev/null || {
		echo "the server ended before a client came" >&2
		wait $server
		exit 3
	}
	sleep 0.05
done
sh -c "exec $3" || {
	status=$?
	kill $server
	exit $status
}
wait $server
