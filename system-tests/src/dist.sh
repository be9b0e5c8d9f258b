# Runs inside a Debian of its own: packages installed, used and removed. Prints "ok: ..." or "FAILED: ..." lines.
set -u
cd /
export DEBIAN_FRONTEND=noninteractive

check() {
	what=$1
	shift
	if "$@" > /tmp/said 2>&1; then
		echo "ok: $what"
	else
		echo "FAILED: $what"
		sed 's/^/  /' /tmp/said >&2
	fi
}

# Two processes of an ordinary user.
pingpong() {
	setpriv --reuid=65534 --regid=65534 --clear-groups "$@" ibv_rc_pingpong -n 100 > /tmp/server 2>&1 &
	server=$!
	tries=0
	until setpriv --reuid=65534 --regid=65534 --clear-groups "$@" ibv_rc_pingpong -n 100 127.0.0.1; do
		tries=$((tries + 1))
		[ $tries -lt 20 ] && kill -0 $server 2> /dev/null || return 1
		sleep 0.2
	done
	wait $server
}

# The same by addresses.
rping_pair() {
	setpriv --reuid=65534 --regid=65534 --clear-groups "$@" rping -s -C 3 -a 0.0.0.0 > /tmp/server 2>&1 &
	server=$!
	tries=0
	# Where rping's threads meet when all is done, its status says otherwise (docs/reference/programs.md, "Known faults").
	until setpriv --reuid=65534 --regid=65534 --clear-groups "$@" rping -c -v -C 3 -a 127.0.0.1 > /tmp/client 2>&1
		grep -q rdma-ping-2 /tmp/client; do
		tries=$((tries + 1))
		[ $tries -lt 20 ] && kill -0 $server 2> /dev/null || { cat /tmp/client /tmp/server; return 1; }
		sleep 0.2
	done
	wait $server
}

not() {
	! "$@"
}

has_soft() {
	"$@" ibv_devices | grep -q soft0
}

# Says nothing of the adapter, wherever plugins are listed.
quiet() {
	IBV_SHOW_WARNINGS=1 "$@" 2>&1 | { ! grep -i soft; }
}

files() {
	find / -xdev \( -path /proc -o -path /dev -o -path /sys -o -path /tmp -o -path /given -o -path /var/lib/dpkg \
		-o -path /var/log -o -path /var/cache -o -path /run \) -prune -o ! -type d -print | sort
}

ip link set lo up 2> /dev/null
files > /tmp/before
getent group rdma > /tmp/group

check "ferroverbs installs" dpkg -i /given/ferroverbs_*.deb
check "its command runs" ferroverbs --version
check "ibv_rc_pingpong by the command" pingpong ferroverbs
check "by LD_PRELOAD too" pingpong ferroverbs -p
check "rping by the command" rping_pair ferroverbs
check "nothing changes for other programs" not has_soft env
check "its doctor misses nothing" ferroverbs doctor
check "dependencies are met" apt-get check
check "ferroverbs goes" dpkg -P ferroverbs
files > /tmp/after
check "without a trace" diff /tmp/before /tmp/after

check "the replacing packages install" dpkg -B -i /given/libibverbs1-ferroverbs_*.deb /given/libibverbs-dev-ferroverbs_*.deb
check "those of librdmacm install, too" dpkg -B -i /given/librdmacm1-ferroverbs_*.deb /given/librdmacm-dev-ferroverbs_*.deb
check "the packages that they replace are gone" not dpkg-query -L libibverbs1
# The distribution's own packages for compiling depend on exactly one version of a library.
check "the distribution's headers install beside the libraries" sh -c 'dpkg -P libibverbs-dev-ferroverbs librdmacm-dev-ferroverbs &&
	dpkg -i /var/cache/apt/archives/libibverbs-dev_*.deb /var/cache/apt/archives/librdmacm-dev_*.deb'
check "dependencies on exact versions are met" apt-get check
check "the replacing headers take their place" dpkg -B -i /given/libibverbs-dev-ferroverbs_*.deb /given/librdmacm-dev-ferroverbs_*.deb
check "dependencies on them are met" apt-get check
check "the package database is sound" sh -c 'test -z "$(dpkg --audit)"'
check "the linker finds the library" sh -c 'ldconfig -p | grep -q "libibverbs.so.1 "'
check "and that of the inline functions" sh -c 'ldconfig -p | grep -q "libferroverbs-inlines.so.1 "'
check "no device without the adapter's package" not has_soft env
check "the adapter's package installs" dpkg -i /given/ferroverbs-soft_*.deb
check "ibv_rc_pingpong for all users" pingpong env
check "rping for all users" rping_pair env
check "headers are there" test -f /usr/include/infiniband/verbs.h
check "those of librdmacm are" test -f /usr/include/rdma/rdma_cma.h
mkdir -p /etc/libibverbs.d
: > /etc/libibverbs.d/soft.driver
check "an administrator's file takes its place" not has_soft env
rm /etc/libibverbs.d/soft.driver
check "it goes, and is not purged" dpkg -r ferroverbs-soft
check "nobody misses it then" quiet ibv_devices
check "nothing of it is left to purge" not sh -c 'dpkg-query -W -f "\${db:Status-Status}" ferroverbs-soft | grep -q config'
# apt has no lists in this Debian, so a folder with the packages that were installed before is its source.
mkdir -p /tmp/source
cp /var/cache/apt/archives/*.deb /tmp/source
(cd /tmp/source && for deb in *.deb; do
	dpkg-deb -f "$deb"
	echo "Filename: ./$deb"
	echo "Size: $(stat -c %s "$deb")"
	echo "SHA256: $(sha256sum "$deb" | cut -d ' ' -f 1)"
	echo
done) > /tmp/Packages
mv /tmp/Packages /tmp/source/Packages
echo "deb [trusted=yes] file:/tmp/source ./" > /tmp/source.list
apt_here() {
	apt-get -o Dir::Etc::sourcelist=/tmp/source.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=/tmp/lists \
		-o Dir::State::extended_states=/tmp/extended_states -o Dir::Cache=/tmp/cache -o APT::Sandbox::User=root "$@"
}
mkdir -p /tmp/lists/partial /tmp/cache/archives/partial
apt_here -q update > /tmp/update 2>&1 || cat /tmp/update >&2
# The repository that dist writes, beside that source.
echo "deb [trusted=yes] file:/given/apt ./" >> /tmp/source.list
apt_here -q update > /tmp/update 2>&1 || cat /tmp/update >&2
check "apt installs from the folder that dist writes" apt_here -y install ferroverbs
check "and its command runs" ferroverbs --version
check "bash completes its commands" bash -c '. /usr/share/bash-completion/completions/ferroverbs &&
	COMP_WORDS=(ferroverbs doct) COMP_CWORD=1 && _ferroverbs ferroverbs doct ferroverbs && test "${COMPREPLY[*]}" = doctor'
check "it goes again" dpkg -P ferroverbs
check "the way back" apt_here -y install /given/ferroverbs-restore_*.deb
check "programs stay" sh -c 'command -v ibv_rc_pingpong && command -v rping'
check "no replacing package stays" not sh -c 'dpkg-query -W -f "\${Package} \${db:Status-Status}\n" | grep ferroverbs | grep -v restore | grep " installed"'
check "the package of the way back goes" dpkg -P ferroverbs-restore
dpkg -P ferroverbs-soft libibverbs1-ferroverbs libibverbs-dev-ferroverbs librdmacm1-ferroverbs librdmacm-dev-ferroverbs > /dev/null 2>&1
check "dependencies are met as before" apt-get check
files > /tmp/after
check "without a trace here either" diff /tmp/before /tmp/after
