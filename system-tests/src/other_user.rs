//! Another user of the machine, which is no member of the fabric: beside
//! communicating processes, and as the caller of a privileged program.

use crate::bench::files_left;
use crate::{Bench, Checks, NOBODY, Tally};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::launch::LaunchSettings;
use xtask::process::{Finished, Job, User};
use xtask::scratch;

/// Users that no distribution assigns (Debian policy 9.2.2 reserves 60000 to 64999, of which few
/// are assigned; these are among the last).
const OWNER: User = User { uid: 64_991, gid: 64_991 };
const STRANGER: User = User { uid: 64_992, gid: 64_992 };

/// A bound on a hang: the other user sends sockets that take an hour to close.
const LIMIT: Duration = Duration::from_secs(300);

/// Programs that connect by librdmacm, which takes names in the network namespace.
const PAIRS: &[(&str, &[&str])] =
    &[("ib_send_lat", &["-R", "-F", "-n", "20000"]), ("ib_write_bw", &["-R", "-F", "-n", "5000"])];

pub(super) fn register(checks: &mut Checks) {
    // One after the other: the users are the same.
    checks.many("another user of the machine", run);
}

fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    if bench.user.is_none() {
        tally.skip("another user beside two processes", "only root can be several users");
        tally.skip("programs with more rights than their caller", "only root can make them");
        return Ok(());
    }
    let other_user = ferroverbs_c_tests::compile_other_user(bench.scratch.path());
    let other_user = other_user.map_err(|e| e.to_string())?;
    for (program, args) in PAIRS {
        let name = format!("another user beside {program} {}", args.join(" "));
        bench.step(&format!("other user: {name}"));
        tally.record(&name, beside(bench, &other_user, program, args));
    }
    bench.step("other user: a folder that another user made first");
    tally.record("a folder that another user made first", made_first(bench));
    let places = Privileged::new(bench)?;
    for kind in [
        ProgramRights::Plain,
        ProgramRights::SetUser,
        ProgramRights::SetGroup,
        ProgramRights::Capability,
    ] {
        bench.step(&format!("other user: a program that is {}", kind.name()));
        tally.record(&format!("a program that is {}", kind.name()), places.judge(bench, kind));
    }
    Ok(())
}

/// A folder of `user` alone.
fn folder_of(bench: &Bench, stem: &str, user: User) -> crate::Result<PathBuf> {
    let dir = bench.scratch.folder(stem, 0o700)?;
    give(&dir, user.uid, user.gid)?;
    Ok(dir)
}

fn give(path: &Path, uid: u32, gid: u32) -> Result<(), String> {
    chown(path, Some(uid), Some(gid)).map_err(|e| format!("{}: {e}", path.display()))
}

/// Server and client of a program, in a network of their own with a process of the other user.
fn beside(bench: &Bench, other_user: &Path, program: &str, args: &[&str]) -> Result<(), String> {
    let fabric = folder_of(bench, "fabric", OWNER)?;
    let over = LaunchSettings::new(bench.prefix()?, &bench.paths.target).fabric(&fabric).wired();
    let job = over.job(other_user);
    let job = job.arg(OWNER.uid.to_string()).arg(STRANGER.uid.to_string()).arg(&fabric);
    let job = job.arg(program).args(args).arg("--").arg(program).args(args).arg("127.0.0.1");
    let done = job.dir(bench.scratch.path()).run(&bench.scratch, LIMIT);
    let made = PathBuf::from(format!("/tmp/ferroverbs-{}", OWNER.uid));
    let was_made = fs::remove_dir(&made).is_ok();
    let done = done?;
    if !done.ok() || !done.stdout.contains(" 0 messages taken") {
        return Err(done.report("another user beside two processes"));
    }
    if !was_made {
        return Err(format!("the other user did not make {}", made.display()));
    }
    let left = files_left(&fabric);
    if left.is_empty() { Ok(()) } else { Err(format!("left behind: {}", left.join(", "))) }
}

/// Another user creates the default fabric folder first: the message names the user and the
/// remedy. A folder in `/run/user` helps.
fn made_first(bench: &Bench) -> Result<(), String> {
    let devinfo = || {
        let over = LaunchSettings::new(bench.prefix()?, &bench.paths.target);
        let job = over.user(Some(OWNER)).job("ibv_devinfo").env_remove("XDG_RUNTIME_DIR");
        job.dir(bench.scratch.path()).run(&bench.scratch, LIMIT)
    };
    let made = TemporaryFolder(PathBuf::from(format!("/tmp/ferroverbs-{}", OWNER.uid)));
    fs::create_dir(&made.0).map_err(|e| format!("{}: {e}", made.0.display()))?;
    give(&made.0, STRANGER.uid, STRANGER.gid)?;
    let reported = devinfo()?;
    let cause = format!(
        "{}: belongs to user {}, and this is user {}",
        made.0.display(),
        STRANGER.uid,
        OWNER.uid
    );
    let lines = reported.stderr.lines().filter(|line| line.contains(&cause));
    if reported.ok() || lines.filter(|line| line.contains("set FERROVERBS_FABRIC_DIR")).count() != 1
    {
        return Err(reported.report("over a folder of another user"));
    }
    let users = Path::new("/run/user");
    let had_users = users.exists();
    let session = TemporaryFolder(users.join(OWNER.uid.to_string()));
    fs::create_dir_all(&session.0).map_err(|e| format!("{}: {e}", session.0.display()))?;
    give(&session.0, OWNER.uid, OWNER.gid)?;
    let helped = devinfo();
    drop(session);
    if !had_users {
        let _ = fs::remove_dir(users);
    }
    let helped = helped?;
    if helped.ok() { Ok(()) } else { Err(helped.report("over /run/user")) }
}

/// An empty folder, removed on drop.
struct TemporaryFolder(PathBuf);

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The kind of a program: ordinary, or with more rights than its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramRights {
    Plain,
    SetUser,
    SetGroup,
    Capability,
}

impl ProgramRights {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "an ordinary one",
            Self::SetUser => "set-user-ID",
            Self::SetGroup => "set-group-ID",
            Self::Capability => "one with file capabilities",
        }
    }

    /// Makes `file` such a program.
    fn give_to(self, file: &Path) -> Result<(), String> {
        match self {
            Self::Plain => scratch::set_mode(file, 0o755),
            Self::SetUser => {
                give(file, OWNER.uid, 0)?;
                scratch::set_mode(file, 0o4755)
            }
            Self::SetGroup => {
                give(file, 0, OWNER.gid)?;
                scratch::set_mode(file, 0o2755)
            }
            Self::Capability => {
                scratch::set_mode(file, 0o755)?;
                set_capability(file)
            }
        }
    }
}

/// Gives a file the capability for raw sockets, effective at once: `struct vfs_cap_data` of
/// `<linux/capability.h>`, revision 2.
fn set_capability(file: &Path) -> Result<(), String> {
    const REVISION_2_EFFECTIVE: u32 = 0x0200_0001;
    const NET_RAW: u32 = 1 << 13;
    let words = [REVISION_2_EFFECTIVE, NET_RAW, 0, 0, 0].map(u32::to_le_bytes).concat();
    let path = CString::new(file.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    let name = c"security.capability";
    // SAFETY: both strings end with zero, and `words` has as many bytes as are said.
    let set = unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), words.as_ptr().cast(), words.len(), 0)
    };
    let failed = std::io::Error::last_os_error();
    if set == 0 { Ok(()) } else { Err(format!("{}: {failed}", file.display())) }
}

/// The test program, and an environment that names files for it.
struct Privileged {
    program: PathBuf,
    prefix: PathBuf,
    evil: PathBuf,
}

impl Privileged {
    fn new(bench: &Bench) -> crate::Result<Self> {
        let prefix = bench.prefix()?.to_path_buf();
        let evil = bench.scratch.folder("evil", 0o755)?;
        let fail = |e: ferroverbs_c_tests::CompileError| e.to_string();
        let program = ferroverbs_c_tests::compile_privileged(bench.scratch.path(), &prefix);
        let plugin = evil.join("libevil-rdmav65.so");
        ferroverbs_c_tests::compile_plugin("int evil;\n", &plugin).map_err(fail)?;
        let config = evil.join("config");
        fs::create_dir(&config).map_err(|e| e.to_string())?;
        fs::write(config.join("evil.driver"), "driver evil\n").map_err(|e| e.to_string())?;
        Ok(Self { program: program.map_err(fail)?, prefix, evil })
    }

    /// An ordinary program uses every file named by its environment, and a privileged one none.
    fn judge(&self, bench: &Bench, kind: ProgramRights) -> Result<(), String> {
        let program = bench.scratch.fresh("privileged");
        fs::copy(&self.program, &program).map_err(|e| e.to_string())?;
        kind.give_to(&program)?;
        // The program can write there with any rights.
        let open = bench.scratch.folder("open", 0o777)?;
        let [trace, fabric] = ["trace", "fabric"].map(|name| open.join(name));
        for folder in [&trace, &fabric] {
            fs::create_dir(folder).map_err(|e| e.to_string())?;
        }
        scratch::set_mode(&trace, 0o777)?;
        let caller = NOBODY;
        give(&fabric, caller.uid, caller.gid)?;
        let [log, control] = ["log", "control"].map(|name| open.join(name));
        let plugin = self.evil.join("libevil-rdmav65.so");
        let uses: Vec<(&str, &Path)> = vec![
            ("mapped", &plugin),
            ("there", &log),
            ("there", &control),
            ("filled", &trace),
            ("filled", &fabric),
        ];
        let config = format!(
            "{}/config:{}",
            self.evil.display(),
            self.prefix.join("etc/libibverbs.d").display()
        );
        let job = Job::new(&program)
            .user(Some(caller))
            .env("FERROVERBS_CONFIG_DIR", config)
            .env("FERROVERBS_PROVIDER_DIR", &self.evil)
            .env("FERROVERBS_LAYERS", "trace")
            .env("FERROVERBS_TRACE", format!("keep=1:dir={}", trace.display()))
            .env("FERROVERBS_FABRIC_DIR", &fabric)
            .env("FERROVERBS_SOFT_CONTROL", &control)
            .env("FERROVERBS_SOFT_WIRE", "off")
            .env("VERBS_LOG_LEVEL", "4")
            .env("VERBS_LOG_FILE", &log)
            .args(uses.iter().map(|(kind, path)| format!("{kind}:{}", path.display())));
        let done = job.dir(&open).run(&bench.scratch, LIMIT)?;
        let is_plain = kind == ProgramRights::Plain;
        check(&done, &uses, is_plain).map_err(|why| done.report(&why))
    }
}

fn check(done: &Finished, uses: &[(&str, &Path)], is_plain: bool) -> Result<(), String> {
    let lines: Vec<&str> = done.stdout.lines().collect();
    if !done.ok() || !lines.contains(&format!("privileged {}", u8::from(!is_plain)).as_str()) {
        return Err("the program".into());
    }
    for (_, path) in uses {
        let is_used = lines.contains(&format!("used {}", path.display()).as_str());
        if is_used != is_plain {
            let not = if is_used { "" } else { "not " };
            return Err(format!("the program, which did {not}use {},", path.display()));
        }
    }
    Ok(())
}
