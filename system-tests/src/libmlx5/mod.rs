//! The formats of `emulated-mlx5` against the unmodified libmlx5: a plugin in C plays the kernel as
//! this test tells it, and a program posts random requests. The test decodes the entries of
//! libmlx5, compares them with the posted requests, and writes completions for the program.

mod adapter;
mod line;
mod memory;

use crate::Bench;
use crate::development::compile;
use adapter::Adapter;
use emulated_mlx5::device::MODELS;
use memory::Remote;
use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};
use xtask::launch::DataPath;
use xtask::process::{Job, Running};

const LIMIT: Duration = Duration::from_secs(120);

/// Random requests of each QP in one run.
const REQUESTS: &str = "60";

/// Settings of libmlx5 in the runs: entries of 64 bytes, of 128 bytes, and queues with signatures.
const RUNS: [(&str, &str); 3] =
    [("MLX5_CQE_SIZE", "64"), ("MLX5_CQE_SIZE", "128"), ("MLX5_QP_SIGNATURE", "1")];

/// Compiles plugin and program, and serves a run with each setting and model.
pub(super) fn formats(bench: &Bench) -> Result<(), String> {
    let folder = bench.scratch.folder("libmlx5", 0o755)?;
    let plugin = folder.join("libmlx5kernel-rdmav65.so");
    compile(bench, &folder, "mlx5", "libmlx5kernel-rdmav65.so", &["-shared"])?;
    compile(bench, &folder, "mlx5-user", "mlx5-user", &[])?;
    let settings = bench.scratch.folder("libmlx5-settings", 0o755)?;
    let config = settings.join("mlx5kernel.driver");
    std::fs::write(&config, "driver mlx5kernel\n")
        .map_err(|e| format!("{}: {e}", config.display()))?;
    let fabric = bench.over(DataPath::Default)?;
    for (n, (name, value)) in RUNS.iter().enumerate() {
        let model = MODELS[n % MODELS.len()];
        let path = bench.scratch.fresh("socket");
        let listener = UnixListener::bind(&path).map_err(|e| format!("a socket: {e}"))?;
        // The program may run as another user.
        std::fs::set_permissions(&path, Permissions::from_mode(0o777))
            .map_err(|e| format!("{}: {e}", path.display()))?;
        let job = fabric.over.job(folder.join("mlx5-user"));
        let job = job.arg(&plugin).arg(format!("{:x}", 0x5eed_1234 + n)).arg(REQUESTS);
        let job = job.env("FERROVERBS_CONFIG_DIR", &settings).env(name, value);
        let job = job.env("FERROVERBS_PROVIDER_DIR", &folder).env("MLX5_SOCKET", &path);
        let job = job.env("MLX5_MODALIAS", model.modalias()).dir(bench.scratch.path());
        run(bench, &job, &listener, Adapter::new(model))
            .map_err(|error| format!("with {name}={value}: {error}"))?;
    }
    Ok(())
}

/// Runs the program, and serves its requests until it ends.
fn run(
    bench: &Bench,
    job: &Job,
    listener: &UnixListener,
    mut adapter: Adapter,
) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    let mut running = job.start(&bench.scratch)?;
    let served = accept(listener, &mut running, deadline)
        .and_then(|stream| Remote::new(stream, LIMIT))
        .and_then(|mut remote| adapter.serve(&mut remote));
    let done = running.finish(deadline);
    match served {
        Ok(()) if done.ok() && done.stdout.ends_with("done\n") => Ok(()),
        Ok(()) => Err(done.report("the program")),
        Err(error) => Err(format!("{error}\n{}", done.report("the program"))),
    }
}

/// The program's connection; an error when the program ends before it connects.
fn accept(
    listener: &UnixListener,
    running: &mut Running,
    deadline: Instant,
) -> Result<UnixStream, String> {
    let failed = |e: std::io::Error| format!("a socket: {e}");
    listener.set_nonblocking(true).map_err(failed)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(failed)?;
                return Ok(stream);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(failed(e)),
        }
        if running.ended() {
            return Err("the program ended before it opened the device".to_owned());
        }
        if Instant::now() > deadline {
            return Err("the program does not connect".to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
