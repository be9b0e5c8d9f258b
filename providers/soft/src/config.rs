//! Settings of the adapter that are not the fabric's, read from the environment.

use crate::engine::faults::{Statement, parse};
use crate::sys::notice::notice;
use crate::sys::process;
use std::ffi::{OsStr, OsString};
use std::path::{self, PathBuf};
use std::sync::OnceLock;

/// Messages longer than this are fetched by the receiver in one copy where it can attach to the sender; up to
/// it they are copied twice through a bounce buffer, which costs no system call. `FERROVERBS_SOFT_EAGER`, bytes.
pub(crate) fn eager_bytes() -> usize {
    static EAGER: OnceLock<usize> = OnceLock::new();
    *EAGER.get_or_init(|| {
        let asked = std::env::var("FERROVERBS_SOFT_EAGER").ok();
        asked.and_then(|v| v.parse().ok()).unwrap_or(EAGER_BYTES)
    })
}

const EAGER_BYTES: usize = 8192;

/// Whether a thread of this process may help others with their long WRITEs to it and READs from it (`engine::helping`): not with
/// `FERROVERBS_SOFT_HELPER=off`, for programs whose processors are all spoken for.
pub(crate) fn helps() -> bool {
    !lookup("FERROVERBS_SOFT_HELPER").is_some_and(|value| is_off(&value))
}

/// Whether a region's lkey differs from its rkey: with `FERROVERBS_SOFT_KEYS=distinct`, which finds programs that confuse them. The
/// adapters in use have one key for both.
pub(crate) fn keys_are_distinct() -> bool {
    lookup("FERROVERBS_SOFT_KEYS").is_some_and(|value| value.eq_ignore_ascii_case("distinct"))
}

/// Whether nothing shall be said of other ends that cannot be met: `FERROVERBS_QUIET`, as for the library itself.
pub(crate) fn is_quiet() -> bool {
    std::env::var_os("FERROVERBS_QUIET").is_some_and(|value| value != "0")
}

/// Whether the value of a variable turns off what it is about.
pub(crate) fn is_off(value: &OsStr) -> bool {
    ["off", "no", "0", "false"].iter().any(|off| value.eq_ignore_ascii_case(off))
}

/// What goes wrong on purpose.
const FAULTS_VARIABLE: &str = "FERROVERBS_SOFT_FAULTS";
/// Where more of it is listened for.
pub(crate) const CONTROL_VARIABLE: &str = "FERROVERBS_SOFT_CONTROL";

/// What shall go wrong, by `FERROVERBS_SOFT_FAULTS`. What is not understood is told in one line, and then nothing goes wrong.
pub(crate) fn faults() -> Vec<Statement> {
    let Some(text) = lookup(FAULTS_VARIABLE) else { return vec![] };
    parse(&text.to_string_lossy()).unwrap_or_else(|why| {
        notice!("{FAULTS_VARIABLE}: {why}; going on without faults (ferroverbs-soft(7))");
        vec![]
    })
}

/// The pipe that `FERROVERBS_SOFT_CONTROL` names; `%p` in it stands for the number of this process.
pub(crate) fn control_path() -> Option<PathBuf> {
    let named = lookup(CONTROL_VARIABLE)?;
    let path = PathBuf::from(with_pid(&named.to_string_lossy(), process::id()));
    // Absolute, as the program may go elsewhere.
    Some(path::absolute(&path).unwrap_or(path))
}

fn with_pid(path: &str, pid: i32) -> String {
    path.replace("%p", &pid.to_string())
}

/// A variable that is not empty. A set-user-id program sees none.
fn lookup(name: &str) -> Option<OsString> {
    if process::is_privileged() {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_can_have_the_number_of_the_process_in_it() {
        assert_eq!(with_pid("/run/%p/control-%p", 7), "/run/7/control-7");
        assert_eq!(with_pid("/run/control", 7), "/run/control");
    }

    #[test]
    fn some_words_turn_things_off() {
        for (value, off) in [("off", true), ("0", true), ("OFF", true), ("on", false), ("", false)]
        {
            assert_eq!(is_off(value.as_ref()), off, "{value}");
        }
    }
}
