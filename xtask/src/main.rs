//! One entry for everything a person does with Ferroverbs: `cargo xtask` lists the commands.

mod bench;
mod coverage;
mod demo;
mod dist;
mod files;
mod headers;
mod manpage;
mod matrix;
mod over;
mod packages;
mod pair;
mod paths;
mod perftest;
mod process;
mod progress;
mod run;
mod scratch;
mod soak;
mod stage;
mod table;
mod test;
mod vm;

use std::process::ExitCode;

/// What went wrong, ready to be shown to a person.
type Result<T> = std::result::Result<T, String>;

const HELP: &str = "\
usage: cargo xtask COMMAND

  demo              install what is needed, build, and show the soft adapter at work
  test [GROUP...]   run every test there is (--list shows the groups)
  soak [MINUTES [SEED]]
                    random operations over the soft adapter, checked, one seed after the other (10 minutes)
  bench             measure the soft adapter beside its peers and the machine's limits
  run -- CMD...     run CMD over Ferroverbs; adds nothing to its output
  bench start-up    measure a program's start, upstream's library beside ours
  vm -- CMD...      run CMD in a virtual machine with RDMA devices (--help)
  stage             lay an installed tree under target/stage
  dist              build Debian packages and a tarball under target/dist
  headers           write include/ from the abi crate (--check: is it up to date?)
  matrix            write docs/abi-matrix.md and docs/soft-coverage.md (--check: are they up to date?)
";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let command = args.next().and_then(|c| c.into_string().ok()).unwrap_or_default();
    let rest: Vec<_> = args.collect();
    let result = match command.as_str() {
        "demo" => demo::main(&rest),
        "bench" => bench::main(&rest),
        "dist" => dist::main(&rest),
        "test" => test::main(&rest),
        "run" => run::main(&rest),
        "headers" => headers::main(&rest),
        "matrix" => matrix::main(&rest),
        bench::INSIDE => bench::inside(&rest),
        "vm" => vm::main(&rest),
        // For the virtual machine of the tests.
        test::vm::INSIDE => test::vm::inside(&rest),
        "soak" => soak::main(&rest),
        "stage" => stage::main(&rest),
        "" | "help" | "-h" | "--help" => {
            print!("{HELP}");
            Ok(if command.is_empty() { ExitCode::from(2) } else { ExitCode::SUCCESS })
        }
        other => Err(format!("no such command: {other}\n\n{HELP}")),
    };
    result.unwrap_or_else(|message| {
        eprintln!("xtask: {}", message.trim_end());
        ExitCode::from(2)
    })
}
