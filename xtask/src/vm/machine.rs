//! One boot of the guest: QEMU without hardware virtualisation, which works on every machine. The
//! host's file system is the guest's root, read-only below a temporary layer.

use super::kernel::Kernel;
use crate::packages;
use crate::paths::Paths;
use crate::process::{self, Job, Running};
use crate::progress::Progress;
use crate::scratch::Scratch;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The kernel and programs of a boot.
#[derive(Clone, Debug)]
pub struct Machine {
    kernel: Kernel,
}

/// The guest's task.
#[derive(Clone, Debug)]
pub struct Request {
    /// The command; it runs as the guest's root.
    pub job: Job,
    /// Its working directory.
    pub dir: PathBuf,
    /// Folders of the host that the guest can write.
    pub shares: Vec<PathBuf>,
    /// How long the command may take.
    pub limit: Duration,
    /// Whether there are RDMA devices: `rxe0` and `rxe1`, joined by a cable.
    pub devices: bool,
    /// Whether the guest's clock counts the instructions of its one processor, kernel included, one
    /// a nanosecond, instead of following the host's clock. Counting is slower but reproducible.
    pub counted: bool,
    /// Where to keep the kernel's messages.
    pub console: Option<PathBuf>,
}

impl Request {
    /// `job` in a folder of the host that it can write to, with RDMA devices.
    pub fn in_folder(job: Job, folder: &Path, limit: Duration) -> Self {
        Self {
            job,
            dir: folder.into(),
            shares: vec![folder.into()],
            limit,
            devices: true,
            counted: false,
            console: None,
        }
    }
}

/// Which output of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// The result of a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The command's exit status; 124 if it took too long.
    pub status: u8,
    /// Complaints of the guest's kernel: warnings, faults.
    pub kernel: Vec<String>,
}

/// How long the guest may take beside the command.
const BOOT: Duration = Duration::from_secs(600);

impl Machine {
    /// Gets ready: packages (installed if we are root), the kernel.
    ///
    /// # Errors
    /// Why there can be no guest here.
    pub fn prepare(paths: &Paths, progress: &Progress) -> crate::Result<Self> {
        packages::ensure(&[packages::VM], progress)?;
        Ok(Self { kernel: Kernel::get(paths, progress)? })
    }

    /// The same with the kernel of another release of Debian.
    ///
    /// # Errors
    /// Why there can be none here.
    pub fn with_kernel_of(suite: &str, paths: &Paths, progress: &Progress) -> crate::Result<Self> {
        packages::ensure(&[packages::VM], progress)?;
        Ok(Self { kernel: Kernel::of(paths, suite, progress)? })
    }

    /// The version of its kernel.
    pub fn version(&self) -> String {
        self.kernel.version()
    }

    /// Boots, runs the command, and passes its output to `sink` as it arrives.
    ///
    /// # Errors
    /// The guest ended without a status of the command.
    pub fn run(
        &self,
        request: &Request,
        scratch: &Scratch,
        sink: &mut dyn FnMut(Stream, &[u8]),
    ) -> crate::Result<Outcome> {
        let folder = scratch.folder("guest", 0o700)?;
        let put = |name: &str, text: &str| {
            fs::write(folder.join(name), text).map_err(|e| format!("cannot write {name}: {e}"))
        };
        put("guest", include_str!("guest.sh"))?;
        put("settings", &self.settings(request))?;
        let dir = process::quote(&request.dir.to_string_lossy());
        put("command", &format!("cd -- {dir} || exit 126\n{}\n", request.job.line()))?;
        for name in ["out", "err"] {
            put(name, "")?;
        }
        let mut outputs =
            [Output::open(&folder, Stream::Out)?, Output::open(&folder, Stream::Err)?];
        let mut machine = self.qemu(request, &folder).start(scratch)?;
        let deadline = Instant::now() + request.limit + BOOT;
        while !machine.ended() && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
            outputs.iter_mut().for_each(|output| output.pass_on(sink));
        }
        let qemu = end(machine, deadline);
        outputs.iter_mut().for_each(|output| output.pass_on(sink));
        let console = folder.join("console");
        if let Some(kept) = &request.console {
            fs::copy(&console, kept)
                .map_err(|e| format!("cannot write {}: {e}", kept.display()))?;
        }
        let console = fs::read(&console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let status = fs::read_to_string(folder.join("status")).ok();
        match status.and_then(|text| text.trim().parse().ok()) {
            // The status of `timeout` after a kill.
            Some(137) => Ok(Outcome { status: 124, kernel: complaints(&console) }),
            Some(status) => Ok(Outcome { status, kernel: complaints(&console) }),
            None => {
                let failure = fs::read_to_string(folder.join("failure")).unwrap_or_default();
                let lines: Vec<_> = console.lines().collect();
                let tail = lines[lines.len().saturating_sub(15)..].join("\n    ");
                let failure = failure.trim();
                Err(format!("the guest failed: {failure}\n{qemu}  its last words:\n    {tail}"))
            }
        }
    }

    /// Shell assignments for the guest's script.
    fn settings(&self, request: &Request) -> String {
        let quote = |path: &Path| process::quote(&path.to_string_lossy());
        let shares: Vec<_> = request.shares.iter().map(|s| quote(s)).collect();
        format!(
            "modules={}\nlimit={}\nnet={}\nshares=({})\n",
            quote(&self.kernel.modules),
            request.limit.as_secs().max(1),
            if request.devices { "veth" } else { "none" },
            shares.join(" ")
        )
    }

    fn qemu(&self, request: &Request, folder: &Path) -> Job {
        // A comma in a path separates options unless it is doubled.
        let path = |path: &Path| path.to_string_lossy().replace(',', ",,");
        let share = |dir: &Path, tag: &str, more: &str| {
            let dir = path(dir);
            format!("local,path={dir},mount_tag={tag},security_model=none{more}")
        };
        let mut job = Job::new("qemu-system-x86_64")
            .args(["-name", "ferroverbs", "-M", "q35", "-cpu", "max", "-m", "2048"])
            .args(["-nodefaults", "-nic", "none", "-no-reboot"])
            .args(match request.counted {
                true => {
                    ["-accel", "tcg,thread=single", "-smp", "1", "-icount", "shift=0"].as_slice()
                }
                false => ["-accel", "tcg,thread=multi", "-smp", "2"].as_slice(),
            })
            .args(["-display", "none", "-kernel"])
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(&self.kernel.initramfs)
            .args(["-append", COMMAND_LINE, "-serial"])
            .arg(format!("file:{}", path(&folder.join("console"))))
            .arg("-virtfs")
            .arg(share(Path::new("/"), "host", ",readonly=on,multidevs=remap"))
            .arg("-virtfs")
            .arg(share(folder, "job", ""))
            .args(["-device", "virtio-serial-pci"]);
        for name in ["out", "err"] {
            let file = path(&folder.join(name));
            job = job
                .arg("-chardev")
                .arg(format!("file,id={name},path={file},append=on"))
                .arg("-device")
                .arg(format!("virtserialport,chardev={name},name={name}"));
        }
        for (n, dir) in request.shares.iter().enumerate() {
            job = job.arg("-virtfs").arg(share(dir, &format!("share{n}"), ",multidevs=remap"));
        }
        job
    }
}

const COMMAND_LINE: &str = "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off nokaslr tsc=reliable \
     net.ifnames=0 audit=0 rdinit=/init";

const PAUSE: Duration = Duration::from_millis(50);

/// An output of the command, as far as it was passed on.
#[derive(Debug)]
struct Output {
    file: File,
    stream: Stream,
}

impl Output {
    fn open(folder: &Path, stream: Stream) -> crate::Result<Self> {
        let path = folder.join(if stream == Stream::Out { "out" } else { "err" });
        let file = File::open(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        Ok(Self { file, stream })
    }

    fn pass_on(&mut self, sink: &mut dyn FnMut(Stream, &[u8])) {
        let mut fresh = Vec::new();
        let _ = self.file.read_to_end(&mut fresh);
        if !fresh.is_empty() {
            sink(self.stream, &fresh);
        }
    }
}

/// Ends the machine; returns its report, if any.
fn end(machine: Running, deadline: Instant) -> String {
    let done = machine.finish(Instant::now().min(deadline));
    if done.ok() { String::new() } else { done.report("qemu") }
}

/// Lines that a healthy kernel does not print.
fn complaints(console: &str) -> Vec<String> {
    const SIGNS: [&str; 7] = [
        "BUG:",
        "WARNING:",
        "Oops",
        "general protection",
        "soft lockup",
        "Kernel panic",
        "refcount_t",
    ];
    console.lines().filter(|l| SIGNS.iter().any(|s| l.contains(s))).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sick_kernel_is_heard() {
        let console = "[1.0] rdma_rxe: loaded\n[2.0] BUG: unable to handle page fault\n";
        assert_eq!(complaints(console), ["[2.0] BUG: unable to handle page fault"]);
    }
}
