//! `ferroverbs doctor`: looks at this machine and says what keeps RDMA programs from working, each with the command that mends it. It changes
//! nothing and opens no device.

mod cross_memory;
mod devices;
mod firewall;
mod gids;
mod host;
mod interfaces;
mod machine;
mod pair;
mod plugins;
mod soft;
#[cfg(test)]
mod tests;

use crate::place;
use machine::Machine;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// What the command line says.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Look at what is below this folder instead of the machine (its sys, proc, dev, etc, usr and tmp)
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Look at the way to another machine, too, on which `ferroverbs doctor --answer` runs
    #[arg(long, value_name = "HOST", conflicts_with = "answer")]
    peer: Option<String>,
    /// Answer the doctor of another machine until this one is ended
    #[arg(long)]
    answer: bool,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// As it should be.
    Ok,
    /// Works, but worth knowing.
    Note,
    /// Programs will not work.
    Missing,
    /// Nobody lets us look.
    Unknown,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Check {
    /// Stays the same in later versions.
    id: &'static str,
    state: State,
    finding: String,
    /// A command, or what else to do.
    remedy: Option<String>,
}

impl Check {
    fn new(id: &'static str, state: State, finding: impl Into<String>) -> Self {
        Self { id, state, finding: finding.into(), remedy: None }
    }

    fn ok(id: &'static str, finding: impl Into<String>) -> Self {
        Self::new(id, State::Ok, finding)
    }

    fn note(id: &'static str, finding: impl Into<String>) -> Self {
        Self::new(id, State::Note, finding)
    }

    fn missing(id: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(id, State::Missing, finding).remedy(remedy)
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// Status 0 if nothing is missing, 1 otherwise.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    if args.answer {
        return pair::answer(&Machine::new(args.root.clone())).map(|()| ExitCode::SUCCESS);
    }
    let mut checks = all(args.root.clone());
    if let Some(peer) = &args.peer {
        checks.extend(pair::check(&Machine::new(args.root.clone()), peer));
    }
    let text = if args.json { json(&checks) } else { table(&checks) };
    std::io::stdout().write_all(text.as_bytes()).map_err(|e| format!("cannot write: {e}"))?;
    let missing = checks.iter().any(|check| check.state == State::Missing);
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn all(root: PathBuf) -> Vec<Check> {
    let mut checks = vec![library()];
    checks.extend(examine(&Machine::new(root)));
    checks
}

/// What is found on this machine.
pub(crate) fn as_json() -> String {
    json(&all("/".into()))
}

fn library() -> Check {
    match place::library_folder() {
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
            // On a line of its own, to be copied.
            text.push_str(&format!("{:state$}  {:id$}    {remedy}\n", "", ""));
        }
    }
    let missing = checks.iter().filter(|check| check.state == State::Missing).count();
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
