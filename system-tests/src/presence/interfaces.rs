//! Network interfaces in the device tree: `/sys/class/net/IF/device` leads to the software device,
//! and the other files of an interface stay those of the kernel.

use super::{LIMIT, folder_of, users};
use crate::{Bench, Tally};
use xtask::launch::LaunchSettings;

/// Makes two interfaces in a network namespace; `fv0` has an address. `$1` is the command.
const NETWORK: &str = "
    mount -t sysfs sysfs /sys
    ip link set lo up
    ip link add fv0 type veth peer name fv1
    for name in fv0 fv1; do
        test ! -e /proc/sys/net/ipv6/conf/$name || echo 1 >/proc/sys/net/ipv6/conf/$name/disable_ipv6
        ip link set $name up
    done
    ip addr add 10.9.8.1/24 dev fv0
    exec \"$1\" run -- sh -ec \"$2\" sh \"$1\"";

/// A program with the device tree.
const INSIDE: &str = "
    net=/sys/class/net/fv0 device=/sys/class/infiniband/soft0
    wait_for() { until test -d /sys/class/net/$1/device/infiniband/soft0/ports/1; do sleep 0.05; done; }
    test -d $net/device/infiniband/soft0/ports/1
    test \"$(realpath $net/device)\" = \"$(realpath $device/device)\" && echo 'one PCI device'
    test \"$(realpath $net)\" = /sys/devices/virtual/net/fv0
    test \"$(realpath $device/device/net/fv0)\" = \"$(realpath $net)\" && echo 'a link in each direction'
    test ! -e /sys/class/net/lo/device
    ip link set fv0 mtu 1400
    test \"$(cat $net/mtu)\" = 1400 && test -d $net/queues/rx-0 && echo 'files of the kernel'
    new_interface() {
        ip link add $1 type veth peer name $2; ip link set $1 up; ip link set $2 up
        ip addr add $3/24 dev $1; wait_for $1
    }
    new_interface fv2 fv3 10.9.9.1; echo 'a new address'
    ip link del fv0; while test -e $net; do sleep 0.05; done
    new_interface fv0 fv1 10.9.8.1
    test \"$(cat $net/ifindex)\" = \"$(ip -o link show fv0 | cut -d: -f1)\" && echo 'a new interface'
    FERROVERBS_SOFT_NAME=mlx5_%d FERROVERBS_SOFT_INTERFACES=fv2 \"$1\" run -- sh -ec '
        test -d /sys/class/net/fv2/device/infiniband/mlx5_0/ports/1
        test \"$(cat /sys/class/net/fv0/mtu)\" = 1500 && test ! -e /sys/class/net/fv0/device
        echo \"a tree without the interface\"'
    FERROVERBS_SOFT_NAME=rxe%d \"$1\" run -- sh -ec '
        test -d /sys/class/net/fv0/device/infiniband/rxe0/ports/1
        test -d /sys/class/infiniband/rxe0/device/net/fv0
        test \"$(cat /sys/class/net/fv0/mtu)\" = 1500 && echo \"a tree in a tree\"'";

pub(super) fn interfaces(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    for (who, user) in users() {
        let name = format!("an interface leads to its RDMA device, as {who}");
        bench.step(&name);
        let fabric = folder_of(bench, "fabric", user)?;
        let launch = LaunchSettings::new(bench.prefix()?, &bench.paths.target);
        let launch = launch.tree().fabric(&fabric).user(user);
        let job = launch.job("unshare").args(["--mount", "--net"]);
        let job = match user {
            None => job,
            Some(_) => job.arg("--map-root-user"),
        };
        let job =
            job.args(["sh", "-ec", NETWORK, "sh"]).arg(bench.prefix()?.join("bin/ferroverbs"));
        let done = job.arg(INSIDE).run(&bench.scratch, LIMIT)?;
        let lines = [
            "one PCI device\n",
            "a link in each direction\n",
            "files of the kernel\n",
            "a new address\n",
            "a new interface\n",
            "a tree without the interface\n",
            "a tree in a tree\n",
        ];
        tally.record(&name, done.expect(&lines));
    }
    Ok(())
}
