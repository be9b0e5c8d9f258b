//! Reports about requests that fail because of the peer, which is another process
//! (c-tests/validate/other_end.c), and about requests to another host.

use super::{LIMIT, compiled, ids, ids_of};
use crate::{Bench, Tally};
use xtask::launch::DataPath;
use xtask::process::Job;

/// The message of each case, and parts of it.
const CASES: &[(&str, &str, &[&str])] = &[
    ("receive", "CQ-03", &["RNR_RETRY_EXC_ERR", "had no receive posted", "(other_end), in RTS"]),
    (
        "nobody",
        "CQ-03",
        &["RETRY_EXC_ERR", "no process of this host has queue pairs of numbers as"],
    ),
    ("absent", "CQ-03", &["RETRY_EXC_ERR", "(other_end) has no qp 0x", "must not destroy its QP"]),
    ("gone", "CQ-03", &["RETRY_EXC_ERR", "its process ended before", ", has ended", "dmesg"]),
    ("state", "CQ-03", &["RETRY_EXC_ERR", "(other_end), in INIT", "take the peer's QP to RTR"]),
    ("stranger", "CQ-03", &["RETRY_EXC_ERR", "and not to this one", "set dest_qp_num of the peer"]),
    ("lkey", "MR-11", &["REM_ACCESS_ERR", "is an lkey of process ", "must send its mr->rkey"]),
    ("key", "CQ-03", &["REM_ACCESS_ERR", "has no region or window with rkey 0x"]),
    ("range", "CQ-03", &["REM_ACCESS_ERR", ") is not within [0x", "compare remote_addr"]),
    ("right", "CQ-03", &["REM_ACCESS_ERR", "without IBV_ACCESS_REMOTE_WRITE", "with that right"]),
    ("domain", "CQ-03", &["REM_ACCESS_ERR", "in another protection domain than that of its QP"]),
    ("access", "QP-09", &["has qp_access_flags 0x4, without IBV_ACCESS_REMOTE_WRITE"]),
    ("length", "CQ-03", &["REM_INV_REQ_ERR", "its 64 bytes are probably more", "in ERR"]),
    ("operation", "CQ-03", &["REM_OP_ERR", "something is wrong with the receive", "in ERR"]),
];

/// A network of one cable, in which the program is started.
const NETWORK: &str = "ip link add name fv0 type veth peer name fv1 && ip address add 10.77.0.1/24 dev fv0 && ip link set fv0 up && ip link set fv1 up && exec \"$@\"";

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let program = compiled(bench, "validate/other_end.c", "other_end", &[])?;
    let names = ids_of(bench, &program)?;
    let cases: Vec<&str> = CASES.iter().map(|(name, ..)| *name).collect();
    let all = (names == cases).then_some(()).ok_or_else(|| format!("{names:?}"));
    tally.record("each case of the other end is known", all);
    for (name, id, parts) in CASES {
        for how in ["wrong", "right"] {
            bench.step(&format!("the other end: {name} {how}"));
            let fabric = bench.over(DataPath::Default)?;
            let job = fabric.over.own_job(&program).args([*name, how]);
            let (reported, parts): (&[&str], &[&str]) =
                if how == "wrong" { (&[id], parts) } else { (&[], &[]) };
            check(bench, tally, &format!("{name} {how}"), (job, &fabric.work), reported, parts)?;
        }
    }
    let network = || Job::new("unshare").args(["--map-root-user", "--net", "sh", "-c"]);
    if !network().args([NETWORK, "sh", "true"]).run(&bench.scratch, LIMIT)?.ok() {
        tally.skip("the other end: a wire", "no network namespace of its own can be made");
        return Ok(());
    }
    for (name, address, wire) in [("nobody", "10.77.0.9", "auto"), ("key", "10.77.0.1", "always")] {
        let fabric = bench.over(DataPath::Default)?;
        let job = fabric.over.own_job("unshare").args(["--map-root-user", "--net", "sh", "-c"]);
        let job = job.args([NETWORK, "sh"]).arg(&program).args([name, "wrong"]);
        let job = job.env("ADDRESS", address).env("FERROVERBS_SOFT_WIRE", wire);
        let place = format!("is reached by the wire, at {address}: how it is there is not told");
        let parts = ["RETRY_EXC_ERR (vendor_err 0x3): no answer from qp 0x", &place];
        check(bench, tally, &format!("to {address}"), (job, &fabric.work), &["CQ-03"], &parts)?;
    }
    Ok(())
}

fn check(
    bench: &Bench,
    tally: &mut Tally,
    name: &str,
    (job, work): (Job, &std::path::Path),
    reported: &[&str],
    parts: &[&str],
) -> crate::Result<()> {
    let json = work.join("told.json");
    let job = job.env("FERROVERBS_LAYERS", "validate").env("FERROVERBS_QUIET", "1");
    let job = job.env("FERROVERBS_VALIDATE", format!("json={}", json.display()));
    let done = job.dir(work).run(&bench.scratch, LIMIT)?;
    let output = parts.iter().all(|part| done.stderr.contains(part));
    let quiet = !parts.is_empty() || done.stderr.is_empty();
    let right = done.ok() && output && quiet && ids(&json) == reported;
    tally.record(
        &format!("the other end: {name}"),
        right.then_some(()).ok_or_else(|| done.report("the program")),
    );
    Ok(())
}
