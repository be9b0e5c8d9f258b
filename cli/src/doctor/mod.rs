//! `ferroverbs doctor`: checks this machine, and prints what keeps RDMA programs from working and a
//! command that helps. The command changes nothing and opens no device.

mod check;
mod cross_memory;
mod devices;
mod firewall;
mod gids;
mod host;
mod interfaces;
mod machine;
mod peer;
mod plugins;
mod presence;
mod soft;
#[cfg(test)]
mod tests;

use crate::{installation, output};
use check::{Check, CheckState};
use machine::Machine;
use std::path::PathBuf;
use std::process::ExitCode;

/// The arguments of `ferroverbs doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Read files below this folder instead of the machine's (sys, proc, dev, etc, usr and tmp)
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Check also the path to another machine, on which `ferroverbs doctor --answer` runs
    #[arg(long, value_name = "HOST", conflicts_with = "answer")]
    peer: Option<String>,
    /// Answer the doctor of another machine, until a signal ends the command
    #[arg(long)]
    answer: bool,
}

/// Runs `ferroverbs doctor`. The exit status is 0 if nothing is missing, otherwise 1.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    if args.answer {
        return peer::answer_questions(&Machine::new(args.root.clone()))
            .map(|()| ExitCode::SUCCESS);
    }
    let mut checks = check_all(args.root.clone());
    if let Some(peer) = &args.peer {
        checks.extend(peer::check(&Machine::new(args.root.clone()), peer));
    }
    output::print_text(&if args.json { json(&checks) } else { table(&checks) })?;
    let missing = checks.iter().any(|check| check.state == CheckState::Missing);
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn check_all(root: PathBuf) -> Vec<Check> {
    let mut checks = vec![library()];
    checks.extend(examine(&Machine::new(root)));
    checks
}

/// The checks of this machine as JSON.
pub(crate) fn as_json() -> String {
    json(&check_all("/".into()))
}

fn library() -> Check {
    match installation::library_folder() {
        Ok(folder) => Check::ok(
            "library",
            format!("Ferroverbs {} in {}", env!("CARGO_PKG_VERSION"), folder.display()),
        ),
        Err(why) => Check::missing("library", why, "install the package ferroverbs again"),
    }
}

fn examine(machine: &Machine) -> Vec<Check> {
    let devices = devices::find(machine);
    let mut checks = devices::check(machine, &devices);
    checks.extend(plugins::check(machine, &devices));
    checks.extend(gids::check(machine, &devices));
    checks.extend(soft::check(machine, &devices));
    checks.extend(presence::check(machine, &devices));
    checks.extend(host::check(machine, &devices));
    checks.push(firewall::check(machine, &devices));
    checks
}

fn table(checks: &[Check]) -> String {
    let width = |of: fn(&Check) -> usize| checks.iter().map(of).max().unwrap_or(0);
    let (state, id) = (width(|c| c.state.name().len()), width(|c| c.id.len()));
    let mut text = String::new();
    for check in checks {
        text.push_str(&format!(
            "{:state$}  {:id$}  {}\n",
            check.state.name(),
            check.id,
            check.finding
        ));
        if let Some(remedy) = &check.remedy {
            // The remedy has its own line, so that the user can copy the line.
            text.push_str(&format!("{:state$}  {:id$}    {remedy}\n", "", ""));
        }
    }
    let missing = checks.iter().filter(|check| check.state == CheckState::Missing).count();
    text.push_str(&match missing {
        0 => "Nothing is missing.\n".to_owned(),
        1 => "1 thing is missing.\n".to_owned(),
        n => format!("{n} things are missing.\n"),
    });
    text
}

fn json(checks: &[Check]) -> String {
    let checks: Vec<_> = checks
        .iter()
        .map(|check| {
            serde_json::json!({
                "id": check.id,
                "state": check.state.name(),
                "finding": check.finding,
                "remedy": check.remedy,
            })
        })
        .collect();
    format!("{:#}\n", serde_json::json!({ "version": env!("CARGO_PKG_VERSION"), "checks": checks }))
}
