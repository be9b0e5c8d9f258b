//! uDAPL (dapl2-utils): its test programs over both connection methods without rdma_cm: `scm` by
//! TCP, `ucm` by datagrams.
//!
//! Most programs end with status 0 in every case, so the test checks their output.

use super::{LIMIT, PATHS, Stacks};
use crate::{Fabric, Tally};
use std::fs;
use std::time::{Duration, Instant};
use xtask::launch::DataPath;
use xtask::process::{Finished, Job, PAUSE};

/// The adapter, by both ways (dat.conf(5)).
const CONF: &str = "\
soft-s u2.0 nonthreadsafe default libdaploscm.so.2 dapl.2.0 \"soft0 1\" \"\"
soft-u u2.0 nonthreadsafe default libdaploucm.so.2 dapl.2.0 \"soft0 1\" \"\"
";

/// Fixed ports: the last ones on which the servers listen before a client may connect.
const DTEST: u16 = 15828;
const DTESTSRQ: u16 = 46248;
/// A free choice, but dapltest also uses the ports behind it; the kernel must not assign those to
/// further programs.
const DAPLTEST: u16 = 63000;

/// Programs with equal arguments on both sides (the client has `-h` too): the server's port, the
/// common output, and its count. Not `dtestx`: its client may connect before the listen and then
/// fails; with `-u` the program needs two hosts.
const SAME: [(&str, u16, &str, usize); 7] = [
    ("dtest", DTEST, "DAPL Test Complete. PASSED", 2),
    ("dtest -c -b 1000", DTEST, "DAPL Test Complete. PASSED", 2),
    ("dtest -p -b 100000", DTEST, "DAPL Test Complete. PASSED", 2),
    ("dtestcm -c 50", DTEST, "ALL 50 CONNECTED", 2),
    ("dtestcm -w -c 50", DTEST, "ALL 50 CONNECTED", 2),
    (SRQ, DTESTSRQ, "DAPL RC SRQ Test Complete.", 2),
    ("dtestsrq -S 0 -c 4 -B 3", DTESTSRQ, "DAPL RC none SRQ Test Complete.", 2),
];

/// One connection: the library assumes that receives of an SRQ complete in posting order, which
/// verbs do not promise for several QPs. The program sometimes fails when two threads serve two
/// QPs.
const SRQ: &str = "dtestsrq -c 1 -B 8";

/// Tests of `dapltest`, and the output of their clients. `-V` makes it check all data.
const TESTS: [(&str, &str); 6] = [
    ("-T T -i 100 client SR 4096 2 server SR 4096 2", "----- Stats ----"),
    (
        "-T T -V -t 2 -w 4 -i 100 client RW 4096 1 server RW 2048 4 client SR 1024 4 server SR 4096 2 \
         client SR 1024 3 -f server SR 2048 1 -f",
        "----- Stats ----",
    ),
    ("-T T -V -P -w 2 -i 50 client RR 65536 2 server RR 100000 1", "----- Stats ----"),
    ("-T P -i 300 RW 4096 2", "raw: RW, 300, 4096, 2"),
    ("-T P -i 300 -m p RR 4096 2", "raw: RR, 300, 4096, 2"),
    ("-T P -i 100 -p 1 RR 200000 1", "raw: RR, 100, 200000, 1"),
];

impl Stacks<'_> {
    pub(super) fn dapl(&self, tally: &mut Tally) -> crate::Result<()> {
        for path in PATHS {
            for (line, port, says, times) in SAME {
                let (program, args) = line.split_once(' ').unwrap_or((line, ""));
                let server = format!("{program} -P soft-s {args}");
                let client = format!("{server} -h 127.0.0.1");
                let name = format!("uDAPL, scm: {line} ({})", path.name());
                self.bench.step(&name);
                let done = self.dapl_pair(path, port, &server, &client)?;
                tally.record(&name, expect_without_errors(&done, says, times));
            }
            for (test, says) in TESTS {
                let (what, args) = test.split_at("-T T".len());
                let to = "-D soft-s -s 127.0.0.1";
                // The server goes on until it is told.
                let client = format!("sh -c 'dapltest {what} {to} {args}; dapltest -T Q {to}'");
                let name = format!("uDAPL, scm: dapltest {test} ({})", path.name());
                self.bench.step(&name);
                let done = self.dapl_pair(path, DAPLTEST, "dapltest -T S -D soft-s", &client)?;
                tally.record(&name, expect_without_errors(&done, says, 1));
            }
            let name = format!("uDAPL, ucm: {SRQ} ({})", path.name());
            self.bench.step(&name);
            tally.record(&name, self.ucm(&self.dapl_fabric(path)?)?);
        }
        Ok(())
    }

    fn dapl_pair(
        &self,
        path: DataPath,
        port: u16,
        server: &str,
        client: &str,
    ) -> crate::Result<Finished> {
        let fabric = self.dapl_fabric(path)?;
        let job = with_dapl(&fabric, "sh").arg(&self.pair).arg(port.to_string());
        self.finish(&fabric, job.arg(server).arg(client))
    }

    fn dapl_fabric(&self, path: DataPath) -> crate::Result<Fabric> {
        let fabric = self.bench.over(path)?;
        let conf = fabric.work.join("dat.conf");
        fs::write(&conf, CONF).map_err(|e| format!("{}: {e}", conf.display()))?;
        Ok(fabric)
    }

    /// The client gets the number of the QP for datagrams, which the server prints. (The LID is 0
    /// on Ethernet.)
    fn ucm(&self, fabric: &Fabric) -> crate::Result<Result<(), String>> {
        let server = with_dapl(fabric, "stdbuf").arg("-oL").args(SRQ.split(' '));
        let server = server.args(["-P", "soft-u"]);
        let mut server = server.dir(&fabric.work).start(&self.bench.scratch)?;
        let deadline = Instant::now() + LIMIT;
        let qpn = loop {
            let printed = server.printed();
            // The server prints the line when it listens.
            let ready = printed.contains("server ready");
            if let Some(qpn) = qpn_of(&printed).filter(|_| ready) {
                break qpn.to_string();
            }
            if server.ended() || Instant::now() > deadline {
                return Ok(Err(server.finish(Instant::now()).report("the server")));
            }
            std::thread::sleep(PAUSE);
        };
        let client = with_dapl(fabric, "env").args(SRQ.split(' '));
        let client = client.args(["-P", "soft-u", "-h", "127.0.0.1", "-l", "0", "-q", &qpn]);
        let client = client.dir(&fabric.work).run(&self.bench.scratch, LIMIT)?;
        let server = server.finish(Instant::now() + Duration::from_secs(20));
        let says = "DAPL RC SRQ Test Complete.";
        let result = expect_without_errors(&server, says, 1)
            .and_then(|()| expect_without_errors(&client, says, 1));
        Ok(result.map_err(|e| format!("{e}{}", client.report("the client"))))
    }
}

fn with_dapl(fabric: &Fabric, program: &str) -> Job {
    let job = fabric.over.job(program).env("DAT_OVERRIDE", fabric.work.join("dat.conf"));
    // Otherwise it listens on the address of the host's name.
    job.env("DAPL_SCM_NETDEV", "lo")
}

/// The number that `dtestsrq` prints as `flowinfo(QPN)=0x4001`.
fn qpn_of(printed: &str) -> Option<&str> {
    let (_, rest) = printed.split_once("flowinfo(QPN)=")?;
    rest.split_once(',').map(|(qpn, _)| qpn)
}

/// Whether the program succeeded, printed `words` that many times, and printed no error.
fn expect_without_errors(done: &Finished, words: &str, times: usize) -> Result<(), String> {
    let complains = |line: &str| {
        ["ERR", "Error", "error", "FAILED", "Warning", "mismatch"].iter().any(|w| line.contains(w))
            // Harmless lines: dtestsrq always prints the first; dtestcm sometimes prints the
            // second, when the peer disconnects first.
            && !["ERR: Checking ASYNC EVD", "Error disconnect_eps: DAT_INVALID_HANDLE"]
                .iter()
                .any(|harmless| line.contains(harmless))
    };
    let first = done.stdout.lines().chain(done.stderr.lines()).find(|line| complains(line));
    if done.ok() && first.is_none() && done.stdout.matches(words).count() == times {
        return Ok(());
    }
    Err(format!("{}\n{}", first.unwrap_or("not what it was to say"), done.report("the program")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_the_qp_is_what_stands_before_the_comma() {
        let line = " Local Address AF_INET6 - fe80::1 flowinfo(QPN)=0x4001, port(LID)=0x0\n";
        assert_eq!(qpn_of(line), Some("0x4001"));
        assert_eq!(qpn_of("server ready"), None);
    }
}
