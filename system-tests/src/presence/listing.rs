//! What `ferroverbs ps` and the stand-in of rdma(8) list.

use super::{LIMIT, ferroverbs, folder_of, users};
use crate::{Bench, Tally};
use xtask::pair::free_port;
use xtask::process::{ExitReason, Finished, User};

/// `$server` and its client are connected; the client tries until the server listens. `$lonely` has
/// QPs without a peer. `$1` is the command `ferroverbs`, `$2` and `$3` are free ports, and `$4` is
/// a folder. The script ends only its own processes. The client is the peer that `ps` names.
const PAIR: &str = "
    ibv_rc_pingpong -p $2 -n 1000000000 >/dev/null 2>&1 & server=$!
    ibv_ud_pingpong -p $3 >/dev/null 2>&1 & lonely=$!
    (while kill -0 $server 2>/dev/null; do ibv_rc_pingpong -p $2 -n 1000000000 127.0.0.1 >/dev/null 2>&1 || sleep 0.05; done) & client=$!
    trap 'kill $server $lonely || :; wait $client || :' EXIT
    of_peer() { \"$1\" ps $2 | sed -n 's/.*RC  *RTS  *QP 0x[0-9a-f]* of \\([0-9]*\\) (ibv_rc_pingpong)$/\\1/p'; }
    until other=$(of_peer \"$1\" $server); test -n \"$other\"; do kill -0 $server; sleep 0.05; done
    until \"$1\" ps $other | grep -q \"RTS  *QP 0x[0-9a-f]* of $server \"; do kill -0 $server; sleep 0.05; done
    until \"$1\" ps $lonely 2>/dev/null | grep -q 'UD  *[A-Z]*  *-$'; do kill -0 $lonely; sleep 0.05; done
";

fn run(bench: &Bench, user: Option<User>, text: &str) -> crate::Result<Finished> {
    let own = bench.prefix()?.join("bin/ferroverbs").display().to_string();
    let ports = [free_port()?, free_port()?].map(|port| port.to_string());
    let (_fabric, job) = ferroverbs(bench, user, &["run", "--", "sh", "-ec", text, "sh", &own])?;
    let work = folder_of(bench, "work", user)?;
    job.args(ports).arg(work).run(&bench.scratch, LIMIT)
}

pub(super) fn processes(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    for (who, user) in users() {
        let name = format!("ferroverbs ps shows processes, QPs and peers, as {who}");
        bench.step(&name);
        let text = format!(
            "{PAIR}
            \"$1\" ps $server | sed -n \"s/^$server ibv_rc_pingpong: soft0, fabric .*\\/[a-z]*-[^\\/]*\\$/device and fabric/p\"
            test $other != $server && echo mutual
            \"$1\" ps --json $server | tr -d ' \\n' | grep -q \"\\\"peer_pid\\\":$other,\" && echo json
            \"$1\" ps 1 2>/dev/null || echo \"status $?\"
            \"$1\" ps | grep -q \"^$lonely ibv_ud_pingpong: soft0, \" && echo all"
        );
        let lines = ["device and fabric\n", "mutual\n", "json\n", "status 2\n", "all\n"];
        tally.record(&name, run(bench, user, &text).and_then(|done| done.expect(&lines)));
    }
    Ok(())
}

pub(super) fn rdma(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    for (who, user) in users() {
        let name = format!("scripts find the device by rdma(8), as {who}");
        bench.step(&name);
        let text = "
            rdma link show | sed -n 's/^link soft0\\/1 state ACTIVE physical_state LINK_UP netdev .*/link/p'
            rdma -j link | grep -q '\"ifname\":\"soft0\",' && echo 'link as JSON'
            test \"$(rdma dev show soft0 | sed 's/.* node_guid \\([^ ]*\\) .*/\\1/')\" = \"$(cat /sys/class/infiniband/soft0/node_guid)\" && echo dev
            rdma link add soft0 type rxe netdev lo 2>/dev/null && echo 'link add'";
        let lines = ["link\n", "link as JSON\n", "dev\n", "link add\n"];
        tally.record(&name, run(bench, user, text).and_then(|done| done.expect(&lines)));
    }
    let name = "the stand-in passes other requests on to the rdma(8) of the system";
    bench.step(name);
    let text = "
        cd \"$4\"; printf '#!/bin/sh\\necho \"system: $*\"\\n' >rdma; chmod +x rdma
        folder=$(dirname \"$(command -v rdma)\")
        PATH=$folder:$PWD:$PATH
        rdma statistic show
        rdma link show rxe7
        rdma link | tail -n 2
        rdma link add rxe7 type rxe netdev lo";
    let done = run(bench, users().last().and_then(|(_, user)| *user), text);
    let lines = [
        "system: statistic show\n",
        "system: link show rxe7\n",
        "system: link\nlink soft0/1",
        "system: link add rxe7 type rxe netdev lo\n",
    ];
    tally.record(name, done.and_then(|done| done.expect(&lines)));
    let name = "without the rdma(8) of the system a line says what the stand-in does";
    let (_fabric, job) = ferroverbs(bench, bench.user, &["rdma", "monitor"])?;
    let done = job.env("PATH", "/nowhere").run(&bench.scratch, LIMIT)?;
    let is_told = done.end == ExitReason::Exited(2) && done.stderr.contains("PATH has no rdma(8)");
    tally.record(name, is_told.then_some(()).ok_or_else(|| done.report("ferroverbs rdma monitor")));
    Ok(())
}
