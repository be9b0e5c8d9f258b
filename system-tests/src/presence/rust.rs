//! What a test of a Rust project does by the crate ferroverbs-testing.

use crate::{Bench, Tally};
use ferroverbs_testing::{Builder, Fabric};
use std::process::Stdio;
use xtask::pair::free_port;

/// Runs clients until a client has ended well with the server, which then ends well, too. A client
/// fails at once where nobody listens yet.
fn pair(fabric: &Fabric, port: &str) -> crate::Result<()> {
    let failed = |e: std::io::Error| e.to_string();
    let program = || {
        let mut command = fabric.command("ibv_rc_pingpong");
        command.args(["-p", port, "-n", "100"]).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let mut server = fabric.spawn(&mut program()).map_err(failed)?;
    while !program().arg("127.0.0.1").status().map_err(failed)?.success() {
        if let Some(status) = server.child().try_wait().map_err(failed)? {
            return Err(format!("the server ended: {status}"));
        }
    }
    let status = server.child().wait().map_err(failed)?;
    if status.success() { Ok(()) } else { Err(format!("the server: {status}")) }
}

pub(super) fn testing(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let prefix = bench.prefix()?;
    let builder = || -> Builder {
        let builder = Fabric::builder().ferroverbs(prefix.join("bin/ferroverbs"));
        builder.variable("FERROVERBS_TREE", "off")
    };
    let name = "programs of a fabric reach each other";
    bench.step(name);
    let fabric = builder().build().map_err(|e| e.to_string())?;
    tally.record(name, pair(&fabric, &free_port()?.to_string()));
    let name = "programs get the faults and layers of their fabric";
    let fabric = builder().faults("qp-error nth=7").layers(["validate"]).build();
    let fabric = fabric.map_err(|e| e.to_string())?;
    let mut command = fabric.command("printenv");
    command.args(["FERROVERBS_SOFT_FAULTS", "FERROVERBS_LAYERS", "FERROVERBS_FABRIC_DIR"]);
    let done = command.output().map_err(|e| e.to_string())?;
    let wanted = format!("qp-error nth=7\nvalidate\n{}\n", fabric.folder().display());
    let printed = String::from_utf8_lossy(&done.stdout);
    let result = (printed == wanted).then_some(());
    tally.record(name, result.ok_or_else(|| format!("printenv: {printed}")));
    Ok(())
}
