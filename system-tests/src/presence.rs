//! Presence: programs that look for files before the first call of verbs find the software device,
//! as root and as an ordinary user. No other copy of libibverbs opens the device as a kernel
//! device.
//!
//! Map of this file: the list of checks; jobs, folders and users that the checks share; the device
//! tree, its settings and its hosts; refused namespaces; the tree of the system.

mod finders;
mod interfaces;
mod listing;
mod rust;
mod wheels;

use crate::{Bench, Checks, Fabric, Load, NOBODY, Tally, Tier};
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::time::Duration;
use xtask::launch::{DataPath, LaunchSettings};
use xtask::process::{self, Finished, Job, User};

/// A bound on a hang: the checks wait for files to change.
const LIMIT: Duration = Duration::from_secs(120);

/// A user id that no distribution assigns, and that runs no other process.
const ALONE: User = User { uid: 64_993, gid: 64_993 };

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One);
    checks.many("a tree of another hand", foreign_tree);
    checks.many("programs", programs);
    checks.many("another copy of libibverbs", other_copy);
    checks.many("one user namespace", one_namespace);
    checks.many("settings", settings);
    checks.many("processes", listing::processes);
    checks.many("rdma", listing::rdma);
    checks.many("a test of a Rust project", rust::testing);
    checks.many("files follow", follow);
    checks.many("network interfaces", interfaces::interfaces);
    checks.many("refused", refused);
    checks.many("hosts", hosts);
    checks.many("for all users", system);
    checks.tier(Tier::Full);
    checks.many("programs of other packages", finders::programs);
    checks.tier(Tier::Long);
    checks.many("wheels", wheels::programs);
}

/// `ferroverbs` with these arguments, as `user`.
fn ferroverbs(bench: &Bench, user: Option<User>, args: &[&str]) -> crate::Result<(Fabric, Job)> {
    let mut fabric = bench.over(DataPath::Default)?;
    let dir = folder_of(bench, "fabric", user)?;
    fabric.over =
        LaunchSettings::new(bench.prefix()?, &bench.paths.target).tree().fabric(&dir).user(user);
    let job = fabric.over.job(bench.prefix()?.join("bin/ferroverbs")).args(args);
    Ok((fabric, job.dir(bench.scratch.path())))
}

/// A folder of `user` alone.
fn folder_of(bench: &Bench, stem: &str, user: Option<User>) -> crate::Result<PathBuf> {
    let dir = bench.scratch.folder(stem, 0o700)?;
    if let Some(user) = user {
        chown(&dir, Some(user.uid), Some(user.gid))
            .map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    Ok(dir)
}

/// Runs a shell script as a command of `ferroverbs run`, and looks for lines of its output.
fn script(
    bench: &Bench,
    user: Option<User>,
    text: &str,
    lines: &[&str],
) -> Result<Finished, String> {
    let (_fabric, job) = ferroverbs(bench, user, &["run", "--", "sh", "-ec", text])?;
    let done = job.run(&bench.scratch, LIMIT)?;
    done.expect(lines)?;
    Ok(done)
}

/// The users of this check, with names.
fn users() -> Vec<(&'static str, Option<User>)> {
    match process::is_root() {
        true => vec![("root", None), ("an ordinary user", Some(NOBODY))],
        false => vec![("this user", None)],
    }
}

/// A server and a client, which tries until the server listens. The exit statuses are ignored: a
/// thread of rping may use the event channel after the main thread has destroyed the channel
/// (docs/reference/programs.md).
const RPING: &str = "
    rping -s -a 127.0.0.1 -P & server=$!
    until rping -c -a 127.0.0.1 -C 3 -v 2>/dev/null | grep rdma-ping-2; do kill -0 $server; done
    kill $server; wait $server || :
";

/// A tree that another program made, with an entry for libibverbs and a node.
const FOREIGN: &str = "
    mount -t tmpfs none /sys/class
    device=/sys/class/infiniband/soft0 verbs=/sys/class/infiniband_verbs
    mkdir -p $device/ports/1/gid_attrs $verbs/uverbs0
    echo '1: CA' >$device/node_type; echo 0200:0000:0000:0001 >$device/node_guid
    echo '4: ACTIVE' >$device/ports/1/state; echo Ethernet >$device/ports/1/link_layer
    echo 6 >$verbs/abi_version
    echo soft0 >$verbs/uverbs0/ibdev; echo 231:192 >$verbs/uverbs0/dev; echo 1 >$verbs/uverbs0/abi_version
    mount -t tmpfs -o mode=755 none /dev
    mkdir -m 1777 /dev/shm /dev/infiniband
    mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9; mknod -m 666 /dev/zero c 1 5
    mknod -m 666 /dev/infiniband/uverbs0 c 1 3
";

fn foreign_tree(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    if !process::is_root() {
        tally.skip("a tree of another hand", "only root can make the nodes");
        return Ok(());
    }
    let inside = |command: &str| {
        let fabric = bench.scratch.folder("fabric", 0o700)?;
        let over = LaunchSettings::new(bench.prefix()?, &bench.paths.target)
            .tree()
            .fabric(&fabric)
            .wired();
        let text = format!("{FOREIGN}\n{command}");
        let job = over.job("unshare").args(["--mount", "--net", "sh", "-ec"]).arg(text).arg("sh");
        job.arg(bench.prefix()?.join("bin/ferroverbs")).run(&bench.scratch, LIMIT)
    };
    let done = inside("ibv_devices")?;
    let shown = done.stdout.lines().filter(|line| line.contains("soft0")).count();
    let result = (done.ok() && shown == 1 && done.stderr.is_empty())
        .then_some(())
        .ok_or_else(|| done.report("ibv_devices"));
    tally.record("libibverbs shows the device once, and not as one of the kernel", result);
    let done = inside(&format!("ip link set lo up\n{RPING}"))?;
    tally.record("rping connects", done.expect(&["ping data: rdma-ping-2"]));
    let done = inside("FERROVERBS_QUIET=1 \"$1\" doctor || true")?;
    let is_right = done.ok()
        && done.stdout.contains("programs get the software device soft0")
        && !done.stdout.contains("modprobe");
    let result = is_right.then_some(()).ok_or_else(|| done.report("the doctor"));
    tally.record("the doctor sees no device of the kernel", result);
    Ok(())
}

fn programs(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    for (who, user) in users() {
        for (name, text, lines) in [
            (
                "ibstat",
                "ibstat",
                &["CA 'soft0'", "State: Active", "Physical state: LinkUp", "Rate: 100", "Link layer: Ethernet"]
                    as &[&str],
            ),
            ("ibstatus", "ibstatus", &["Infiniband device 'soft0' port 1 status", "4: ACTIVE", "100 Gb/sec (4X EDR)"]),
            ("lstopo", "lstopo-no-graphics --of console", &["soft0"]),
            (
                "verbs and files agree",
                "cd /sys/class/infiniband/soft0
                 test \"$(ibv_devinfo | sed -n 's/.*node_guid:[[:space:]]*//p')\" = \"$(cat node_guid)\"
                 test \"$(ibv_devinfo | sed -n 's/.*sys_image_guid:[[:space:]]*//p')\" = \"$(cat sys_image_guid)\"
                 for file in ports/1/gid_attrs/types/*; do echo \"${file##*/} $(cat $file)\"; done | sort -n
                 echo agreed",
                &["agreed", "0 RoCE v2"],
            ),
            (
                "the PCI device and its NUMA node",
                "cd /sys/class/infiniband/soft0
                 test \"$(realpath device)\" = \"$(realpath ../soft0/../..)\"
                 basename \"$(realpath device)\"; cat device/numa_node
                 test -c /dev/infiniband/soft0 && echo node",
                &["0fe0:00:00.0", "node"],
            ),
            (
                "folders of the kernel are as before",
                "test \"$(realpath /sys/class/net/lo)\" = /sys/devices/virtual/net/lo
                 cat /sys/class/net/lo/mtu /sys/devices/system/cpu/online; echo there",
                &["there"],
            ),
        ] {
            let name = format!("{name}, as {who}");
            bench.step(&name);
            tally.record(&name, script(bench, user, text, lines).map(drop));
        }
        let name = format!("rping connects, as {who}");
        bench.step(&name);
        tally.record(&name, script(bench, user, RPING, &["ping data: rdma-ping-2"]).map(drop));
    }
    Ok(())
}

/// The distribution's libibverbs lists no device and complains about none.
fn other_copy(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    for (who, user) in users() {
        let name = format!("the distribution's libibverbs finds nothing to open, as {who}");
        let text = "
            env -u LD_LIBRARY_PATH ibv_devices
            env -u LD_LIBRARY_PATH ibv_devinfo 2>&1 || true
            test \"$(ls /sys/class/infiniband_verbs)\" = abi_version && echo empty";
        let result =
            script(bench, user, text, &["empty", "No IB devices found"]).and_then(|done| {
                let is_quiet = !done.stdout.contains("soft0") && done.stderr.is_empty();
                is_quiet.then_some(()).ok_or_else(|| done.report("upstream's programs"))
            });
        tally.record(&name, result);
    }
    Ok(())
}

/// Commands of an ordinary user share a user namespace, so their processes may read each other's
/// memory.
fn one_namespace(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "two commands of an ordinary user have one user namespace and two mount namespaces";
    if !process::is_root() {
        tally.skip(name, "only root can be a user whom no other check is");
        return Ok(());
    }
    let (fabric, _) = ferroverbs(bench, Some(ALONE), &[])?;
    let work = folder_of(bench, "work", Some(ALONE))?;
    let text = "
        cd \"$2\"
        unshare --map-root-user \"$1\" run -- sh -ec 'touch other
            until test -e over; do sleep 0.05; done' & other=$!
        until test -e other; do kill -0 $other; sleep 0.05; done
        test \"$(\"$1\" run -- id -u)\" = \"$(id -u)\" && echo 'own number'
        \"$1\" run -- sh -ec 'readlink /proc/self/ns/user /proc/self/ns/mnt >new; mv new first
            until test -e over; do sleep 0.05; done' & running=$!
        until test -e first; do kill -0 $running; sleep 0.05; done
        \"$1\" run -- readlink /proc/self/ns/user /proc/self/ns/mnt >second
        touch over; wait $running $other
        test \"$(head -1 first)\" = \"$(head -1 second)\"
        test \"$(tail -1 first)\" != \"$(tail -1 second)\"
        test \"$(head -1 first)\" != \"$(readlink /proc/self/ns/user)\"
        echo shared";
    let job = fabric.over.job("sh").args(["-ec", text, "sh"]);
    let job = job.arg(bench.prefix()?.join("bin/ferroverbs")).arg(&work).dir(&work);
    let done = job.run(&bench.scratch, LIMIT)?;
    if done.stderr.contains("is refused") {
        tally.skip(name, done.stderr.trim());
        return Ok(());
    }
    tally.record(name, done.expect(&["own number\n", "shared\n"]));
    Ok(())
}

fn settings(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let user = bench.user;
    let run = |args: &[&str], variables: &[(&str, &str)]| {
        let (_fabric, job) = ferroverbs(bench, user, args)?;
        let job = variables.iter().fold(job, |job, (name, value)| job.env(name, value));
        job.run(&bench.scratch, LIMIT)
    };
    let list = ["ls", "/sys/class/infiniband"];
    for (name, args, variables) in [
        ("--no-tree", vec!["run", "--no-tree", "--"], vec![]),
        ("FERROVERBS_TREE=off", vec!["run", "--"], vec![("FERROVERBS_TREE", "off")]),
    ] {
        let done = run(&[&args[..], &list].concat(), &variables)?;
        let is_off = !done.stdout.contains("soft0");
        tally.record(name, is_off.then_some(()).ok_or_else(|| done.report("ls")));
    }
    for (name, value) in [
        ("FERROVERBS_TREE", "maybe"),
        ("FERROVERBS_SOFT_NAME", "../%d"),
        ("FERROVERBS_SOFT_GIDS", "mlx6"),
    ] {
        let done = run(&["run", "--", "true"], &[(name, value)])?;
        let lines: Vec<_> = done.stderr.lines().collect();
        let is_told = matches!(lines[..], [line] if line.contains(&format!("{name}={value}")));
        let result = (is_told && done.end == process::ExitReason::Exited(2)).then_some(());
        tally.record(&format!("{name}={value}"), result.ok_or_else(|| done.report("it")));
    }
    let variables = [
        ("FERROVERBS_SOFT_NAME", "mlx5_%d"),
        ("FERROVERBS_SOFT_GIDS", "mlx5"),
        ("FERROVERBS_SOFT", "2"),
    ];
    let text = "
        ls /sys/class/infiniband /dev/infiniband; ibv_devices
        cat /sys/class/infiniband/mlx5_1/ports/1/gids/3
        ibv_devinfo -d mlx5_1 -v | grep 'GID\\['";
    let done = run(&["run", "--", "sh", "-ec", text], &variables)?;
    let lines = ["mlx5_0", "mlx5_1", "GID[  3]"];
    let result = done.expect(&lines).and_then(|()| {
        let is_mapped = done.stdout.contains("0000:0000:0000:0000:0000:ffff:");
        is_mapped.then_some(()).ok_or_else(|| done.report("index 3 is no IPv4 address"))
    });
    tally.record("names and GIDs as those of mlx5", result);
    let own = bench.prefix()?.join("bin/ferroverbs");
    let (fabric, _) = ferroverbs(bench, user, &[])?;
    let text = "
        eval \"$(\"$1\" env -s 2)\"; ibv_devices
        unset LD_LIBRARY_PATH FERROVERBS_SOFT
        \"$1\" env -s 3 --format file | sed 's/=.*//'
        env \"$(\"$1\" env --format file)\" ibv_devices";
    let job = fabric.over.job("sh").args(["-ec", text, "sh"]).arg(own);
    let done = job.dir(bench.scratch.path()).run(&bench.scratch, LIMIT)?;
    let lines = ["soft1 ", "LD_LIBRARY_PATH\n", "FERROVERBS_SOFT\n"];
    let counts = |name: &str| done.stdout.matches(name).count();
    let result = done.expect(&lines).and_then(|()| {
        let is_right = counts("soft0 ") == 2 && counts("soft1 ") == 1;
        is_right.then_some(()).ok_or_else(|| done.report("ferroverbs env"))
    });
    tally.record("ferroverbs env", result);
    let (folder, image) = (bench.private_folder("image")?, ["tree"]);
    let done = run(&[&image[..], &[&folder.display().to_string()]].concat(), &[])?;
    let device = folder.join("sys/class/infiniband/soft0");
    let is_there = device.join("ports/1/state").exists() && folder.join("dev/infiniband").exists();
    let result = (done.ok() && is_there).then_some(()).ok_or_else(|| done.report("tree DIR"));
    tally.record("ferroverbs tree DIR", result);
    Ok(())
}

/// GID files follow the addresses, and an address that stays keeps its index.
fn follow(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "GID files follow the addresses of the namespace";
    if !process::is_root() {
        tally.skip(name, "only root can give addresses to an interface");
        return Ok(());
    }
    let fabric = bench.scratch.folder("fabric", 0o700)?;
    let over = LaunchSettings::new(bench.prefix()?, &bench.paths.target).tree().fabric(&fabric);
    let text = "
        ip link set lo up
        exec \"$1\" run -- sh -ec '
            cd /sys/class/infiniband/soft0/ports/1
            wait_for() { until grep -qs \"$1\" gids/* 2>/dev/null; do sleep 0.05; done; }
            before=$(grep -l 7f00:0001 gids/*)
            ip addr add 10.9.9.1/32 dev lo; wait_for 0a09:0901
            file=$(grep -l 0a09:0901 gids/*); cat gid_attrs/ndevs/${file#gids/}
            ip addr del 10.9.9.1/32 dev lo
            while grep -qs 0a09:0901 gids/*; do sleep 0.05; done
            test \"$(grep -l 7f00:0001 gids/*)\" = \"$before\"
            cat /sys/class/infiniband_verbs/abi_version /sys/class/infiniband_mad/abi_version
            echo followed'";
    let job = over.job("unshare").args(["--net", "sh", "-ec"]).arg(text).arg("sh");
    let done = job.arg(bench.prefix()?.join("bin/ferroverbs")).run(&bench.scratch, LIMIT)?;
    tally.record(name, done.expect(&["lo\n", "followed"]));
    Ok(())
}

/// Where namespaces are refused, one line names the remedy, and the command runs.
fn refused(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "a refused mount namespace is told in one line with its remedy";
    let (fabric, _) = ferroverbs(bench, bench.user, &[])?;
    // A limit of a user namespace of its own: the machine's setting stays.
    let text = "echo 0 >/proc/sys/user/max_mnt_namespaces; exec \"$1\" run -- ibv_devices";
    let job = fabric.over.job("unshare").args(["--map-root-user", "sh", "-ec", text, "sh"]);
    let done = job.arg(bench.prefix()?.join("bin/ferroverbs")).run(&bench.scratch, LIMIT)?;
    let lines: Vec<_> = done.stderr.lines().collect();
    let is_told = matches!(lines[..], [line] if line.contains("a mount namespace is refused") && line.contains("tree --system"));
    let result = done
        .expect(&["soft0"])
        .and_then(|()| is_told.then_some(()).ok_or_else(|| done.report("it")));
    tally.record(name, result);
    Ok(())
}

/// Each host of a cluster has a tree with its own addresses and counters.
fn hosts(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "hosts of a cluster have trees of their own, with live counters";
    let dir = bench.private_folder("fabric")?;
    let over =
        LaunchSettings::new(bench.prefix()?, &bench.paths.target).tree().wired().fabric(&dir);
    let over = over.user(bench.user);
    let job = over.job(bench.prefix()?.join("bin/ferroverbs")).args(["cluster", "2", "sh", "-ec"]);
    let text = "
        cd /sys/class/infiniband/soft0/ports/1
        address=0a4c:000$FERROVERBS_HOST
        until grep -qs ffff:$address gids/*; do sleep 0.05; done
        if [ $FERROVERBS_HOST = 1 ]; then
            ibv_rc_pingpong -g 1 -n 1000000000 >/dev/null 2>&1 & program=$!
        else
            while :; do ibv_rc_pingpong -g 1 -n 1000000000 host1 >/dev/null 2>&1 || sleep 0.05; done & program=$!
        fi
        until [ \"$(cat hw_counters/sent_pkts)\" -gt 0 ]; do sleep 0.05; done
        until [ \"$(cat counters/port_rcv_packets)\" -gt 0 ]; do sleep 0.05; done
        [ $FERROVERBS_HOST = 2 ] || ssh host2 true
        until [ $FERROVERBS_HOST = 2 ] || \"$1\" ps $program | grep -q 'RC  *RTS  *a QP of another host'; do sleep 0.05; done
        echo counted $address";
    let job = job.arg(text).arg("sh").arg(bench.prefix()?.join("bin/ferroverbs"));
    let done = job.dir(bench.scratch.path()).run(&bench.scratch, LIMIT)?;
    if done.stderr.contains("which are refused here") {
        tally.skip(name, done.stderr.trim());
        return Ok(());
    }
    tally.record(name, done.expect(&["counted 0a4c:0001", "counted 0a4c:0002"]));
    Ok(())
}

/// `ferroverbs tree --system` shows the tree to all users, and `--remove` undoes it.
fn system(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "tree --system and --remove";
    if !process::is_root() {
        tally.skip(name, "only root can make it");
        return Ok(());
    }
    let fabric = bench.scratch.folder("fabric", 0o700)?;
    let over = LaunchSettings::new(bench.prefix()?, &bench.paths.target).tree().fabric(&fabric);
    // In a separate mount namespace, and with a folder for nodes. Mounts are shared, as systemd
    // makes them.
    let text = "
        mount --make-rshared /
        \"$1\" tree --system
        setpriv --reuid=65534 --regid=65534 --clear-groups ibstat
        \"$1\" tree --system
        test -c /dev/infiniband/soft0
        \"$1\" tree --remove
        test ! -e /sys/class/infiniband/soft0 && test ! -e /dev/infiniband/soft0
        if ls /sys/class/net/*/device/infiniband 2>/dev/null; then exit 1; fi
        if \"$1\" tree --remove; then exit 1; fi
        echo removed";
    let job = over.job("unshare").args(["--mount", "sh", "-ec"]).arg(text).arg("sh");
    let done = job.arg(bench.prefix()?.join("bin/ferroverbs")).run(&bench.scratch, LIMIT)?;
    tally.record(name, done.expect(&["CA 'soft0'", "removed"]));
    Ok(())
}
