//! The harness of the system tests: `cargo test -p system-tests -- --list`.

fn main() -> std::process::ExitCode {
    system_tests::main()
}
