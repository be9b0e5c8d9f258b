//! Programs that cannot connect: in two fabric directories, of two users, in two network
//! namespaces. They must fail or wait, and one must print the reason; none may talk to itself and
//! report success. Also programs that can connect: in two network namespaces with a common folder.

use crate::{Bench, Checks, Load, NOBODY, Tally};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use xtask::foreign::{self, PERFTEST_CLOCK};
use xtask::launch::LaunchSettings;
use xtask::namespaces::{Namespaces, SERVER};
use xtask::pair::free_port;
use xtask::process::{Finished, Job, PAUSE, Running, User};

/// What tries to meet. The client gets the server's address as its last argument.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("ibv_rc_pingpong", &[]),
    ("ibv_uc_pingpong", &[]),
    ("ibv_ud_pingpong", &[]),
    ("ib_send_lat", &["-c", "UD"]),
];

/// Between namespaces: with addresses.
const ROUTED: &[(&str, &[&str])] = &[
    ("ibv_rc_pingpong", &["-g", "1"]),
    ("ibv_ud_pingpong", &["-g", "1"]),
    ("ib_send_lat", &["-c", "UD", "-n", "100"]),
];

/// How long they may take until one says why, or until both are done.
const LIMIT: Duration = Duration::from_secs(60);

/// The part of the line that all its forms have.
const LINE: &str = "soft reaches this one only";

/// Debian's `daemon` (/usr/share/base-passwd/passwd.master).
const DAEMON: User = User { uid: 1, gid: 1 };

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::Waits);
    for &(program, args) in PROGRAMS {
        let name = format!("{program} {}", args.join(" "));
        checks.one(format!("{name}, two directories"), move |bench| {
            PairSetup::new(bench, [bench.user, bench.user])?.apart(bench, program, args)
        });
        checks.many(format!("{name}, two users"), move |bench, tally| {
            if bench.user.is_none() {
                tally.skip("two users", "only root can become two users");
                return Ok(());
            }
            let place = PairSetup::new(bench, [Some(NOBODY), Some(DAEMON)])?;
            tally.record("two users", place.apart(bench, program, args));
            Ok(())
        });
    }
    for &(program, args) in ROUTED {
        let name = format!("{program} {}, two namespaces", args.join(" "));
        checks.many(name, move |bench, tally| namespaces(bench, tally, program, args));
    }
}

fn namespaces(bench: &Bench, tally: &mut Tally, program: &str, args: &[&str]) -> crate::Result<()> {
    let namespaces = match Namespaces::new() {
        Ok(namespaces) => namespaces,
        Err(reason) => {
            tally.skip("network namespaces", &reason);
            return Ok(());
        }
    };
    let mut place = PairSetup::new(bench, [None, None])?;
    place.namespaces = Some(&namespaces);
    tally.record("two namespaces", place.apart(bench, program, args));
    let shared = place.dirs[0].clone();
    place.dirs[1] = shared;
    tally.record("two namespaces with one folder", place.together(bench, program, args));
    Ok(())
}

/// Where the two sides are: server, client.
pub(super) struct PairSetup<'a> {
    dirs: [PathBuf; 2],
    users: [Option<User>; 2],
    pub(super) namespaces: Option<&'a Namespaces>,
    /// Whether the wire between hosts is available.
    pub(super) wired: bool,
    /// Packet impairment of soft itself (FERROVERBS_SOFT_IMPAIRMENT); empty: none.
    pub(super) impairment: &'a str,
}

impl<'a> PairSetup<'a> {
    pub(super) fn new(bench: &Bench, users: [Option<User>; 2]) -> crate::Result<Self> {
        let folder = |user: Option<User>| {
            let dir = bench.scratch.folder("shared", 0o700)?;
            if let Some(user) = user {
                std::os::unix::fs::chown(&dir, Some(user.uid), Some(user.gid))
                    .map_err(|e| format!("cannot give {} away: {e}", dir.display()))?;
            }
            Ok::<_, String>(dir)
        };
        let [server, client] = users;
        Ok(Self {
            dirs: [folder(server)?, folder(client)?],
            users,
            namespaces: None,
            wired: false,
            impairment: "",
        })
    }

    /// Two hosts with the wire between them.
    pub(super) fn wired(
        bench: &Bench,
        hosts: &'a Namespaces,
        impairment: &'a str,
    ) -> crate::Result<Self> {
        Ok(Self {
            namespaces: Some(hosts),
            wired: true,
            impairment,
            ..Self::new(bench, [None, None])?
        })
    }

    /// The fabric folder of a side.
    pub(super) fn folder(&self, side: usize) -> &std::path::Path {
        &self.dirs[side]
    }

    /// `program` on a side.
    pub(super) fn job(
        &self,
        bench: &Bench,
        side: usize,
        program: &str,
        args: &[&str],
    ) -> crate::Result<Job> {
        let mut over = LaunchSettings::new(bench.prefix()?, &bench.paths.target)
            .fabric(&self.dirs[side])
            .user(self.users[side]);
        if self.wired {
            over = over.wired();
        }
        let job = match self.namespaces {
            None => over.job(program),
            Some(namespaces) => {
                over.job("ip").args(["netns", "exec", &namespaces.names[side], program])
            }
        };
        let job = match self.impairment {
            "" => job,
            impairment => job.env("FERROVERBS_SOFT_IMPAIRMENT", impairment),
        };
        Ok(job.args(args).dir(&self.dirs[side]))
    }

    /// Starts both, the client once the server listens.
    pub(super) fn start(
        &self,
        bench: &Bench,
        program: &str,
        args: &[&str],
    ) -> crate::Result<[Running; 2]> {
        self.start_with(bench, program, args, |job| job)
    }

    /// As `start`, with jobs that were changed.
    pub(super) fn start_with(
        &self,
        bench: &Bench,
        program: &str,
        args: &[&str],
        change: impl Fn(Job) -> Job,
    ) -> crate::Result<[Running; 2]> {
        let port = free_port()?.to_string();
        let tell = |job: Job| change(job).args(["-p", &port]);
        let mut server = tell(self.job(bench, 0, program, args)?).start(&bench.scratch)?;
        let deadline = Instant::now() + LIMIT;
        while !server.listens_on(port.parse().unwrap_or(0)) {
            if server.ended() || Instant::now() > deadline {
                return Err(server.finish(Instant::now()).report("the server did not listen"));
            }
            std::thread::sleep(PAUSE);
        }
        let address = if self.namespaces.is_some() { SERVER } else { "127.0.0.1" };
        let client = tell(self.job(bench, 1, program, args)?).arg(address).start(&bench.scratch)?;
        Ok([server, client])
    }

    /// The programs do not connect, and one prints the reason.
    fn apart(&self, bench: &Bench, program: &str, args: &[&str]) -> Result<(), String> {
        self.fail(bench, program, args, LINE)
    }

    /// The programs fail, and one prints `line` once.
    pub(super) fn fail(
        &self,
        bench: &Bench,
        program: &str,
        args: &[&str],
        line: &str,
    ) -> Result<(), String> {
        let [mut server, mut client] = self.start(bench, program, args)?;
        let deadline = Instant::now() + LIMIT;
        let output = |side: &Running| side.complained().contains(line);
        while !output(&server) && !output(&client) && !client.ended() && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
        // Gives a program time to report a success.
        let end = Instant::now() + Duration::from_millis(500);
        while !client.ended() && !server.ended() && Instant::now() < end {
            std::thread::sleep(PAUSE);
        }
        let both = [server, client].map(|side| side.finish(Instant::now()));
        let lines = |side: &Finished| side.stderr.matches(line).count();
        let reported = both.iter().any(|side| lines(side) > 0);
        if reported && both.iter().all(|side| !side.ok() && lines(side) <= 1) {
            return Ok(());
        }
        let [server, client] = &both;
        Err(format!("{}{}", server.report("server"), client.report("client")))
    }

    /// Several pairs connect at once between the same two hosts, so each process receives packets
    /// for other processes.
    pub(super) fn run_pairs(&self, bench: &Bench, pairs: &[(&str, &[&str])]) -> Result<(), String> {
        let started: Result<Vec<_>, String> =
            pairs.iter().map(|(program, args)| self.start(bench, program, args)).collect();
        let deadline = Instant::now() + LIMIT;
        let mut failures = String::new();
        for both in started? {
            let [server, client] = both.map(|side| side.finish(deadline));
            if !(server.ok() && client.ok()) {
                failures += &server.report("server");
                failures += &client.report("client");
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }

    /// A pair meets. perftest runs again where it had no clock ([`PERFTEST_CLOCK`]).
    pub(super) fn together(
        &self,
        bench: &Bench,
        program: &str,
        args: &[&str],
    ) -> Result<(), String> {
        let run = || both_end_well(self.start(bench, program, args)?);
        foreign::again(run, |done| PERFTEST_CLOCK.failed(done))
    }
}

/// Both programs end with success.
pub(super) fn both_end_well(pair: [Running; 2]) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    let both = pair.map(|side| side.finish(deadline));
    if both.iter().all(Finished::ok) {
        return Ok(());
    }
    let [server, client] = &both;
    Err(format!("{}{}", server.report("server"), client.report("client")))
}
