# Process 1 of a room, with its own files: installs what the README demands, and runs the tests. Not replaced by
# them: somebody has to wait for processes whose parents are gone.
set -eu
umount -l /machine
rmdir /machine
cd /root/ferroverbs
# The README's line before the first command. Its toolchain is the machine's.
line=$(sed -n 's/^    sudo \(apt-get .*\)$/\1/p' README.md | sed 's/sudo //g' | head -n 1)
export DEBIAN_FRONTEND=noninteractive
say() {
	echo "clean room: $*" >&2
}
log=/tmp/readme.log
say "Debian $(cat /etc/debian_version), $(rustc --version)"
say "$line"
if ! apt-get -q update > $log 2>&1; then
	say "no updates or security fixes from this mirror"
	mv /etc/apt/sources.list.main-only /etc/apt/sources.list
fi
if ! sh -c "$line" > $log 2>&1; then
	cat $log >&2
	say "the README's line fails"
	exit 1
fi
rm -f $log /etc/apt/sources.list.main-only
unset DEBIAN_FRONTEND
say "$(git log --max-count=1 --format='commit %h, %s')"
# The same as people type.
cargo xtask test "$@"
